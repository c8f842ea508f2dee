"""What a signal's handler may call while the main thread waits: it comes first or is refused, and nothing hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.processes import run_python

# The devices are a save's of another thread, `wait_for_them` steps on them meanwhile, and the handler calls `handle`.
HELD = """
import faulthandler, json, os, signal, sys, threading
import uform
from tests.helpers.runs import TINY, shape

faulthandler.dump_traceback_later(60, exit=True)
texts, modalities, path = ["cat", "dog"], [uform.Modality.TEXT] * 2, sys.argv[1]
make = lambda: uform.Executor.for_ram(threads=1)
executor = make()
trainer = uform.Trainer.init_ram(executor, **TINY, batch=shape())
gate, held, start, handled = threading.Event(), threading.Event(), threading.Lock(), threading.Event()
seen = []

def step(receiver):
    stats = uform.TrainerStepStats()
    receiver.step(modalities, texts, stats=stats)
    return stats.step

def hold(done, total):
    if not held.is_set():
        held.set()
        gate.wait(60)

def send():
    with start:
        # Once more where it came between the other thread's look at signals and its wait, as CPython's locks have it.
        while not handled.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            handled.wait(0.1)

def come(number, frame):
    if not handled.is_set():
        handled.set()
        handle()

def wait_for_them(receiver):
    signal.signal(signal.SIGUSR1, come)
    sys.setswitchinterval(1e6)  # another thread gets the GIL when this one waits
    start.release()
    answer = step(receiver)
    sys.setswitchinterval(0.005)
    for thread in threads:
        thread.join()
    return answer

threads = [threading.Thread(target=trainer.save, args=(path,), kwargs={"progress": hold})]
threads[0].start()
held.wait(60)
start.acquire()
threads.append(threading.Thread(target=send))
threads[1].start()
"""


def test_a_handler_may_have_the_devices_that_its_thread_waits_for(tmp_path: Path) -> None:
    """As one does that saves; who comes meanwhile finds the thread twice in the line."""
    code = """
def third(receiver):
    come_by.set()  # in the line by the time that it gives the GIL up
    seen.append(step(receiver))

def progress(done, total):
    if done == 1:
        threads.append(threading.Thread(target=third, args=(trainer.on(make()),)))
        threads[-1].start()
        come_by.wait(60)

def handle():
    gate.set()
    trainer.on(make()).save(path, progress=progress)
    seen.append("saved")

come_by = threading.Event()
seen.append(wait_for_them(trainer.on(make())))
print(json.dumps(seen))
"""
    first, *steps = run_python(HELD + code, tmp_path / "saved")
    assert first == "saved"
    assert sorted(steps) == [1, 2]


def test_a_handler_comes_before_a_wait_that_has_ended_meanwhile(tmp_path: Path) -> None:
    """The devices are the waiting call's by then, which has not noticed: the handler's call is first all the same."""
    code = """
def handle():
    gate.set()
    threads[0].join(60)
    seen.append(step(trainer.on(make())))

seen.append(wait_for_them(trainer.on(make())))
print(json.dumps(seen))
"""
    assert run_python(HELD + code, tmp_path / "saved") == [1, 2]


@pytest.mark.parametrize("way", ["own", "crossed"])
def test_a_handler_is_refused_a_result_that_waits_for_its_thread(way: str, tmp_path: Path) -> None:
    """What it defers waits for the devices behind the call that it interrupts."""
    code = """
def handle():
    pending.append(trainer.deferred(executor).step(modalities, texts))
    try:
        pending[0].result()
    except RuntimeError as error:
        seen.append(str(error))
    gate.set()

pending = []
seen.append(wait_for_them(trainer.on(make()) if sys.argv[2] == "crossed" else trainer))
pending[0].result(60)
print(json.dumps([*seen, trainer.describe()["step"]]))
"""
    refusal, *steps = run_python(HELD + code, tmp_path / "saved", way)
    assert "neither would end" in refusal
    assert steps == [1, 2]
