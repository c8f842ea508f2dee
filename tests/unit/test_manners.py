"""What Python does to objects behind the scenes: copies, forks, values past float32."""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import pytest

import uform
from tests.helpers.runs import make_trainer, ram


@pytest.mark.parametrize("kind", [uform.On, uform.DeferredOn])
def test_receivers_without_parts_do_not_crash(kind: Any) -> None:
    with pytest.raises(AttributeError):
        _ = kind.__new__(kind)._receiver.verb


def test_receivers_copy() -> None:
    executor = ram(1, 1)
    trainer = make_trainer()
    for receiver in (trainer.on(executor), trainer.deferred(executor)):
        assert repr(copy.copy(receiver)) == repr(receiver)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_forked_child_ends(threads: int) -> None:
    executor = uform.Executor.for_ram(threads=threads)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that hangs is killed, and the status tells
        del executor
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schedule": uform.Schedule(learning_rate=1e300)}, "Schedule.learning_rate"),
        ({"optimizer": uform.Optimizer(weight_decay=1e300)}, "Optimizer.weight_decay"),
        (
            {"objective": uform.Objective.CONTRASTIVE, "contrastive": uform.Contrastive(bias=1e39)},
            "Contrastive.bias",
        ),
    ],
)
def test_values_past_float32_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make_trainer(**changes)
