"""Late interaction against the oracle: given token vectors, and whole steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import uform
from tests.helpers import reference
from tests.helpers.calls import Call, relate
from tests.helpers.reference import GRADIENTS, VALUES, relative_error
from tests.helpers.runs import make_trainer, picture, ram, read_all, shape, spread, unit_vectors
from tests.oracle import late_interaction as oracle
from tests.oracle.contrastive import Form, PairLoss
from tests.oracle.optimizer import global_norm
from tests.oracle.pairs import AmbientScope, Negatives
from tests.oracle.relations import Relations
from uform import Contrastive, LateInteraction, Objective, PairLossForm

FORMS = [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID]
WEIGHTS = st.sampled_from([0.0, 0.25, 1.0, 3.0])


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Everything that a late-interaction loss over given vectors may be asked."""
    count = draw(st.integers(1, 8))
    each: dict[str, Any] = {"min_size": count, "max_size": count}
    sides = draw(st.lists(st.integers(0, 3), **each))
    lengths = [draw(st.integers(1 if side else 0, 5)) for side in sides]
    item = st.integers(0, count - 1)

    def edges(weight: st.SearchStrategy[float]) -> Any:
        return tuple(draw(st.lists(st.tuples(item, item, weight), max_size=2 * count)))

    sigmoid = draw(st.booleans())
    return {
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64),
        "tokens": unit_vectors(max(sum(lengths), 1), draw(st.sampled_from([1, 2, 8, 33])), draw(st.integers(0, 999)))[
            : sum(lengths)
        ],
        "sides": sides,
        "relations": Relations(edges(WEIGHTS), edges(WEIGHTS), edges(st.just(1.0))),
        "form": Form.SIGMOID if sigmoid else draw(st.sampled_from([Form.BALANCED, Form.RANKED])),
        "negatives": draw(st.sampled_from(list(Negatives))),
        "scope": draw(st.sampled_from(list(AmbientScope))),
        "ambient_weight": draw(st.sampled_from([0.25, 1.0, 0.0])),
        "modalities": draw(st.lists(st.integers(0, 3), **each)),
        "inverse_temperature": draw(st.sampled_from([1.0, 4.0, 20.0, 90.0])),
        "bias": draw(st.sampled_from([-10.0, -1.0, 2.0])) if sigmoid else 0.0,
        "span": draw(st.sampled_from([0, 1, 2, 3])),
    }


def library(problem: dict[str, Any]) -> uform.losses.PairLoss:
    relations = problem["relations"]
    found: uform.losses.PairLoss = uform.losses.late_interaction(
        ram(),
        problem["tokens"],
        problem["offsets"],
        sides=[uform.LateInteractionSide(side) for side in problem["sides"]],
        relations=relate(
            len(problem["sides"]), attract=relations.attract, repel=relations.repel, ignore=relations.ignore
        ),
        late_interaction=LateInteraction(
            inverse_temperature=problem["inverse_temperature"],
            bias=problem["bias"],
            pair_loss=PairLossForm(problem["form"]),
            max_query_span=problem["span"],
        ),
        contrastive=Contrastive(
            negatives=uform.Negatives(problem["negatives"]),
            ambient_repulsion_weight=problem["ambient_weight"] or -1.0,
            ambient_scope=uform.AmbientScope(problem["scope"]),
        ),
        modalities=[uform.Modality(modality) for modality in problem["modalities"]],
    )
    return found


def expected_of(problem: dict[str, Any]) -> PairLoss:
    pairs = oracle.item_pairs(
        problem["relations"],
        problem["sides"],
        negatives=problem["negatives"],
        scope=problem["scope"],
        ambient_weight=problem["ambient_weight"],
        modalities=problem["modalities"],
    )
    return oracle.evaluate(
        problem["tokens"],
        problem["offsets"].astype(int),
        pairs=pairs,
        form=problem["form"],
        inverse_temperature=problem["inverse_temperature"],
        bias=problem["bias"],
        span=problem["span"] or 1 << 30,
    )


