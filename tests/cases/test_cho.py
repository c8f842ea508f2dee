"""CHO: choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.choosing import BEFORE, choices_head
from tests.helpers.runs import make_trainer, spread
from tests.parity.harness import backend

Array = npt.NDArray[Any]
DIGITS = 6e-7
HIDDEN = 64


def loss_of(*items: tuple[list[float], int]) -> float:
    """The mean loss of items with the given scores, each of which answers one of them."""
    vector = np.zeros(HIDDEN)
    vector[0] = 1.0
    states = [np.outer(scores, vector) for scores, _ in items]
    targets = [np.eye(len(scores))[answer] for scores, answer in items]
    result = choices_head(backend(), states, vector, targets=targets, scale=1 / len(items))
    return float(result["loss"][0]) - BEFORE


def test_CHO_01_a_choice_that_is_not_there_counts_nothing() -> None:
    alone = loss_of(([2.0, 1.0, 0.0], 0))
    assert alone == pytest.approx(0.407606, abs=DIGITS)
    other = loss_of(([0.0, 0.0, 0.0, 0.0], 1))
    assert other == pytest.approx(np.log(4.0), abs=DIGITS)
    assert loss_of(([2.0, 1.0, 0.0], 0), ([0.0, 0.0, 0.0, 0.0], 1)) == pytest.approx((alone + other) / 2, abs=DIGITS)


@pytest.mark.parametrize("devices", [1, 2])
def test_CHO_01_items_of_different_counts_in_a_step(devices: int) -> None:
    """An item's own loss is the same beside items that are offered more, and beside items that abstain."""
    few, many = ["yes", "no", "it depends"], ["a", "b", "c", "d", "e", "f"]

    def loss(*items: tuple[list[str], list[float]]) -> float:
        trainer = make_trainer(devices=devices, choices=uform.Choices())
        spread(trainer)
        texts = ["is it so", "which one", "nothing to say"][: len(items)]
        own, targets = [choices for choices, _ in items], [row for _, row in items]
        return Call(texts, choices=own, choice_targets=targets).step(trainer).stats.choices_loss

    alone = loss((few, [1, 0, 0]))
    other = loss((few, []), (many, [0, 0, 0, 1, 0, 0]))
    assert loss((few, [1, 0, 0]), (many, [0, 0, 0, 1, 0, 0])) == pytest.approx((alone + other) / 2, rel=1e-5)
    assert loss((few, [1, 0, 0]), (many, [0] * 6), ([], [])) == pytest.approx(alone, rel=1e-5)


def test_CHO_03_more_choices_move_the_loss() -> None:
    losses = [loss_of((scores, 0)) for scores in ([2.0, 1.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0, 1.0])]
    np.testing.assert_allclose(losses, [0.313262, 0.407606, 0.626523], atol=DIGITS)
