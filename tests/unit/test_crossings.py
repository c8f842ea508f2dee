"""Calls that cross executors of the same devices: each executor keeps its order, and none waits in a circle."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.runs import TINY, hold, shape
from uform import Modality

SOON = 60  # seconds until what hangs is a failure
TEXTS = ["cat", "dog"]
MODALITIES = [Modality.TEXT] * 2


def make(count: int) -> list[uform.Trainer]:
    """Trainers on an executor each, all of the same device."""
    return [
        uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), **TINY, batch=shape(), seed=place)
        for place in range(count)
    ]


def defer(trainer: uform.Trainer, on: uform.Trainer, stats: uform.TrainerStepStats | None = None) -> Any:
    """A step deferred to another trainer's executor."""
    return trainer.deferred(on.executor).step(MODALITIES, TEXTS, stats=stats)


def run_all(*bodies: Callable[[], None]) -> None:
    """Runs each in a thread of its own; what one raises is raised here, and one that hangs is a failure."""
    errors: list[BaseException] = []

    def guard(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


@pytest.mark.parametrize("count", [2, 3])
def test_deferred_calls_that_cross_do_not_wait_for_each_other(count: int) -> None:
    """Each has its turn on its executor, and wants the devices of the next one's trainer."""
    trainers = make(count)
    gates = [hold(one.executor) for one in trainers]
    pending = [defer(trainers[(place + 1) % count], one) for _ in range(50) for place, one in enumerate(trainers)]
    for gate in gates:
        gate.set()
    for call in pending:
        call.result(SOON)
    assert [one.describe()["step"] for one in trainers] == [50] * count


def test_blocking_calls_that_cross_do_not_wait_for_each_other() -> None:
    a, b = make(2)

    def run(mine: uform.Trainer, other: uform.Trainer) -> None:
        for _ in range(50):
            mine.on(other.executor).step(MODALITIES, TEXTS)
            mine.step(MODALITIES, TEXTS)

    run_all(lambda: run(a, b), lambda: run(b, a), lambda: run(a, b))
    assert (a.describe()["step"], b.describe()["step"]) == (200, 100)


class Hammer:
    """Random calls of several threads on several executors, and what is known of their order."""

    def __init__(self, trainers: list[uform.Trainer], path: Path) -> None:
        self.trainers = trainers
        trainers[0].save(path)
        self.model = uform.Model.init_ram(trainers[0].executor, path)
        self.path = path
        self.submitting = [threading.Lock() for _ in trainers]  # by executor
        self.submitted: list[list[tuple[int, uform.TrainerStepStats]]] = [[] for _ in trainers]  # likewise
        self.pending: list[uform.Deferred[Any]] = []
        self.steps = [0] * len(trainers)
        self.counting = threading.Lock()

    def count(self, place: int) -> None:
        with self.counting:
            self.steps[place] += 1

    def submit(self, place: int, on: int) -> Any:
        """A deferred step whose place in its executor's order is noted."""
        stats = uform.TrainerStepStats()
        with self.submitting[on]:
            pending = defer(self.trainers[place], self.trainers[on], stats)
            self.submitted[on].append((place, stats))
        self.pending.append(pending)
        self.count(place)
        return pending

    def block(self, place: int, on: int) -> None:
        self.trainers[place].on(self.trainers[on].executor).step(MODALITIES, TEXTS)
        self.count(place)

    def call(self, chance: random.Random) -> None:
        place, on, third = (chance.randrange(len(self.trainers)) for _ in range(3))
        trainer, executor = self.trainers[place], self.trainers[on].executor
        match chance.randrange(9):
            case 0 | 1 | 2:
                self.submit(place, on)
            case 3:
                self.block(place, on)
            case 4:
                self.submit(place, on).add_done_callback(lambda _: self.submit(third, on))
            case 5:
                self.submit(place, on).add_done_callback(lambda _: self.block(on, third))
            case 6:
                pending = self.model.deferred(executor).embed(MODALITIES, TEXTS, arena=uform.Arena.for_ram())
                self.pending.append(pending)
                if chance.random() < 0.5:
                    pending.cancel()
            case 7:
                path = self.path.with_suffix(f".{place}")
                self.pending.append(trainer.deferred(executor).save(path, progress=lambda done, total: None))
            case 8:
                trainer.read("norm")

    def finish(self) -> None:
        seen = 0
        while seen < len(self.pending):  # callbacks add to them
            with contextlib.suppress(CancelledError):
                self.pending[seen].result(SOON)
            seen += 1


@pytest.mark.parametrize("seed", range(4))
def test_random_crossings_end_and_keep_each_executor_s_order(seed: int, tmp_path: Path) -> None:
    hammer = Hammer(make(3), tmp_path / "saved")

    def run(thread: int) -> None:
        chance = random.Random(10 * seed + thread)
        for _ in range(60):
            hammer.call(chance)

    run_all(*(lambda thread=thread: run(thread) for thread in range(4)))
    hammer.finish()
    for one in hammer.trainers:  # the callbacks have ended: each executor serves what is behind them
        run_all(lambda one=one: defer(one, one).result(SOON))  # type: ignore[misc]
    hammer.finish()
    assert [one.describe()["step"] - 1 for one in hammer.trainers] == hammer.steps
    for calls in hammer.submitted:
        for place in range(3):
            numbers = [stats.step for trainer, stats in calls if trainer == place]
            assert numbers == sorted(numbers)


def test_more_steps_are_under_way_than_a_run_keeps_outcomes() -> None:
    """Of one run through four executors, whose callbacks hold every finish up."""
    trainer, *others = make(5)
    gate, called = threading.Event(), [threading.Event() for _ in others]
    pending = []
    for other, event in zip(others, called, strict=True):
        first = defer(trainer, other)
        first.add_done_callback(lambda _, event=event: event.set() or gate.wait(SOON))
        pending += [first, *(defer(trainer, other) for _ in range(40))]
    for event in called:
        assert event.wait(SOON)
    assert Call(TEXTS).step(trainer).stats.step > len(others)
    gate.set()
    for one in pending:
        one.result(SOON)
    assert trainer.describe()["step"] == 41 * len(others) + 1


def test_callbacks_that_call_across_are_refused_rather_than_hang(tmp_path: Path) -> None:
    """Each saves on its executor and steps on the other's meanwhile: one of the two at least is let through."""
    a, b = make(2)
    both, answers = threading.Barrier(2), []

    def save(mine: uform.Trainer, other: uform.Trainer, name: str) -> None:
        def progress(done: int, total: int) -> None:
            if done != 1:
                return
            both.wait(SOON)
            try:
                other.step(MODALITIES, TEXTS)
                answers.append("stepped")
            except RuntimeError as error:
                answers.append(str(error))

        mine.save(tmp_path / name, progress=progress)

    run_all(lambda: save(a, b, "a"), lambda: save(b, a, "b"))
    assert len(answers) == 2
    assert {one for one in answers if one != "stepped"} == {
        "the executor is in a call whose callback waits for the one whose callback this is: neither would end"
    }
    assert [one.describe()["step"] for one in (a, b)] in ([0, 1], [1, 0])


def test_a_callback_comes_before_what_waits_for_it(tmp_path: Path) -> None:
    """A step on the other executor, where a call waits for the devices that the callback's own save has."""
    a, b = make(2)
    pending: list[Any] = []

    def progress(done: int, total: int) -> None:
        if done == 1:
            pending.extend(defer(a, b) for _ in range(3))
            b.step(MODALITIES, TEXTS)
            with pytest.raises(RuntimeError, match="neither would end"):
                pending[-1].result()
            with pytest.raises(RuntimeError, match="progress or a plugin, cannot make another one"):
                a.on(b.executor).step(MODALITIES, TEXTS)

    run_all(lambda: a.save(tmp_path / "a", progress=progress))
    for one in pending:
        one.result(SOON)
    assert (a.describe()["step"], b.describe()["step"]) == (3, 1)


def test_close_comes_between_calls_of_another_executor() -> None:
    a, b = make(2)
    gate = hold(b.executor)
    pending = [defer(a, b) for _ in range(50)]
    gate.set()
    run_all(a.close)
    outcomes = []
    for one in pending:
        try:
            outcomes.append(one.result(SOON))
        except ValueError as error:
            outcomes.append(str(error))
    made = outcomes.count(None)
    assert outcomes == [None] * made + ["the trainer is closed"] * (50 - made)


def test_an_arena_shared_by_crossing_calls_is_whole(tmp_path: Path) -> None:
    """Rows of many calls through two executors into one arena, which nobody resets meanwhile."""
    a, b = make(2)
    a.save(tmp_path / "saved")
    model = uform.Model.init_ram(a.executor, tmp_path / "saved")
    expected, arena = model.embed(MODALITIES, TEXTS).numpy().tobytes(), uform.Arena.for_ram()
    gate = hold(b.executor)
    pending = [model.deferred(one.executor).embed(MODALITIES, TEXTS, arena=arena) for _ in range(20) for one in (a, b)]
    with pytest.raises(ValueError, match="in flight"):
        arena.reset()
    gate.set()
    assert [one.result(SOON).numpy().tobytes() == expected for one in pending] == [True] * 40
    arena.reset()