def close(found: Any, expected: Any, scale: float) -> None:
    """Within the gradient's tolerance; what cancels to almost nothing is held to its summands' size."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= GRADIENTS * np.linalg.norm(expected) + 1e-6 * scale


@seed(21)
@settings(max_examples=200, deadline=None, database=None)
@given(problems())
def test_given_vectors_in_all_forms(problem: dict[str, Any]) -> None:
    found, expected = library(problem), expected_of(problem)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_allclose(found.row_losses, expected.row_losses, rtol=VALUES, atol=1e-5)
    assert found.loss == pytest.approx(expected.loss, rel=VALUES, abs=1e-6)
    close(found.gradient, expected.gradient, problem["inverse_temperature"])
    close(found.log_inverse_temperature_gradient, expected.log_inverse_temperature_gradient, 10.0)
    close(found.bias_gradient, expected.bias_gradient, 1.0)


# Queries, documents, an item that is both, one that is neither, an empty document, an image; a query that is cut.
MIXED = Call(
    contents=[
        "a query that is longer than the span is",
        "a document about queries",
        "another one",
        picture(8, 8, seed=3),
        "both a query and a document",
        "",
        "neither",
        "what is a document?",
    ],
    sides=[1, 2, 2, 2, 3, 2, 0, 1],
    attract=((0, 1, 1.0), (0, 4, 0.5), (4, 2, 2.0), (7, 1, 1.0), (1, 0, 1.0), (7, 3, 0.5)),
    repel=((0, 2, 0.75), (4, 5, 0.25), (7, 5, 2.0)),
    ignore=((7, 4, 1.0), (0, 5, 1.0)),
)
BATCH = shape(rows=8, columns=48, images=True)


def run_of(objective: Objective = Objective.CONTRASTIVE, *, devices: int = 1, **fields: Any) -> uform.Trainer:
    given: dict[str, Any] = {"late_interaction": LateInteraction(width=24, max_query_span=16), **fields}
    trainer = make_trainer(devices=devices, depth=2, batch=BATCH, objective=objective, seed=9, **given)
    spread(trainer)
    return trainer


def compare(trainer: uform.Trainer, call: Call, number: int = 0) -> None:
    """One step against the oracle's from the same parameters."""
    expected = reference.run(trainer, call, number)
    weight = trainer.describe()["late_interaction"]["weight"]
    answer = call.step(trainer)
    assert answer.stats.late_interaction_loss == pytest.approx(
        weight * expected.losses["late_interaction"], rel=VALUES, abs=1e-9
    )
    assert answer.stats.loss == pytest.approx(expected.loss, rel=VALUES)
    for name, gradient in read_all(trainer, "gradient").items():
        assert relative_error(gradient, expected.gradients[name]) < GRADIENTS, name
    assert answer.stats.gradient_norm == pytest.approx(global_norm(expected.gradients), rel=GRADIENTS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("objective", list(Objective))
def test_steps_in_every_form(objective: Objective, form: PairLossForm) -> None:
    compare(run_of(objective, late_interaction=LateInteraction(width=24, max_query_span=16, pair_loss=form)), MIXED)


@pytest.mark.parametrize(
    "contrastive",
    [
        Contrastive(negatives=uform.Negatives.NAMED),
        *(Contrastive(ambient_scope=scope, ambient_repulsion_weight=0.3) for scope in uform.AmbientScope),
    ],
    ids=str,
)
def test_negatives_are_those_of_the_contrastive_objective(contrastive: Contrastive) -> None:
    compare(run_of(contrastive=contrastive), MIXED)


@pytest.mark.parametrize("devices", [2, 3])
def test_several_devices(devices: int) -> None:
    compare(run_of(Objective.JOINT, devices=devices), MIXED)


@pytest.mark.parametrize("weight", [0.25, -1.0])
def test_weights(weight: float) -> None:
    compare(run_of(late_interaction=LateInteraction(width=24, weight=weight)), MIXED)


def test_learned_temperature_and_bias() -> None:
    trainer = run_of(
        late_interaction=LateInteraction(width=24, bias=-3.0, inverse_temperature=5.0),
        schedule=uform.Schedule(learning_rate=1e-2, warmup_steps=-1),
    )
    described = trainer.describe()["late_interaction"]
    assert described["pair_loss"] == PairLossForm.SIGMOID
    before = {name: value for name, value in read_all(trainer).items() if name.startswith("late_interaction.")}
    compare(trainer, MIXED)
    after = read_all(trainer)
    assert all(not np.array_equal(after[name], value) for name, value in before.items())


def test_no_row_counts() -> None:
    compare(run_of(), replace(MIXED, sides=[2] * 8))
    compare(run_of(), replace(MIXED, sides=None))
    compare(run_of(), replace(MIXED, attract=((1, 0, 1.0),), repel=(), ignore=()))


def test_a_run_without_the_contrastive_objective_takes_its_settings() -> None:
    named = run_of(Objective.MASKED, contrastive=Contrastive(negatives=uform.Negatives.NAMED))
    assert named.describe()["late_interaction"]["pair_loss"] == PairLossForm.RANKED
    ambient = run_of(Objective.MASKED)
    assert ambient.describe()["late_interaction"]["pair_loss"] == PairLossForm.BALANCED
    compare(ambient, MIXED)
    # Nothing opposes what is attracted but what is repelled by name.
    alone = replace(MIXED, repel=(), ignore=())
    assert alone.step(named).stats.late_interaction_loss == 0
