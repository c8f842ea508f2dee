"""The order of an executor's calls: as submitted, whichever block and whichever are deferred, and nothing hangs."""

from __future__ import annotations

import gc
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.processes import run_python
from tests.helpers.runs import TINY, hold, make_trainer, resume, shape
from uform import Modality
from uform._ext.turns import Turns
from uform._ext.worker import Worker

SOON = 60  # seconds until what hangs is a failure
MANY = 100  # more calls than are begun ahead of those that are finished
TEXTS = ["cat", "dog"]
MODALITIES = [Modality.TEXT] * 2


@pytest.fixture
def trainer() -> uform.Trainer:
    return uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), **TINY, batch=shape())


def defer(trainer: uform.Trainer, stats: uform.TrainerStepStats | None = None) -> uform.Deferred[Any]:
    deferred: uform.Deferred[Any] = trainer.deferred(trainer.executor).step(MODALITIES, TEXTS, stats=stats)
    return deferred


def step(trainer: uform.Trainer) -> int:
    """A step that blocks, and its number among those applied."""
    return Call(TEXTS).step(trainer).stats.step


def test_a_blocking_call_comes_after_those_deferred_before(trainer: uform.Trainer, tmp_path: Path) -> None:
    stats = [uform.TrainerStepStats() for _ in range(MANY)]
    pending = [defer(trainer, one) for one in stats]
    assert step(trainer) == MANY + 1
    pending += [defer(trainer) for _ in range(3)]
    trainer.save(tmp_path / "saved")
    assert resume(tmp_path / "saved").describe()["step"] == MANY + 4
    for one in pending:
        one.result(SOON)
    assert [one.step for one in stats] == list(range(1, MANY + 1))


def test_what_is_deferred_comes_after_a_call_that_blocks(trainer: uform.Trainer, tmp_path: Path) -> None:
    """Submitted by another thread while the first is under way, it waits for its end."""
    begun, stats = threading.Event(), uform.TrainerStepStats()
    behind: list[uform.Deferred[Any]] = []

    def submit() -> None:
        assert begun.wait(SOON)
        behind.append(defer(trainer, stats))

    thread = threading.Thread(target=submit)
    thread.start()

    def progress(done: int, total: int) -> None:
        begun.set()
        thread.join(SOON)
        assert not behind[0].done()

    trainer.save(tmp_path / "saved", progress=progress)
    behind[0].result(SOON)
    assert (resume(tmp_path / "saved").describe()["step"], stats.step) == (0, 1)


def test_many_threads_keep_their_own_order(trainer: uform.Trainer) -> None:
    """Each alternates calls that block with deferred ones: the numbers of its steps only grow."""
    rounds, grown = 15, []

    def run() -> None:
        numbers: list[Any] = []
        for _ in range(rounds):
            stats = uform.TrainerStepStats()
            pending = defer(trainer, stats)
            blocking = step(trainer)
            pending.result(SOON)
            numbers += [stats.step, blocking]
        grown.append(numbers == sorted(set(numbers)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert grown == [True] * 4
    assert trainer.describe()["step"] == 4 * 2 * rounds


def test_a_done_callback_may_block_and_comes_next(trainer: uform.Trainer) -> None:
    """However many calls are behind: those that have begun are before it, the rest behind it."""
    gate, seen = hold(trainer.executor), []
    first = defer(trainer)
    first.add_done_callback(lambda _: seen.append(step(trainer)))
    behind = [defer(trainer) for _ in range(MANY)]
    gate.set()
    for one in behind:
        one.result(SOON)
    assert trainer.describe()["step"] == MANY + 2
    assert 2 <= seen[0] <= 40  # what had begun by then


def test_a_done_callback_may_defer_and_another_executor_s_may_block(trainer: uform.Trainer) -> None:
    other = uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), **TINY, batch=shape())
    done: list[uform.Deferred[Any]] = []
    called = threading.Event()

    def follow(_: uform.Deferred[Any]) -> None:
        done.append(defer(trainer))
        step(other)
        called.set()

    defer(trainer).add_done_callback(follow)
    behind = [defer(other) for _ in range(MANY)]
    assert called.wait(SOON)
    done[0].result(SOON)
    behind[-1].result(SOON)
    assert (trainer.describe()["step"], other.describe()["step"]) == (2, MANY + 1)


