"""CON: the contrastive loss and relation edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers import f1
from tests.helpers.calls import Call, pairs_both_ways
from tests.helpers.f1 import DIGITS, FORMS, OTHERS, PAIRED, SOFTMAX_FORMS
from tests.helpers.runs import make_trainer, ram, read_all, spread, unit_vectors
from uform import AmbientScope, Contrastive, Negatives, Objective, PairLossForm

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


@pytest.mark.parametrize("form", SOFTMAX_FORMS)
def test_F1_row_losses(form: PairLossForm) -> None:
    for result in (
        f1.loss(pair_loss=form),
        f1.loss(pair_loss=form, negatives=Negatives.NAMED, repel=OTHERS),
    ):
        np.testing.assert_allclose(result.row_losses, f1.ROWS, atol=DIGITS)
        assert result.loss == pytest.approx(f1.MEAN, abs=DIGITS)
        assert list(result.rows) == [0, 1, 2, 3]
    every = f1.loss(pair_loss=form, ambient_scope=AmbientScope.EVERY)
    assert every.loss == pytest.approx(0.786593, abs=DIGITS)


@pytest.mark.parametrize("form", SOFTMAX_FORMS)
def test_CON_01_twin_of_a_positive_is_no_negative(form: PairLossForm) -> None:
    result = f1.loss(pair_loss=form, ignore=((1, 6, 1.0), (2, 5, 1.0)))
    assert result.loss == pytest.approx(0.273940, abs=DIGITS)


def test_CON_01_twin_texts_in_a_step() -> None:
    texts = ["anchor", "another anchor", "twin", "twin"]
    attract = ((0, 2, 1.0), (1, 3, 1.0))
    losses = []
    for ignore in ((), ((0, 3, 1.0), (1, 2, 1.0))):
        trainer = make_trainer(
            objective=Objective.CONTRASTIVE, contrastive=Contrastive(ambient_scope=AmbientScope.TARGETS)
        )
        losses.append(Call(texts, attract=attract, ignore=ignore).step(trainer).stats.contrastive_loss)
    assert losses[0] == pytest.approx(np.log(2.0), rel=1e-5)
    assert losses[1] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_CON_03_row_without_pairs_adds_nothing(form: PairLossForm) -> None:
    blocked = tuple((0, other, 1.0) for other in range(1, 8))
    settings: dict[str, Any] = {"pair_loss": form, "negatives": Negatives.NAMED, "repel": OTHERS}
    whole, result = f1.loss(**settings), f1.loss(**settings, ignore=blocked)
    assert list(result.rows) == [1, 2, 3]
    np.testing.assert_allclose(result.row_losses, whole.row_losses[1:], rtol=1e-6)
    assert result.loss == pytest.approx(float(np.mean(whole.row_losses[1:])))
    np.testing.assert_array_equal(result.gradient[0], 0.0)
    assert np.all(np.isfinite(result.gradient))


def test_CON_03_in_a_step() -> None:
    trainer = make_trainer(objective=Objective.CONTRASTIVE)
    ignore = tuple((0, other, 1.0) for other in range(1, 4))
    answer = Call(WORDS[:4], attract=((1, 2, 1.0), (2, 1, 1.0), (3, 1, 1.0)), ignore=ignore).step(trainer)
    assert np.isfinite(answer.stats.loss)
    assert answer.stats.loss > 0


@pytest.mark.parametrize(("form", "expected"), [(PairLossForm.BALANCED, 1.099458), (PairLossForm.RANKED, 0.694415)])
def test_CON_05_several_positives(form: PairLossForm, expected: float) -> None:
    both = (*PAIRED, (1, 6, 1.0))
    ambient = f1.loss(pair_loss=form, attract=both)
    named = f1.loss(pair_loss=form, attract=both, negatives=Negatives.NAMED, repel=OTHERS)
    assert ambient.row_losses[1] == pytest.approx(expected, abs=DIGITS)
    assert named.row_losses[1] == pytest.approx(expected, abs=DIGITS)


def test_CON_07_groups_without_shared_negatives_on_two_devices() -> None:
    anchors, positives = 6, 6
    groups = [0] + [1] * 5
    attract = tuple((row, anchors + row, 1.0) for row in range(anchors))
    across = tuple(
        (row, column, 1.0)
        for row in range(anchors + positives)
        for column in range(anchors + positives)
        if groups[row % anchors] != groups[column % anchors]
    )
    call = Call([f"{word} {side}" for side in "ab" for word in WORDS[:6]], attract=attract, ignore=across)
    results = []
    for devices in (1, 2):
        trainer = make_trainer(
            devices=devices,
            objective=Objective.CONTRASTIVE,
            contrastive=Contrastive(max_edges_per_device=128),
        )
        spread(trainer)
        stats = call.step(trainer).stats
        results.append((stats.contrastive_loss, read_all(trainer, "gradient")))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-6)
    for name, gradient in results[0][1].items():
        np.testing.assert_allclose(results[1][1][name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("form", FORMS)
def test_CON_09_lone_pair(form: PairLossForm) -> None:
    vectors = np.array([[1.0, 0.0], [0.6, 0.8]], np.float32)
    attract = ((0, 1, 1.0),)
    sigmoid = form == PairLossForm.SIGMOID
    result = f1.loss(
        embeddings=vectors, attract=attract, pair_loss=form, inverse_temperature=2.0, bias=-1.0 if sigmoid else 0.0
    )
    if sigmoid:
        assert result.loss == pytest.approx(np.log1p(np.exp(-(2 * 0.6 - 1))), rel=1e-5)
    else:
        assert result.loss == pytest.approx(0.0, abs=1e-6)
        np.testing.assert_allclose(result.gradient, 0.0, atol=1e-6)
    trainer = make_trainer(objective=Objective.CONTRASTIVE, contrastive=Contrastive(pair_loss=form))
    for step in range(1, 4):  # two batches of four pairs, then the last of one
        pairs = 4 if step < 3 else 1
        texts = [f"{word} {side}" for side in "ab" for word in WORDS[:pairs]]
        stats = Call(texts, attract=pairs_both_ways(pairs)).step(trainer).stats
        assert stats.step == step
        assert np.isfinite(stats.loss)
    if not sigmoid:
        assert stats.contrastive_loss == pytest.approx(0.0, abs=1e-6)
        assert stats.gradient_norm == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("scale", [0.9, 9.0])
@pytest.mark.parametrize("form", FORMS)
def test_CON_11_one_weight_for_all(form: PairLossForm, scale: float) -> None:
    """Attracted weights are shares of their row, so that the softmax forms ignore a common factor; SIGMOID scales."""
    sigmoid = form == PairLossForm.SIGMOID
    settings: dict[str, Any] = {"pair_loss": form, "negatives": Negatives.NAMED}
    attract = tuple((row, candidate, scale) for row, candidate, _ in PAIRED)
    repel = tuple((row, candidate, scale) for row, candidate, _ in OTHERS) if sigmoid else OTHERS
    plain = f1.loss(repel=OTHERS, **settings)
    weighted = f1.loss(attract=attract, repel=repel, **settings)
    factor = scale if sigmoid else 1.0
    assert weighted.loss == pytest.approx(factor * plain.loss, rel=1e-5)
    np.testing.assert_allclose(weighted.gradient, factor * plain.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("set_name", ["attract", "repel", "ignore"])
def test_CON_13_wrong_offsets_are_refused(set_name: str) -> None:
    trainer = make_trainer(objective=Objective.CONTRASTIVE)
    modalities, contents = [uform.Modality.TEXT] * 2, ["a", "b"]
    messages = set()
    for offsets, ids in (([0, 0, 0], [1, 0, 1]), ([0, 2, 1], [1]), ([0, 1], [1]), ([0, 1, 1, 1], [1])):
        edges = (np.array(offsets, np.uint64), np.array(ids, np.uint32))
        with pytest.raises(ValueError, match=rf"{set_name}\.offsets") as refusal:
            trainer.step(modalities, contents, relations=uform.Relations(**{set_name: edges}))
        messages.add(str(refusal.value))
        with pytest.raises(ValueError, match=rf"{set_name}\.offsets"):
            uform.losses.contrastive(ram(), unit_vectors(2, 4), relations=uform.Relations(**{set_name: edges}))
    assert len(messages) == 4
    assert Call(contents, attract=((0, 1, 1.0),)).step(trainer).stats.step == 1


def test_CON_13_wrong_ids_and_weights_are_refused() -> None:
    trainer = make_trainer(objective=Objective.CONTRASTIVE, contrastive=Contrastive(max_edges_per_device=3))
    modalities, contents = [uform.Modality.TEXT] * 2, ["a", "b"]
    offsets, ids = np.array([0, 1, 2], np.uint64), np.array([1, 0], np.uint32)
    wrong: list[tuple[str, dict[str, Any]]] = [
        (r"ids\[1\] is 2", {"attract": (offsets, np.array([1, 2], np.uint32))}),
        (r"weights\[0\] is -1", {"repel": (offsets, ids, np.array([-1.0, 1.0], np.float32))}),
        (r"weights\[1\] is nan", {"attract": (offsets, ids, np.array([1.0, np.nan], np.float32))}),
        (r"weights\[1\] is inf", {"attract": (offsets, ids, np.array([1.0, np.inf], np.float32))}),
        (r"weights has 1 entries", {"attract": (offsets, ids, np.array([1.0], np.float32))}),
        (r"4 edges.*max_edges_per_device", {"attract": (offsets, ids), "repel": (offsets, ids)}),
    ]
    for message, sets in wrong:
        with pytest.raises(ValueError, match=message):
            trainer.step(modalities, contents, relations=uform.Relations(**sets))
    with pytest.raises(ValueError, match=r"ignore\.weights"):
        uform.Relations(ignore=(offsets, ids, np.ones(2, np.float32)))
    assert Call(contents).step(trainer).stats.step == 1


def test_CON_15_no_edges_at_all() -> None:
    trainer = make_trainer(objective=Objective.CONTRASTIVE)
    modalities, contents = [uform.Modality.TEXT], ["alone"]
    none, stats = np.zeros(0, np.uint32), uform.TrainerStepStats()
    relations = uform.Relations(attract=(np.array([0, 0], np.uint64), none))
    trainer.step(modalities, contents, relations=relations, stats=stats)
    assert (stats.step, stats.loss, stats.gradient_norm) == (1, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"attract\.offsets\[0\] is 123"):
        trainer.step(modalities, contents, relations=uform.Relations(attract=(np.array([123, 0], np.uint64), none)))
    empty = f1.loss(attract=())
    assert empty.loss == 0.0
    assert len(empty.rows) == len(empty.row_losses) == 0
    np.testing.assert_array_equal(empty.gradient, np.zeros((8, 2), np.float32))
