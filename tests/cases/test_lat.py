"""The given cases of late interaction."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.runs import make_trainer, ram, shape, spread, unit_vectors
from uform import LateInteraction, LateInteractionSide, Objective, PairLossForm

QUERY, DOCUMENT = LateInteractionSide.QUERY, LateInteractionSide.DOCUMENT


def score(query: Any, document: Any, inverse_temperature: float = 1.0) -> float:
    """The score of a pair, out of the library's loss: with one repelled document SIGMOID's is softplus(score)."""
    tokens = np.concatenate([query, document]).astype(np.float32)
    found = uform.losses.late_interaction(
        ram(),
        tokens,
        [0, len(query), len(tokens)],
        sides=[QUERY, DOCUMENT],
        relations=uform.Relations(repel=uform.Edges(offsets=[0, 1, 1], ids=[1])),
        late_interaction=LateInteraction(
            pair_loss=PairLossForm.SIGMOID, bias=1e-30, inverse_temperature=inverse_temperature
        ),
    )
    return math.log(math.expm1(found.loss))


def test_LAT_01_padding_never_wins() -> None:
    document = [(-1.0, 0.0), (-0.6, 0.8)]
    assert score([(1.0, 0.0)], document) == pytest.approx(-0.6, rel=1e-5)
    # Rows that lie between two items belong to none: here the document is followed by zeros that are another item's.
    tokens = np.array([(1.0, 0.0), *document, *[(0.0, 0.0)] * 6], np.float32)
    found = uform.losses.late_interaction(
        ram(),
        tokens,
        [0, 1, 3, 9],
        sides=[QUERY, DOCUMENT, LateInteractionSide.NONE],
        relations=uform.Relations(repel=uform.Edges(offsets=[0, 1, 1, 1], ids=[1])),
        late_interaction=LateInteraction(pair_loss=PairLossForm.SIGMOID, bias=1e-30, inverse_temperature=1.0),
    )
    assert math.log(math.expm1(found.loss)) == pytest.approx(-0.6, rel=1e-5)
    assert found.gradient[1].tolist() == [0, 0]


def test_LAT_03_scores_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    trainer = late_trainer()
    trainer.save(tmp_path / "run")
    model = uform.Model.init_ram(ram(), tmp_path / "run")
    query, document, other = "what is it", "it is a document", "a much longer one " * 10
    alone = tokens_of(model, [query, document])
    beside = tokens_of(model, [query, document, other])
    for one, two in zip(alone, beside, strict=False):
        np.testing.assert_allclose(one, two, atol=1e-5)
    assert maxsim(alone[0], alone[1]) == pytest.approx(maxsim(beside[0], beside[1]), abs=1e-5)
    losses = []
    for contents in ([query, document], [query, document, other]):
        call = Call(contents, sides=[1, 2, 0][: len(contents)], attract=((0, 1, 1.0),))
        losses.append(call.step(late_trainer(pair_loss=PairLossForm.SIGMOID)).stats.late_interaction_loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_LAT_05_long_queries_are_cut_and_counted() -> None:
    span = 20
    long, exact = "q" * (span + 50), "q" * (span - 1)  # the marker counts
    answers = []
    for query in (long, exact):
        call = Call([query, "a document", "another"], sides=[1, 2, 2], attract=((0, 1, 1.0),))
        answers.append(call.step(late_trainer(max_query_span=span)).stats)
    assert answers[0].extra["late_interaction.cut"] == 1
    assert answers[1].extra["late_interaction.cut"] == 0
    # All of the query is encoded, and its leading columns alone are compared.
    assert answers[0].late_interaction_loss != answers[1].late_interaction_loss
    tokens = unit_vectors(90, 8)
    cut = [
        uform.losses.late_interaction(
            ram(),
            np.concatenate([tokens[:length], tokens[70:]]),
            [0, length, length + 20],
            sides=[QUERY, DOCUMENT],
            relations=uform.Relations(repel=uform.Edges(offsets=[0, 1, 1], ids=[1])),
            late_interaction=LateInteraction(pair_loss=PairLossForm.SIGMOID, max_query_span=span),
        )
        for length in (70, span)
    ]
    assert cut[0].loss == cut[1].loss
    np.testing.assert_array_equal(cut[0].gradient[:span], cut[1].gradient[:span])
    assert not cut[0].gradient[span:70].any()


def test_LAT_07_an_empty_document() -> None:
    trainer = late_trainer()
    contents = ["a query", "the answer to the query", "", "third", "fourth", "fifth"]
    call = Call(contents, sides=[1, 2, 2, 2, 2, 2], attract=((0, 1, 1.0),))
    stats = call.step(trainer).stats
    assert math.isfinite(stats.late_interaction_loss)
    assert math.isfinite(stats.gradient_norm)
    # Its marker alone is compared, like any other vector: never more than 1.
    empty = unit_vectors(1, 8)
    assert score(unit_vectors(3, 8, seed=1), empty) <= 1
    with pytest.raises(ValueError, match="item 1 has a side and 0 token vectors"):
        score(unit_vectors(3, 8), np.zeros((0, 8)))


@pytest.mark.parametrize("devices", [1, 2])
def test_LAT_09_training_s_score_is_that_of_exported_vectors(tmp_path: Path, devices: int) -> None:
    trainer = late_trainer(devices=devices, pair_loss=PairLossForm.SIGMOID, bias=1e-30, max_query_span=12)
    spread(trainer)
    trainer.save(tmp_path / "run")
    model = uform.Model.init_ram(ram(devices), tmp_path / "run")
    texts = ["a query of more than twelve columns", "naïve 漢字", "another", "", "a query"]
    sides = [QUERY, DOCUMENT, DOCUMENT, DOCUMENT, QUERY]
    tape = model.embed_tokens([uform.Modality.TEXT] * 5, texts, sides=sides)
    assert [len(row) for row in tape] == [12, 1 + len("naïve 漢字".encode()), 8, 1, 8]
    norms = np.linalg.norm(np.concatenate(list(tape)), axis=1)
    np.testing.assert_allclose(norms, 1, atol=1e-5)
    expected = []
    for query in (0, 4):
        total = 0.0
        for document in (1, 2, 3):
            attracted = (query, document) in ((0, 1), (4, 2))
            value = 20.0 * maxsim(tape[query], tape[document])
            total += math.log1p(math.exp(-value if attracted else value))
        expected.append(total)
    call = Call(texts, sides=[int(side) for side in sides], attract=((0, 1, 1.0), (4, 2, 1.0)))
    assert call.step(trainer).stats.late_interaction_loss == pytest.approx(np.mean(expected), rel=1e-4)


def maxsim(query: Any, document: Any) -> float:
    return float(np.mean(np.max(np.asarray(query, np.float64) @ np.asarray(document, np.float64).T, axis=1)))


def tokens_of(model: uform.Model, texts: list[str]) -> list[Any]:
    return [np.array(row) for row in model.embed_tokens([uform.Modality.TEXT] * len(texts), texts)]


def late_trainer(*, devices: int = 1, **fields: Any) -> uform.Trainer:
    return make_trainer(
        devices=devices,
        batch=shape(rows=8, columns=256),
        objective=Objective.CONTRASTIVE,
        late_interaction=LateInteraction(width=32, **fields),
    )
