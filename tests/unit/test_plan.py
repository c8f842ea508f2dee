"""What a run would take, told before it is made: as the run then tells, and as the allocator counts."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import uform
from tests.helpers.processes import run_python
from tests.helpers.runs import HIDDEN, make_trainer, ram, shape
from uform import Contrastive, Negatives, Objective, Trainer

RUNS: dict[str, dict[str, Any]] = {
    "masked": {},
    "images": {"objective": Objective.JOINT, "batch": shape(images=True)},
    "prefixes": {
        "objective": Objective.CONTRASTIVE,
        "contrastive": Contrastive(matryoshka_dimensions=(16, 64), temperature_groups=3),
    },
    "edges": {
        "objective": Objective.CONTRASTIVE,
        "contrastive": Contrastive(negatives=Negatives.NAMED, max_edges_per_device=5000),
    },
    "deep": {"depth": 5, "hidden": 192},
}


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("name", RUNS)
def test_the_plan_is_what_the_run_tells(name: str, devices: int) -> None:
    given = {"depth": 1, "hidden": HIDDEN, "batch": shape(), **RUNS[name]}
    planned = Trainer.plan_ram(ram(devices), **given)
    told = Trainer.init_ram(ram(devices), **given).describe()
    bytes_of = planned["planned_bytes_per_device"]
    assert bytes_of == told["planned_bytes_per_device"]
    assert (planned["devices"], planned["parameter_count"]) == (devices, told["parameter_count"])
    assert bytes_of["total"] == sum(size for purpose, size in bytes_of.items() if purpose != "total")


def test_what_derives_is_planned_as_derived() -> None:
    few = Trainer.plan_ram(ram(), depth=1, hidden=HIDDEN, batch=shape(rows=8))
    many = Trainer.plan_ram(ram(), depth=1, hidden=HIDDEN, batch=shape(rows=16))
    assert few["parameter_count"] == many["parameter_count"]
    for purpose in ("parameters", "gradients"):
        assert few["planned_bytes_per_device"][purpose] == many["planned_bytes_per_device"][purpose] > 0
    assert few["planned_bytes_per_device"]["staging"] < many["planned_bytes_per_device"]["staging"]


def test_a_run_that_goes_on_is_planned_from_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    trainer = make_trainer(depth=2, objective=Objective.JOINT, batch=shape(images=True))
    trainer.save(path)
    planned = Trainer.plan_ram(ram(), resume=path)
    assert planned["planned_bytes_per_device"] == trainer.describe()["planned_bytes_per_device"]
    with pytest.raises(ValueError, match="depth"):
        Trainer.plan_ram(ram(), resume=path, depth=3)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(OSError, match="checkpoint"):
        Trainer.plan_ram(ram(), resume=path)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"hidden": 65}, ValueError, "hidden"),
        ({"batch": uform.BatchShape(max_rows_per_device=-4)}, ValueError, "max_rows_per_device"),
        ({"optimizer": 3}, TypeError, "optimizer"),
        ({"mesh": 3}, TypeError, "mesh"),
        ({"plugins": {"nobody": None}}, ValueError, "nobody"),
    ],
)
def test_what_init_refuses_the_plan_refuses_alike(changes: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match) as planned:
        Trainer.plan_ram(ram(), **changes)
    with pytest.raises(error, match=match) as made:
        Trainer.init_ram(ram(), **changes)
    assert str(planned.value) == str(made.value)
    with pytest.raises(TypeError, match="executor"):
        Trainer.plan_ram(None)  # type: ignore[arg-type]


def test_a_plan_for_gpus_needs_them() -> None:
    """With the VRAM backend an executor on RAM is the wrong one; without it no executor is right."""
    expected = ValueError if uform.show_config()["vram"] else uform.DeviceError
    with pytest.raises(expected, match="executor: it is on RAM"):
        Trainer.plan_vram(ram())


def test_the_keywords_are_those_of_init() -> None:
    for kind in ("ram", "vram"):
        made = inspect.signature(getattr(Trainer, f"init_{kind}")).parameters
        planned = inspect.signature(getattr(Trainer, f"plan_{kind}")).parameters
        assert list(planned.values()) == list(made.values())


def test_no_progress_is_told() -> None:
    def progress(done: int, total: int) -> bool:
        raise AssertionError(f"{done} of {total}")

    Trainer.plan_ram(ram(), depth=1, hidden=HIDDEN, batch=shape(), progress=progress)


def test_what_init_takes_is_what_was_planned() -> None:
    """Counted by the C library's allocator in a process of its own, with a run whose tables for packing are small."""
    counted = run_python(
        """
        import json
        import uform
        from tests.unit.test_leaks import allocated_bytes
        executor = uform.Executor.for_ram(devices=2, threads=1)
        given = dict(depth=4, hidden=256, batch=uform.BatchShape(max_rows_per_device=16, max_columns_per_row=256),
                     objective=uform.Objective.JOINT)
        uform.Trainer.init_ram(executor, depth=1, hidden=64, batch=uform.BatchShape(max_rows_per_device=4)).close()
        before = allocated_bytes()
        planned = uform.Trainer.plan_ram(executor, **given)
        after_plan = allocated_bytes()
        trainer = uform.Trainer.init_ram(executor, **given)
        print(json.dumps([planned, after_plan - before, allocated_bytes() - after_plan]))
        """
    )
    planned, by_plan, by_init = counted
    whole = 2 * planned["planned_bytes_per_device"]["total"] + planned["planned_host_bytes"]["total"]
    assert by_plan < 64 << 10
    assert by_init == pytest.approx(whole, rel=0.01)
