"""Deferred calls as Python's users know futures: awaited, cancelled, with the traceback of what went wrong."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.runs import TINY, hold, shape
from uform import Modality

SOON = 60  # seconds until what hangs is a failure
TEXTS = ["cat", "dog"]
MODALITIES = [Modality.TEXT] * 2


@pytest.fixture
def trainer() -> uform.Trainer:
    return uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), **TINY, batch=shape())


def test_many_are_awaited_without_a_thread_for_each(trainer: uform.Trainer) -> None:
    count, before = 50, set(threading.enumerate())
    deferred, gate = trainer.deferred(trainer.executor), hold(trainer.executor)
    stats = [uform.TrainerStepStats() for _ in range(count)]

    async def wait_for(one: uform.TrainerStepStats) -> None:
        await deferred.step(MODALITIES, TEXTS, stats=one)

    async def run() -> int:
        tasks = [asyncio.create_task(wait_for(one)) for one in stats]
        await asyncio.sleep(0)  # each has submitted its step by now
        threads = len(set(threading.enumerate()) - before)
        gate.set()
        await asyncio.gather(*tasks)
        return threads

    assert asyncio.run(run()) <= 2
    assert sorted(one.step for one in stats) == list(range(1, count + 1))


def test_a_cancelled_task_cancels_a_call_that_has_not_started(trainer: uform.Trainer) -> None:
    deferred, gate = trainer.deferred(trainer.executor), hold(trainer.executor)

    async def run() -> uform.Deferred[Any]:
        step: uform.Deferred[Any] = deferred.step(MODALITIES, TEXTS)

        async def wait() -> None:
            await step

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return step

    step = asyncio.run(run())
    gate.set()
    assert step.done()
    assert repr(step) == "<Deferred cancelled>"
    assert trainer.describe()["step"] == 0


def test_an_error_is_awaited(trainer: uform.Trainer) -> None:
    async def run() -> None:
        await trainer.deferred(trainer.executor).save("/nowhere/checkpoint")

    with pytest.raises(OSError, match="/nowhere"):
        asyncio.run(run())


def explode(done: int, total: int) -> bool:
    raise LookupError("in the callback")


def test_an_error_keeps_its_traceback(trainer: uform.Trainer, tmp_path: Path) -> None:
    """It leads to the line that raised, on the worker's thread, however often and by whom it is asked for."""
    saved = trainer.deferred(trainer.executor).save(tmp_path / "checkpoint", progress=explode)
    for _ in range(2):
        with pytest.raises(LookupError, match="in the callback") as raised:
            saved.result(SOON)
        names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert "explode" in names
    assert saved.done()
    assert not saved.cancel()