def test_a_callback_does_not_wait_for_what_waits_for_it(trainer: uform.Trainer, tmp_path: Path) -> None:
    """In a verb, or in a call that is done: the error says so at once, where both would wait for ever."""
    refused: list[str] = []

    def wait_for(pending: uform.Deferred[Any]) -> None:
        with pytest.raises(TimeoutError):
            pending.result(0)
        try:
            pending.result()
        except RuntimeError as error:
            refused.append(str(error))

    trainer.save(tmp_path / "saved", progress=lambda done, total: wait_for(defer(trainer)), progress_steps=1000)
    gate, done = hold(trainer.executor), threading.Event()
    first = defer(trainer)
    first.add_done_callback(lambda _: wait_for(third))
    first.add_done_callback(lambda _: done.set())
    third = defer(trainer)
    gate.set()
    assert done.wait(SOON)
    third.result(SOON)
    assert len(refused) == 2
    assert all("the one whose callback this is" in one for one in refused)
    assert trainer.describe()["step"] == 3


def test_a_cancelled_call_holds_nobody_up(trainer: uform.Trainer) -> None:
    gate = hold(trainer.executor)
    pending = [defer(trainer) for _ in range(5)]
    assert [one.cancel() for one in pending] == [True] * 5
    gate.set()
    assert step(trainer) == 1


def test_close_comes_after_what_was_submitted(trainer: uform.Trainer) -> None:
    gate = hold(trainer.executor)
    pending = [defer(trainer) for _ in range(5)]
    assert pending.pop().cancel()
    gate.set()
    trainer.close()
    for one in pending:
        one.result(SOON)  # applied, each of them
    with pytest.raises(ValueError, match="closed"):
        defer(trainer).result(SOON)


def test_what_is_deferred_runs_whoever_has_let_go(tmp_path: Path) -> None:
    """The trainer, the executor and the Deferred are names: a call keeps what it needs."""
    trainer = uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), **TINY, batch=shape())
    gate = hold(trainer.executor)
    for _ in range(5):
        defer(trainer)
    saved = trainer.deferred(trainer.executor).save(tmp_path / "saved")
    del trainer
    gc.collect()
    gate.set()
    saved.result(SOON)
    assert resume(tmp_path / "saved").describe()["step"] == 5


def test_an_error_that_nobody_asks_for_is_logged(trainer: uform.Trainer, caplog: pytest.LogCaptureFixture) -> None:
    deferred = trainer.deferred(trainer.executor)
    asked, forgotten = deferred.save("/nowhere/asked"), deferred.save("/nowhere/forgotten")
    with pytest.raises(OSError, match="asked"):
        asked.result(SOON)
    step(trainer)
    called = threading.Event()
    forgotten.add_done_callback(lambda _: called.set())
    assert called.wait(SOON)
    with caplog.at_level(logging.ERROR, "uform"):
        del asked, forgotten
        step(trainer)
        defer(trainer).result(SOON)  # the worker's thread has let go as well
        gc.collect()
    [record] = [one for one in caplog.records if one.name == "uform"]
    assert "nobody asked" in record.getMessage()
    assert record.exc_info
    assert "/nowhere/forgotten" in str(record.exc_info[1])


class Unready:
    """A pool that refuses, as one does once the interpreter ends."""

    def submit(self, *arguments: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def shutdown(self, wait: bool) -> None:
        pass


def test_a_call_that_could_not_be_submitted_holds_nobody_up() -> None:
    worker = Worker(Turns())
    whole = worker._beginning  # type: ignore[attr-defined]
    worker._beginning = Unready()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="cannot schedule"):
        worker.submit(int)
    worker._beginning = whole  # type: ignore[attr-defined]
    assert worker.submit(lambda: 7).result(SOON) == 7


def test_an_executor_makes_one_worker(trainer: uform.Trainer) -> None:
    """Threads that defer a first call at once share it: order would be lost between two."""
    before, start = set(threading.enumerate()), threading.Barrier(4)

    def run() -> None:
        start.wait(SOON)
        defer(trainer).result(SOON)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("uform-executor")]
    assert len(left) == 2


