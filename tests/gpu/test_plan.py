"""What a run on GPUs would take, told before it is made: as the run then tells, and as the driver counts."""

from __future__ import annotations

from typing import Any

import pytest

import uform
from tests.helpers.cuda_driver import Driver
from uform import Objective, Trainer

pytestmark = pytest.mark.alone

GIVEN: dict[str, Any] = {
    "depth": 12,
    "hidden": 512,
    "objective": Objective.JOINT,
    "batch": uform.BatchShape(max_rows_per_device=64, max_columns_per_row=512, image=(16, 3)),
}


@pytest.mark.parametrize("count", [1, 2])
def test_what_init_takes_is_what_was_planned(count: int, gpu: uform.Executor) -> None:
    """Within 1 %; modules are loaded and streams have their own by then, as a run before has seen to."""
    executor, driver = uform.Executor.for_vram([0] * count), Driver()
    first = Trainer.init_vram(executor, **GIVEN)
    first.step([uform.Modality.TEXT] * 2, ["cat", "dog"], relations=uform.Relations(attract=([0, 1, 2], [1, 0])))
    first.close()
    before = driver.free_bytes()
    planned = Trainer.plan_vram(executor, **GIVEN)
    assert driver.free_bytes() == before
    made = Trainer.init_vram(executor, **GIVEN)
    taken = before - driver.free_bytes()
    bytes_of = planned["planned_bytes_per_device"]
    assert bytes_of == made.describe()["planned_bytes_per_device"]
    assert bytes_of["total"] == sum(size for purpose, size in bytes_of.items() if purpose != "total")
    assert taken == pytest.approx(count * bytes_of["total"], rel=0.01)
    made.close()
    assert driver.free_bytes() >= before  # the graphs of the run before may have gone meanwhile