def test_callbacks_are_called_once_each_and_their_errors_are_logged(
    trainer: uform.Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    called = threading.Event()
    seen: list[uform.Deferred[Any]] = []
    step = trainer.deferred(trainer.executor).step(MODALITIES, TEXTS)

    def fail(_: uform.Deferred[Any]) -> None:
        raise LookupError("of a callback")

    with caplog.at_level(logging.ERROR):
        step.add_done_callback(fail)
        step.add_done_callback(seen.append)
        step.add_done_callback(lambda _: called.set())
        assert called.wait(SOON)
        step.add_done_callback(seen.append)  # it is done: at once
    assert seen == [step, step]
    assert step.result() is None
    assert any(record.exc_info and "of a callback" in str(record.exc_info[1]) for record in caplog.records)
    with pytest.raises(TypeError, match="callback is 3: expected a callable"):
        step.add_done_callback(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_callback_that_exits_keeps_nobody_waiting(
    error: type[BaseException], trainer: uform.Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    """On the executor's thread there is nothing to exit: those behind it are told, and the next call is served."""
    gate = hold(trainer.executor)

    def exit_here(_: uform.Deferred[Any]) -> None:
        raise error

    async def run() -> None:
        step = trainer.deferred(trainer.executor).step(MODALITIES, TEXTS)
        step.add_done_callback(exit_here)

        async def wait() -> None:
            await step

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        gate.set()
        await asyncio.wait_for(task, SOON)

    with caplog.at_level(logging.ERROR, "uform"):
        asyncio.run(run())
        trainer.deferred(trainer.executor).step(MODALITIES, TEXTS).result(SOON)
    assert any("a done callback" in record.getMessage() for record in caplog.records)
    done = trainer.deferred(trainer.executor).step(MODALITIES, TEXTS)
    done.result(SOON)
    with pytest.raises(error):
        done.add_done_callback(exit_here)  # at once, on the caller's own thread


def test_a_timeout_leaves_the_call_going(trainer: uform.Trainer) -> None:
    gate, stats = hold(trainer.executor), uform.TrainerStepStats()
    step = trainer.deferred(trainer.executor).step(MODALITIES, TEXTS, stats=stats)
    for timeout in (0, -1, 0.0):
        with pytest.raises(TimeoutError):
            step.result(timeout)
    with pytest.raises(TypeError, match="timeout is 'soon'"):
        step.result("soon")  # type: ignore[arg-type]
    assert not step.done()
    gate.set()
    step.result(SOON)
    assert (step.done(), stats.step) == (True, 1)


def test_a_model_s_verbs_are_deferred_and_on_as_well(trainer: uform.Trainer, tmp_path: Path) -> None:
    trainer.save(tmp_path / "checkpoint")
    model = uform.Model.init_ram(trainer.executor, tmp_path / "checkpoint")
    expected = model.embed(MODALITIES, TEXTS).numpy()
    deferred = model.deferred(trainer.executor).embed(MODALITIES, TEXTS, outputs_scalar=uform.Scalar.FLOAT16)
    np.testing.assert_array_equal(deferred.result(SOON).numpy(), expected.astype(np.float16))
    np.testing.assert_array_equal(model.on(trainer.executor).embed(MODALITIES, TEXTS).numpy(), expected)
    for make in (model.on, model.deferred):
        with pytest.raises(ValueError, match="this Model lives on other devices"):
            make(uform.Executor.for_ram(devices=2))


def test_a_handler_that_interrupts_a_submission_is_refused_another(
    trainer: uform.Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would wait for the locks that its own thread has; a signal's handler is stood in for by a call there."""
    submit, refused = ThreadPoolExecutor.submit, []

    def interrupted(pool: ThreadPoolExecutor, *call: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            with pytest.raises(RuntimeError, match="a signal's handler cannot defer a call"):
                trainer.deferred(trainer.executor).step(MODALITIES, TEXTS)
            refused.append(True)
        return submit(pool, *call)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    pending = trainer.deferred(trainer.executor).step(MODALITIES, TEXTS)
    monkeypatch.undo()
    pending.result(SOON)
    trainer.deferred(trainer.executor).step(MODALITIES, TEXTS).result(SOON)
    assert refused == [True]


def test_a_cancelled_call_lets_go_of_its_contents_at_once(trainer: uform.Trainer) -> None:
    """Long before its turn comes, and before its callbacks are called."""
    gate, text, seen = hold(trainer.executor), bytearray(b"cat"), list[bytes]()
    pending = [trainer.deferred(trainer.executor).step([Modality.TEXT], [text]) for _ in range(2)]
    with pytest.raises(BufferError):
        text.append(1)

    def change(_: object) -> None:
        text.append(1)
        seen.append(bytes(text))

    pending[1].add_done_callback(change)
    assert [one.cancel() for one in pending] == [True] * 2
    assert [one.cancel() for one in pending] == [True] * 2
    assert seen == [b"cat\x01"]
    gate.set()
    done = trainer.deferred(trainer.executor).step([Modality.TEXT], [text])
    done.result(SOON)
    assert not done.cancel()
    assert trainer.describe()["step"] == 1
