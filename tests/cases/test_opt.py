"""OPT: the schedule."""

from __future__ import annotations

import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.runs import make_trainer
from uform import Objective, Schedule

CALL = Call(["a", "b"])


def rates(steps: int, schedule: Schedule, *, devices: int = 1) -> list[float]:
    """The learning rates of the first steps, which have no loss, as nothing is attracted."""
    trainer = make_trainer(devices=devices, objective=Objective.CONTRASTIVE, schedule=schedule)
    found = []
    for step in range(1, steps + 1):
        stats = CALL.step(trainer).stats
        assert stats.step == step
        found.append(stats.learning_rate)
    return found


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_OPT_01_schedule_does_not_know_the_devices(devices: int) -> None:
    schedule = Schedule(learning_rate=1.0, min_learning_rate=-1.0, warmup_steps=10, steps=100)
    found = rates(105, schedule, devices=devices)
    assert [found[step - 1] for step in (5, 10, 40, 55, 100)] == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.0], abs=1e-9)
    assert found[100:] == [0.0] * 5


def test_the_floor_holds_after_the_last_step() -> None:
    found = rates(14, Schedule(learning_rate=0.5, min_learning_rate=0.125, warmup_steps=2, steps=10))
    assert found[:2] == pytest.approx([0.25, 0.5])
    assert found[9:] == pytest.approx([0.125] * 5)
    assert found[1:] == sorted(found[1:], reverse=True)


def test_derived_schedule() -> None:
    derived = make_trainer(schedule=Schedule(steps=400)).describe()["schedule"]
    assert derived["learning_rate"] == pytest.approx(3e-4)
    assert derived["min_learning_rate"] == pytest.approx(3e-5)
    assert (derived["warmup_steps"], derived["steps"]) == (20, 400)
    assert make_trainer().describe()["schedule"]["steps"] == 100000


def test_no_warmup_begins_at_the_peak() -> None:
    schedule = uform.Schedule(learning_rate=0.5, warmup_steps=-1, steps=1000)
    assert rates(1, schedule) == pytest.approx([0.5], rel=1e-4)
