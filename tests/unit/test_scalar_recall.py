"""How many nearest neighbours each element type of outputs keeps, on trained models' embeddings of digits and emojis.

`error` below bounds what an element type adds to a similarity. The neighbour it finds is then within twice that of the
best, and it is the best wherever the second is further away than that: no bound here was measured and then written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import uform
from tools import demo
from tools.emoji.data import read_emojis
from uform import Modality, Scalar

load_digits = pytest.importorskip("sklearn.datasets").load_digits

HIDDEN, STEPS, QUERIES, LOOKED_UP = 64, 60, 450, 1_350
EMOJIS = Path(__file__).resolve().parents[3] / "shared/data/emoji.parquet"
Vectors = npt.NDArray[np.float32]
FLOAT32_SUM = HIDDEN * 2.0**-24  # what a sum of 64 products of unit vectors loses, twice over


@dataclass(frozen=True)
class Embedded:
    """Embeddings of held-out pictures and of those that they are looked up among, by element type."""

    model: uform.Model
    images: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.int64]  # what each shows

    def embed(self, scalar: Scalar) -> tuple[Any, Any]:
        """Queries, then what they are looked up among."""
        rows = self.model.embed([Modality.IMAGE] * len(self.images), list(self.images), outputs_scalar=scalar).numpy()
        return rows[:QUERIES], rows[QUERIES:]


def make(executor: uform.Executor, **batch: Any) -> uform.Trainer:
    return uform.Trainer.init_ram(
        executor,
        depth=1,
        hidden=HIDDEN,
        objective=uform.Objective.CONTRASTIVE,
        batch=uform.BatchShape(**batch),
        contrastive=uform.Contrastive(pair_loss=uform.PairLossForm.BALANCED, max_edges_per_device=10_000),
        schedule=uform.Schedule(learning_rate=2e-3, steps=STEPS),
        seed=3,
    )


def saved(executor: uform.Executor, trainer: uform.Trainer, folder: Path) -> uform.Model:
    trainer.save(folder / "checkpoint")
    return uform.Model.init_ram(executor, folder / "checkpoint")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    loaded = load_digits()
    images = (loaded.images * 255 / 16).astype(np.uint8)
    executor, rng = uform.Executor.for_ram(threads=1), np.random.default_rng(3)
    trainer = make(executor, max_rows_per_device=32, max_columns_per_row=64, image=(4, 1))
    for _ in range(STEPS):
        demo.step(trainer, images[QUERIES:], loaded.target[QUERIES:], rng)
    return Embedded(saved(executor, trainer, tmp_path_factory.mktemp("digits")), images, loaded.target)


@pytest.fixture(scope="module")
def emojis(tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    """Trained on pictures and their English names; queries are pictures that it never saw."""
    if not EMOJIS.exists():
        pytest.skip("the emojis are not here")
    train, valid = read_emojis(EMOJIS)
    executor, rng = uform.Executor.for_ram(threads=1), np.random.default_rng(3)
    trainer = make(executor, max_rows_per_device=16, max_columns_per_row=128, image=(16, 3))
    modalities, count = [Modality.IMAGE] * 48 + [Modality.TEXT] * 48, np.arange(48)
    pairs = uform.Relations(attract=(np.arange(97), np.concatenate([48 + count, count]).astype(np.uint32)))
    for _ in range(STEPS):
        drawn = rng.choice(len(train), 48, replace=False)
        names = [train.names[place][0] for place in drawn]
        trainer.step(modalities, [*train.pictures[drawn], *names], relations=pairs)
    images = np.concatenate([valid.pictures[:QUERIES], train.pictures[:LOOKED_UP]])
    return Embedded(saved(executor, trainer, tmp_path_factory.mktemp("emojis")), images, np.arange(len(images)))


@pytest.fixture(params=["digits", "emojis"])
def embedded(request: pytest.FixtureRequest) -> Embedded:
    pictures: Embedded = request.getfixturevalue(request.param)
    return pictures


def widen(rows: Any, scalar: Scalar) -> Vectors:
    """What the rows stand for, in float32: scaled alike, which is all that a search needs."""
    if scalar is Scalar.BFLOAT16:
        wide: Vectors = (rows.astype(np.uint32) << 16).view(np.float32)
        return wide
    if scalar is Scalar.INT8:
        return np.asarray(rows / np.float32(127), np.float32)
    if scalar is Scalar.BIT:
        return np.asarray(2.0 * np.unpackbits(rows, axis=1) - 1, np.float32)
    return np.asarray(rows, np.float32)


def similarities(embedded: Embedded, scalar: Scalar) -> Vectors:
    queries, others = (widen(rows, scalar) for rows in embedded.embed(scalar))
    product: Vectors = queries @ others.T
    return product


def recall_at_1(found: Vectors, exact: Vectors) -> float:
    """The share of queries whose nearest is found; among several equally near, each is drawn as likely."""
    tied = found == found.max(axis=1, keepdims=True)
    nearest = exact.argmax(axis=1)
    return float(np.mean(tied[np.arange(len(found)), nearest] / tied.sum(axis=1)))


def test_the_model_has_learned(digits: Embedded) -> None:
    """Else its neighbours would mean nothing; one in ten is what chance finds."""
    nearest = similarities(digits, Scalar.FLOAT32).argmax(axis=1)
    assert np.mean(digits.numbers[QUERIES:][nearest] == digits.numbers[:QUERIES]) > 0.8


def relative(rounding: float) -> float:
    """Each component of both is off by a share of itself: x'y' - xy <= (2 r + r r) sum |x||y|, which is 1 at most."""
    return 2 * rounding + rounding**2


INT8_STEP = 0.5 / 127
INT8_NORM = INT8_STEP * math.sqrt(HIDDEN)  # of one vector's error
ERRORS = {
    Scalar.FLOAT16: relative(2.0**-11) + 2 * math.sqrt(HIDDEN) * 2.0**-25,  # the latter below its least normal number
    Scalar.BFLOAT16: relative(2.0**-8),
    Scalar.INT8: 2 * INT8_NORM + INT8_NORM**2,
}


@pytest.mark.parametrize("scalar", ERRORS)
def test_neighbours_are_within_the_rounding_of_the_best(embedded: Embedded, scalar: Scalar) -> None:
    exact, found = similarities(embedded, Scalar.FLOAT32), similarities(embedded, scalar)
    error = ERRORS[scalar] + FLOAT32_SUM
    assert np.abs(found - exact).max() <= error
    ordered = np.sort(exact, axis=1)
    reached = np.take_along_axis(exact, found.argmax(axis=1)[:, None], axis=1)[:, 0]
    assert (ordered[:, -1] - reached).max() <= 2 * error
    certain = float(np.mean(ordered[:, -1] - ordered[:, -2] > 2 * error))
    assert recall_at_1(found, exact) >= certain


@pytest.mark.parametrize(("scalar", "deviation"), [(Scalar.FLOAT16, 2.0**-11), (Scalar.BFLOAT16, 2.0**-8)])
def test_recall_of_floats(embedded: Embedded, scalar: Scalar, deviation: float) -> None:
    """A component's error is a share of it, at most `deviation` and as good as uniform."""
    queries, others = embedded.embed(Scalar.FLOAT32)
    spread = deviation / math.sqrt(3)
    check_recall(embedded, scalar, np.abs(queries) * spread, np.abs(others) * spread)


