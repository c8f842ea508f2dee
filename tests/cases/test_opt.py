"""OPT: the schedule and the order of data."""

from __future__ import annotations

import inspect
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.runs import make_trainer
from uform import Objective, Schedule
from uform.data import batches, order

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


def shares(count: int, hosts: int, **keywords: Any) -> list[list[int]]:
    return [order(count, host_domain_index=host, host_domain_count=hosts, **keywords).tolist() for host in range(hosts)]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000, 1001])
@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_OPT_03_every_epoch_has_all_ids_once(count: int, hosts: int) -> None:
    for epoch in range(3):
        found = shares(count, hosts, epoch=epoch, seed=5)
        together = list(chain.from_iterable(found))
        assert sorted(together) == list(range(count))
        assert max(map(len, found)) - min(map(len, found)) <= 1
        assert together == order(count, epoch=epoch, seed=5).tolist()


def test_OPT_03_every_epoch_and_seed_has_an_order_of_its_own() -> None:
    orders = {tuple(order(100, epoch=epoch, seed=seed).tolist()) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9
    assert tuple(range(100)) not in orders
    with pytest.raises(TypeError, match="epoch"):
        order(100)  # type: ignore[call-arg]
    assert inspect.signature(order).parameters["epoch"].default is inspect.Parameter.empty


def test_OPT_03_every_place_is_as_likely() -> None:
    # 2,000 orders of 8: a place holds an id 250 times, with a deviation of 14.8; six of those are never seen.
    counts = np.zeros((8, 8), np.int64)
    for epoch in range(2000):
        counts[np.arange(8), order(8, epoch=epoch)] += 1
    assert np.abs(counts - 250).max() < 6 * 14.8


def test_OPT_03_the_order_never_changes() -> None:
    # Whoever resumes with another version of this package or of NumPy must find the same order.
    assert order(10, epoch=0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert order(10, epoch=3, seed=42).tolist() == [1, 6, 3, 4, 5, 9, 2, 8, 0, 7]
    last = (1 << 64) - 1
    assert order(10, epoch=last, seed=last).tolist() == [6, 9, 8, 4, 5, 0, 1, 7, 3, 2]
    assert order(10, epoch=0).dtype == np.uint32


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_batches_are_the_order_of_each_epoch_in_turn(hosts: int) -> None:
    # 25 items in batches of 8: three whole ones and one of a single item, of which most hosts have nothing.
    streams = [batches(25, size=8, seed=1, host_domain_index=host, host_domain_count=hosts) for host in range(hosts)]
    for epoch in range(3):
        read = [np.concatenate(step).tolist() for step in islice(zip(*streams, strict=True), 4)]
        assert [len(batch) for batch in read] == [8, 8, 8, 1]
        assert list(chain.from_iterable(read)) == order(25, epoch=epoch, seed=1).tolist()


@pytest.mark.parametrize("step", range(9))
def test_batches_go_on_where_a_run_stopped(step: int) -> None:
    whole = list(islice(batches(25, size=8, seed=1), 12))
    for expected, found in zip(whole[step:], batches(25, size=8, seed=1, step=step), strict=False):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("count", {"count": -1}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": 1 << 64}),
        ("epoch", {"epoch": -1}),
        ("host_domain_count", {"host_domain_count": 0}),
        ("host_domain_index", {"host_domain_index": 2, "host_domain_count": 2}),
        ("host_domain_index", {"host_domain_index": -1}),
    ],
)
def test_refused_orders_name_the_value(name: str, changes: dict[str, int]) -> None:
    keywords = {"epoch": 0, **changes}
    count = keywords.pop("count", 10)
    with pytest.raises(ValueError, match=f"^{name} is {changes[name]}: expected at least"):
        order(count, **keywords)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("count", {"count": 0}), ("size", {"size": 0}), ("step", {"step": -1}), ("seed", {"seed": -1})],
)
def test_refused_batches_name_the_value_before_any_is_asked_for(name: str, changes: dict[str, int]) -> None:
    keywords = {"size": 3, **changes}
    count = keywords.pop("count", 10)
    with pytest.raises(ValueError, match=f"^{name} is {changes[name]}: expected at least"):
        batches(count, **keywords)
    with pytest.raises(TypeError):
        batches(10, size=2.5)  # type: ignore[arg-type]