WAITING = """
import json, os, signal, sys, threading
import uform
from tests.helpers.runs import TINY, shape

texts, modalities = ["cat", "dog"], [uform.Modality.TEXT] * 2
trainer = uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), **TINY, batch=shape())
gate, held, start, handled = threading.Event(), threading.Event(), threading.Lock(), threading.Event()

def wait():
    held.set()
    gate.wait(60)

def step():
    stats = uform.TrainerStepStats()
    trainer.step(modalities, texts, stats=stats)
    return stats.step

def send():
    with start:
        # Once more where it came between the other thread's look at signals and its wait, as CPython's locks have it.
        while not handled.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            handled.wait(0.1)

trainer.executor._submit(wait)
held.wait(60)
trainer.deferred(trainer.executor).step(modalities, texts)
start.acquire()
thread = threading.Thread(target=send)
thread.start()
sys.setswitchinterval(1e6)  # the other thread gets the GIL when this one waits
"""


def test_ctrl_c_ends_the_wait_for_those_deferred_before() -> None:
    """What was interrupted is not made; what is behind it is served."""
    code = """
def handle(number, frame):
    if not handled.is_set():
        handled.set()
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, handle)
try:
    start.release()
    step()
    interrupted = False
except KeyboardInterrupt:
    interrupted = True
sys.setswitchinterval(0.005)
thread.join()
gate.set()
print(json.dumps([interrupted, step()]))
"""
    assert run_python(WAITING + code) == [True, 2]


def test_a_signal_s_handler_may_call_while_its_thread_waits() -> None:
    """As one does that saves when it is told to end: the handler's call is first, and the one that waited follows."""
    code = """
seen = []

def handle(number, frame):
    if not handled.is_set():
        handled.set()
        sys.setswitchinterval(0.005)
        gate.set()
        seen.append(step())

signal.signal(signal.SIGINT, handle)
start.release()
outer = step()
thread.join()
print(json.dumps([seen, outer]))
"""
    assert run_python(WAITING + code) == [[2], 3]


FORKED = """
import asyncio, json, os, signal, sys, threading, warnings
import numpy as np
import uform
from tests.helpers.runs import TINY, shape

texts, modalities, path = ["cat", "dog"], [uform.Modality.TEXT] * 2, sys.argv[1]
executor = uform.Executor.for_ram(threads=2)
trainer = uform.Trainer.init_ram(executor, **TINY, batch=shape())
trainer.save(path)
model = uform.Model.init_ram(executor, path)
arena = uform.Arena.for_ram()
answer = trainer.step(modalities, texts, arena=arena)
expected = answer.numpy().copy()
deferred, gate, held = trainer.deferred(executor), threading.Event(), threading.Event()
done = deferred.step(modalities, texts)
done.result(60)

def wait():
    held.set()
    gate.wait(60)

executor._submit(wait)
held.wait(60)
pending = deferred.step(modalities, texts)  # behind the gate: under way when the process is forked

async def wait_for_it():
    await pending

def bar():
    vectors = np.eye(4, 64, dtype=np.float32)
    return uform.losses.contrastive(executor, vectors, relations=uform.Relations(attract=([0, 1, 1, 1, 1], [1])))

verbs = {
    "step": lambda: trainer.step(modalities, texts),
    "on": lambda: trainer.on(executor).step(modalities, texts),
    "deferred": lambda: deferred.step(modalities, texts),
    "save": lambda: trainer.save(path),
    "describe": trainer.describe,
    "read": lambda: trainer.read("norm"),
    "write": lambda: trainer.write("norm", trainer.read("norm")),
    "close": trainer.close,
    "embed": lambda: model.embed(modalities, texts),
    "model": model.describe,
    "init": lambda: uform.Trainer.init_ram(executor, **TINY),
    "losses": bar,
    "result": lambda: pending.result(60),
    "done": done.done,
    "cancel": pending.cancel,
    "callback": lambda: pending.add_done_callback(print),
    "await": lambda: asyncio.run(wait_for_it()),
}

def attempt(verb):
    try:
        verb()
    except RuntimeError as error:
        return "forked" in str(error)
    return False

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
child = os.fork()
if child == 0:
    signal.alarm(60)  # what hangs is killed, and the status tells
    wrong = [name for name, verb in verbs.items() if not attempt(verb)]
    if wrong:
        print("not refused:", wrong, file=sys.stderr)
    own = uform.Executor.for_ram(threads=2)
    again = uform.Trainer.init_ram(own, resume=path)
    stats = uform.TrainerStepStats()
    again.step(modalities, texts, stats=stats)
    again.deferred(own).step(modalities, texts, stats=stats).result(60)
    whole = stats.step == 2 and np.array_equal(answer.numpy(), expected) and repr(pending) and repr(trainer)
    del trainer, model, executor, deferred, done, pending, verbs, own, again
    sys.exit(0 if whole and not wrong else 7)
_, status = os.waitpid(child, 0)
gate.set()
pending.result(60)
print(json.dumps([os.waitstatus_to_exitcode(status), trainer.describe()["step"]]))
"""