def test_recall_of_int8(embedded: Embedded) -> None:
    queries, others = embedded.embed(Scalar.FLOAT32)
    spread = INT8_STEP / math.sqrt(3)
    check_recall(embedded, Scalar.INT8, np.full_like(queries, spread), np.full_like(others, spread))


def check_recall(embedded: Embedded, scalar: Scalar, query_spread: Vectors, other_spread: Vectors) -> None:
    """Recall against what independent errors of these deviations leave.

    The best falls behind another by chance, of probability Q(margin / deviation of both similarities' difference); the
    sum over all others bounds that of losing to any. The share of 450 queries strays from its mean by 4 deviations at
    most once in 30,000 draws, and this one is drawn once: every seed is fixed.
    """
    exact = similarities(embedded, Scalar.FLOAT32)
    queries, others = (np.asarray(rows, np.float64) for rows in embedded.embed(Scalar.FLOAT32))
    best = exact.argmax(axis=1)
    lost = np.zeros(QUERIES)
    for query in range(QUERIES):
        apart = others - others[best[query]]
        variance = (apart**2) @ (query_spread[query].astype(np.float64) ** 2)
        variance += (other_spread.astype(np.float64) ** 2) @ (queries[query] ** 2)
        variance += (other_spread[best[query]].astype(np.float64) ** 2) @ (queries[query] ** 2)
        margins = -(apart @ queries[query]) / np.sqrt(variance)
        chances = np.array([0.5 * math.erfc(margin / math.sqrt(2)) for margin in margins])
        chances[best[query]] = 0
        lost[query] = min(1.0, chances.sum())
    kept = 1 - lost
    bound = kept.mean() - 4 * math.sqrt(float((kept * lost).sum())) / QUERIES
    assert bound > 20 / exact.shape[1]  # chance finds one in as many as there are: else it would tell little
    assert recall_at_1(similarities(embedded, scalar), exact) >= bound


