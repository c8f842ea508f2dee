"""Deferred steps: submitted ahead of each other, in order, each with its own outcome, equal to blocking ones."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call, pairs_both_ways
from tests.helpers.processes import run_python
from tests.helpers.runs import digest, make_trainer, picture, resume, shape
from uform import Modality, Objective
from uform._ext.trainer import StepCall

PAIRS = 3
OVERFLOW = 3e38  # an edge so heavy that the gradient leaves float32


def call_of(number: int) -> Call:
    """Words and pictures that differ from call to call, in number as well."""
    pairs = 1 + number % PAIRS
    words = [f"word {place} of call {number}" for place in range(pairs)]
    pictures = [picture(4 + place, 8, seed=number + place) for place in range(pairs)]
    return Call([*words, *pictures], attract=pairs_both_ways(pairs))


def heavy_call() -> Call:
    """A call whose numbers are refused."""
    return Call(["a", "b"], attract=((0, 1, OVERFLOW), (1, 0, OVERFLOW)))


def make(**fields: Any) -> uform.Trainer:
    given: dict[str, Any] = {
        "objective": Objective.JOINT,
        "batch": shape(images=True),
        "contrastive": uform.Contrastive(pair_loss=uform.PairLossForm.SIGMOID),
    }
    return make_trainer(**(given | fields))


def defer(trainer: uform.Trainer, call: Call, **keywords: Any) -> uform.Deferred[Any]:
    deferred = trainer.deferred(trainer.executor)
    answered: uform.Deferred[Any] = deferred.step(
        call.modalities, call.contents, temperature_groups=call.groups, relations=call.relations, **keywords
    )
    return answered


@pytest.fixture
def trainer() -> Iterator[uform.Trainer]:
    made = make()
    yield made
    made.close()


@pytest.mark.parametrize("devices", [1, 2])
def test_deferred_steps_equal_blocking_ones(devices: int) -> None:
    count = 20
    blocking, deferred = make(devices=devices), make(devices=devices)
    expected = [call_of(number).step(blocking) for number in range(count)]
    arena, stats = uform.Arena.for_ram(), [uform.TrainerStepStats() for _ in range(count)]
    pending = [defer(deferred, call_of(number), arena=arena, stats=stats[number]) for number in range(count)]
    answers = [one.result(60) for one in pending]
    assert stats == [answer.stats for answer in expected]
    for answer, one in zip(answers, expected, strict=True):
        np.testing.assert_array_equal(answer.numpy(), one.embeddings)
    assert digest(deferred) == digest(blocking)


def test_a_refused_step_disturbs_none_behind_it(trainer: uform.Trainer) -> None:
    calls = [call_of(0), heavy_call(), call_of(1), heavy_call(), call_of(2)]
    stats = [uform.TrainerStepStats() for _ in calls]
    pending = [defer(trainer, call, stats=one) for call, one in zip(calls, stats, strict=True)]
    for refused in (1, 3):
        with pytest.raises(FloatingPointError, match="no weight"):
            pending[refused].result(60)
    for kept in (0, 2, 4):
        pending[kept].result(60)
    assert [one.step for one in stats] == [1, 0, 2, 0, 3]
    # Refused calls number random draws, and nothing else.
    alone = make()
    for call in calls:
        if call == heavy_call():
            with pytest.raises(FloatingPointError):
                call.step(alone)
        else:
            call.step(alone)
    assert digest(trainer) == digest(alone)


def test_a_wrong_argument_surfaces_at_its_own_result(trainer: uform.Trainer) -> None:
    wrong = Call(["a", "b"], groups=[0, 7])
    pending = [defer(trainer, call) for call in (call_of(0), wrong, call_of(1))]
    with pytest.raises(ValueError, match="temperature_groups: item 1 has group 7"):
        pending[1].result(60)
    pending[2].result(60)
    alone = make()
    for number in range(2):
        call_of(number).step(alone)
    assert digest(trainer) == digest(alone)


def test_results_come_in_order(trainer: uform.Trainer, tmp_path: Path) -> None:
    seen: list[int] = []
    done = threading.Event()
    pending = []
    for name in ("middle", "last"):
        pending += [defer(trainer, call_of(number)) for number in range(4)]
        pending.append(trainer.deferred(trainer.executor).save(tmp_path / name))
    for place, one in enumerate(pending):
        one.add_done_callback(lambda _, place=place: seen.append(place))  # type: ignore[misc]
    pending[-1].add_done_callback(lambda _: done.set())
    assert done.wait(60)
    assert seen == list(range(10))
    assert resume(tmp_path / "last").describe()["step"] == 8


def test_a_save_among_deferred_steps_resumes_bit_for_bit(trainer: uform.Trainer, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    for number in range(5):
        defer(trainer, call_of(number))
    saved = trainer.deferred(trainer.executor).save(path)
    rest = [defer(trainer, call_of(number)) for number in range(5, 10)]
    saved.result(60)
    resumed = resume(path)
    again = [defer(resumed, call_of(number)) for number in range(5, 10)]
    for one in [*rest, *again]:
        one.result(60)
    assert digest(resumed) == digest(trainer)


def test_blocking_calls_come_between(trainer: uform.Trainer) -> None:
    behind = [defer(trainer, call_of(number)) for number in range(6)]
    assert trainer.describe()["step"] == 6
    assert np.isfinite(trainer.read("norm")).all()
    for one in behind:
        one.result(60)
    stats = uform.TrainerStepStats()
    trainer.step([Modality.TEXT], ["the last"], stats=stats)
    assert stats.step == 7


def test_dropped_segments_are_told_once() -> None:
    crowd = Call(["a text of twenty byt"] * 40)
    trainer = make_trainer(batch=shape(rows=2, columns=32))
    alone = crowd.step(make_trainer(batch=shape(rows=2, columns=32))).stats.dropped
    assert alone > 0
    stats = [None, uform.TrainerStepStats(), None, None, uform.TrainerStepStats()]
    for one in [defer(trainer, crowd, stats=one) for one in stats]:
        one.result(60)
    assert [None if one is None else one.dropped for one in stats] == [None, 2 * alone, None, None, 3 * alone]


def test_buffers_are_held_until_the_step_is_final(trainer: uform.Trainer) -> None:
    gate, begun = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait(60)

    trainer.executor._submit(hold)
    assert begun.wait(60)
    contents = [picture(8, 8)]
    gone = weakref.ref(contents[0])
    step = trainer.deferred(trainer.executor).step([Modality.IMAGE], contents)
    del contents
    gc.collect()
    assert gone() is not None
    gate.set()
    step.result(60)
    gc.collect()
    assert gone() is None


def test_a_refused_step_lets_go_of_its_arena_and_buffers(trainer: uform.Trainer) -> None:
    arena = uform.Arena.for_ram()
    words = np.arange(2, dtype=np.uint32)
    gone = weakref.ref(words)
    call = heavy_call()
    step = trainer.deferred(trainer.executor).step(
        call.modalities, call.contents, bags=words, relations=call.relations, arena=arena
    )
    del words
    with pytest.raises(FloatingPointError):
        step.result(60)
    gc.collect()
    assert gone() is None
    arena.reset()


def test_a_trainer_dies_with_its_last_step() -> None:
    trainer = make()
    step = defer(trainer, call_of(0))
    del trainer
    step.result(60)


def test_threads_end_with_the_executor() -> None:
    before = set(threading.enumerate())
    executor = uform.Executor.for_ram(threads=1)
    trainer = uform.Trainer.init_ram(executor, depth=1, hidden=64, batch=shape())
    for step in [defer(trainer, Call(["a"])) for _ in range(5)]:
        step.result(60)
    assert len(set(threading.enumerate()) - before) == 2
    del executor, trainer, step
    gc.collect()
    assert set(threading.enumerate()) <= before  # of other tests' executors some may end meanwhile


def test_a_call_in_two_parts_keeps_their_order(trainer: uform.Trainer) -> None:
    call = StepCall(trainer, [Modality.TEXT], ["a"])
    with pytest.raises(ValueError, match="has not begun"):
        call.finish()
    call.begin()
    for again in (call, call.begin):
        with pytest.raises(ValueError, match="has run"):
            again()
    assert call.finish() is None
    with pytest.raises(ValueError, match="has not begun"):
        call.finish()
    StepCall(trainer, [Modality.TEXT], ["b"]).begin()  # nobody finishes it
    assert trainer.describe()["step"] == 2


def test_more_steps_than_outcomes_are_kept(trainer: uform.Trainer) -> None:
    pending = [defer(trainer, Call(["a"])) for _ in range(100)]
    for one in pending:
        one.result(60)
    assert trainer.describe()["step"] == 100


def test_an_interpreter_that_ends_runs_what_was_deferred(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    code = """
    import sys, uform
    executor = uform.Executor.for_ram(threads=1)
    trainer = uform.Trainer.init_ram(executor, depth=1, hidden=64)
    deferred = trainer.deferred(executor)
    for _ in range(20):
        deferred.step([uform.Modality.TEXT], ["a text"])
    deferred.save(sys.argv[1])
    print(1)
    """
    assert run_python(code, path) == 1
    assert resume(path).describe()["step"] == 20
