"""Choices against the oracle: the operation, and whole steps that choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import autograd.numpy as anp
import numpy as np
import numpy.typing as npt
import pytest
from autograd import grad

import uform
from tests.helpers.calls import Call
from tests.helpers.choosing import BEFORE, choices_head
from tests.oracle import choices
from tests.parity.harness import GRADIENTS, VALUES, assert_close, run_on_threads
from tests.parity.test_step import BATCH, MIXED, compare, run_of
from uform import Objective

Array = npt.NDArray[Any]

COUNTS = {"none": [], "one of one": [1], "few": [3, 4], "uneven": [33, 1, 200, 32, 31], "many": [1, 2, 3, 4, 5] * 90}


def drawn_targets(rng: np.random.Generator, counts: list[int]) -> list[Array]:
    """By turns one choice alone, all of them, and none."""
    rows = []
    for item, count in enumerate(counts):
        row = np.zeros(count)
        if item % 3 == 0:
            row[rng.integers(count)] = 1.0
        elif item % 3 == 1:
            row = rng.dirichlet(np.ones(count))
        rows.append(row.astype(np.float32))
    return rows


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
@pytest.mark.parametrize(("hidden", "sharpness"), [(64, 1.0), (67, 30.0)])
def test_choices_head(counts: list[int], hidden: int, sharpness: float) -> None:
    rng = np.random.default_rng(12)
    states = [rng.normal(size=(count, hidden)).astype(np.float32) for count in counts]
    vector = (rng.normal(size=hidden) / np.sqrt(hidden)).astype(np.float32)
    log_inverse_temperature = float(np.float32(np.log(sharpness)))
    targets = drawn_targets(rng, counts)
    scale, weight = np.float32(1 / (len(counts) + 2)), np.float32(0.7)

    def case(operations: Any, **fields: Any) -> dict[str, Array]:
        fields = {"targets": targets, "scale": scale, "weight": weight, **fields}
        return choices_head(operations, states, vector, log_inverse_temperature=log_inverse_temperature, **fields)

    result = run_on_threads(case)
    exact = ([state.astype(np.float64) for state in states], vector.astype(np.float64), log_inverse_temperature)

    def value(variables: Any) -> Any:
        own, shared, temperature = variables
        scores = [choices.logits(state, shared, temperature) for state in own]
        chosen = sum(bool(np.any(row)) for row in targets)
        return float(scale) * chosen * choices.loss(scores, targets) + 0.0 * anp.sum(shared) + 0.0 * temperature

    assert_close(result["loss"], [BEFORE + float(value(exact))], VALUES, "loss")
    scores = [choices.logits(state, *exact[1:]) for state in exact[0]]
    expected = np.concatenate([np.zeros(0), *(choices.probabilities(score) for score in scores)])
    assert_close(result["probabilities"], expected, VALUES, "probabilities")
    rows, shared, temperature = grad(value)(exact)
    rows_gradient = np.concatenate([np.zeros((0, hidden)), *rows])
    assert_close(result["rows_gradient"], float(weight) * rows_gradient, GRADIENTS, "rows")
    bound = GRADIENTS * np.linalg.norm(shared) + 6e-8 * np.sqrt(hidden)  # it lies on top of 0.25 in float32
    assert np.linalg.norm(result["vector_gradient"] - BEFORE - float(weight) * shared) <= bound
    added = float(result["log_inverse_temperature_gradient"][0]) - BEFORE
    assert added == pytest.approx(float(weight) * float(temperature), rel=GRADIENTS, abs=1e-7)

    alone = run_on_threads(lambda operations: case(operations, backward=False))
    inferred = run_on_threads(lambda operations: case(operations, targets=None))
    assert alone["loss"].tobytes() == result["loss"].tobytes()
    assert inferred["probabilities"].tobytes() == result["probabilities"].tobytes()


def test_an_impossible_choice_that_is_no_target_costs_nothing() -> None:
    vector = np.zeros(8, dtype=np.float32)
    vector[0] = 1.0
    states = [np.outer([1e4, -1e4], vector)]
    result = run_on_threads(lambda operations: choices_head(operations, states, vector, targets=[np.array([1.0, 0.0])]))
    assert result["loss"][0] == BEFORE
    np.testing.assert_array_equal(result["probabilities"], [1.0, 0.0])
    np.testing.assert_array_equal(result["rows_gradient"], 0.0)


# A text that chooses, an image, one that abstains by zeros, one by an empty row, one without choices, a choice of no
# bytes, a distribution, and a choice of one.
CHOOSING = replace(
    MIXED,
    groups=None,
    choices=[["yes", "no", "maybe"], [], ["a", "", "b"], ["x", "y"], ["", "z"], [], [], [], ["p"]],
    choice_targets=[[0, 1, 0], [], [0.25, 0.5, 0.25], [0, 0], [0.125, 0.875], [], [], [], [1]],
)


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("objective", list(Objective))
def test_steps_that_choose(objective: Objective, devices: int) -> None:
    settings = uform.Choices(weight=0.7, inverse_temperature=2.0, label_smoothing=0.1)
    compare(run_of(objective, devices=devices, choices=settings), CHOOSING)


@pytest.mark.parametrize(
    "settings",
    [
        uform.Choices(),
        uform.Choices(weight=-1.0),
        uform.Choices(label_smoothing=1.0),
        uform.Choices(inverse_temperature=0.01),
        uform.Choices(inverse_temperature=100.0),
    ],
    ids=["derived", "weighs nothing", "smoothed to the full", "soft", "sharp"],
)
def test_settings(settings: uform.Choices) -> None:
    compare(run_of(Objective.MASKED, choices=settings), CHOOSING)


def test_the_same_choices_for_every_text() -> None:
    rows = [[0, 1], [], [1, 0], [0.5, 0.5], [0, 0], [], [], [], [0, 1]]
    compare(
        run_of(Objective.JOINT, choices=uform.Choices()), replace(CHOOSING, choices=["yes", "no"], choice_targets=rows)
    )


def test_nobody_chooses() -> None:
    trainer = run_of(Objective.CONTRASTIVE, choices=uform.Choices())
    compare(trainer, replace(CHOOSING, choice_targets=[[]] * 9))
    compare(trainer, replace(CHOOSING, choices=None, choice_targets=None))
    for name in ("vector", "log_inverse_temperature"):
        np.testing.assert_array_equal(trainer.read(f"choices.{name}", "gradient"), 0.0)


def test_a_text_is_cut_and_its_choices_are_not() -> None:
    trainer = run_of(Objective.JOINT, choices=uform.Choices())
    assert BATCH.max_columns_per_row == 40
    call = Call(["x" * 30, "y" * 30, "z" * 39], choices=[["12345", "678"], [], ["a" * 17, "b" * 19]])
    call = replace(call, choice_targets=[[1, 0], [], [0, 1]])
    compare(trainer, call)  # the first keeps 28 bytes, the last none
    assert call.step(trainer).stats.truncated == 2