def test_a_forked_child_is_refused_what_stayed_with_its_parent(tmp_path: Path) -> None:
    """Every verb of what the parent made, even while it works; what the child makes itself works, and it ends."""
    assert run_python(FORKED, tmp_path / "checkpoint") == [0, 3]


def test_close_twice_at_once() -> None:
    trainer = make_trainer()
    threads = [threading.Thread(target=trainer.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    trainer.close()
    with pytest.raises(ValueError, match="closed"):
        trainer.describe()


def test_another_executor_on_the_same_devices_has_an_order_of_its_own(trainer: uform.Trainer, tmp_path: Path) -> None:
    """What is submitted there does not wait for what is submitted to the trainer's own, nor that for it."""
    other = uform.Executor.for_ram(threads=1)
    gate, stats = hold(other), [uform.TrainerStepStats() for _ in range(5)]
    pending = [trainer.deferred(other).step(MODALITIES, TEXTS, stats=one) for one in stats]
    assert step(trainer) == 1
    assert defer(trainer).result(SOON) is None
    gate.set()
    trainer.on(other).save(tmp_path / "saved")  # after what was submitted there
    assert resume(tmp_path / "saved").describe()["step"] == 7
    for one in pending:
        one.result(SOON)
    assert [one.step for one in stats] == [3, 4, 5, 6, 7]
    with pytest.raises(RuntimeError, match="progress or a plugin, cannot make another one"):
        trainer.on(other).save(tmp_path / "saved", progress=lambda done, total: bool(trainer.on(other).save("x")))
    mixed = [one.step(MODALITIES, TEXTS) for one in [trainer.deferred(trainer.executor), trainer.deferred(other)] * 50]
    for one in mixed:
        one.result(SOON)
    assert step(trainer) == 108


@pytest.mark.parametrize("way", ["held", "crossed"])
def test_no_verb_waits_while_it_is_submitted(way: str, tmp_path: Path) -> None:
    """The turn and the devices are another thread's meanwhile, and the arenas are held until the calls are made."""
    trainer = make_trainer(
        batch=uform.BatchShape(max_rows_per_device=8, max_columns_per_row=32, max_choices_per_item=2),
        late_interaction=uform.LateInteraction(width=64),
        choices=uform.Choices(),
    )
    executor = trainer.executor if way == "held" else uform.Executor.for_ram(threads=1)
    trainer.save(tmp_path / "saved")
    model, arena = uform.Model.init_ram(trainer.executor, tmp_path / "saved"), uform.Arena.for_ram()
    begun, submitted = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        begun.set()
        assert submitted.wait(SOON)

    thread = threading.Thread(target=lambda: trainer.save(tmp_path / "slow", progress=progress), daemon=True)
    thread.start()
    assert begun.wait(SOON)
    pending = [
        model.deferred(executor).embed(MODALITIES, TEXTS, arena=arena),
        model.deferred(executor).embed_tokens(MODALITIES, TEXTS, arena=arena),
        model.deferred(executor).text_choose(TEXTS, ["yes", "no"], arena=arena),
        trainer.deferred(executor).step(MODALITIES, TEXTS, arena=arena),
        trainer.deferred(executor).save(tmp_path / "saved"),
    ]
    assert not any(one.done() for one in pending)
    with pytest.raises(ValueError, match="in flight"):
        arena.reset()
    submitted.set()
    for one in pending:
        one.result(SOON)
    thread.join(SOON)
    assert len(pending[1].result()) == len(TEXTS)
    arena.reset()