def test_recall_of_bits(digits: Embedded) -> None:
    """No axis is special: the bits keep as many neighbours as the signs along axes that are turned at random do.

    The signs of 30 random rotations show how far that share strays from one set of axes to the next.
    """
    exact = similarities(digits, Scalar.FLOAT32)
    queries, others = digits.embed(Scalar.FLOAT32)
    rng = np.random.default_rng(11)
    turned = []
    for _ in range(30):
        axes = np.linalg.qr(rng.normal(size=(HIDDEN, HIDDEN)))[0]
        signs = [np.where(rows @ axes > 0, 1, -1).astype(np.float32) for rows in (queries, others)]
        turned.append(recall_at_1(signs[0] @ signs[1].T, exact))
    found = similarities(digits, Scalar.BIT)
    chance = 1 / exact.shape[1]
    recall = recall_at_1(found, exact)
    assert recall >= np.mean(turned) - 4 * np.std(turned)
    assert np.mean(turned) - 4 * np.std(turned) > 20 * chance  # else it would tell little
    tied = found == found.max(axis=1, keepdims=True)
    alike = digits.numbers[QUERIES:][None, :] == digits.numbers[:QUERIES, None]
    assert float(np.mean((tied * alike).sum(axis=1) / tied.sum(axis=1))) > 0.7  # one in ten is chance


USEARCH_KINDS = dict(zip(Scalar, ("f32", "f16", "bf16", "i8", "b1"), strict=True))


@pytest.mark.parametrize("scalar", Scalar)
def test_usearch_finds_the_same(embedded: Embedded, scalar: Scalar) -> None:
    """Its exact search, over rows kept as they are, is no further away than ours."""
    usearch = pytest.importorskip("usearch.index")
    queries, others = embedded.embed(scalar)
    if scalar is Scalar.BFLOAT16:  # which NumPy cannot hand over; the index narrows them to the very same
        queries, others = widen(queries, scalar), widen(others, scalar)
    metric = usearch.MetricKind.Hamming if scalar is Scalar.BIT else usearch.MetricKind.IP
    index = usearch.Index(ndim=HIDDEN, metric=metric, dtype=USEARCH_KINDS[scalar])
    index.add(np.arange(len(others)), others)
    found = np.asarray(index.search(queries, 1, exact=True).keys).reshape(-1, 1).astype(np.int64)
    ours = similarities(embedded, scalar)
    theirs = np.take_along_axis(ours, found, axis=1)[:, 0]
    allowed = 0 if scalar is Scalar.BIT else 2 * ERRORS.get(scalar, 0) + FLOAT32_SUM
    assert (ours.max(axis=1) - theirs).max() <= allowed
