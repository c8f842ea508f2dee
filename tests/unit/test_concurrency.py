"""Threads and signals while verbs work: the GIL is released, verbs take turns, and Ctrl-C leaves a usable trainer."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call, pairs_both_ways, relate
from tests.helpers.processes import run_python
from tests.helpers.runs import digest, make_trainer, ram, shape, unit_vectors
from uform import Modality, Objective

WATCHERS = 8
MOST_CALLS = 20_000
NEVER = 1e6  # seconds: nobody is made to give the GIL up
TEXTS = [f"a text of some length, number {number}" for number in range(64)]


class Watchers:
    """Threads that count whenever they get the GIL, and offer it after each count."""

    def __init__(self) -> None:
        self.counts = [0] * WATCHERS
        self.stopped = False

    def watch(self, place: int) -> None:
        while not self.stopped:
            self.counts[place] += 1
            time.sleep(0)

    def counted_during(self, verb: Callable[[], object]) -> list[int]:
        before = list(self.counts)
        verb()
        return [after - count for after, count in zip(self.counts, before, strict=True)]


@contextmanager
def watching() -> Iterator[Watchers]:
    """Counting threads beside this one, which keeps the GIL unless what it calls releases it."""
    watchers, interval = Watchers(), sys.getswitchinterval()
    threads = [threading.Thread(target=watchers.watch, args=(place,)) for place in range(WATCHERS)]
    sys.setswitchinterval(NEVER)
    try:
        for thread in threads:
            thread.start()
        yield watchers
    finally:
        watchers.stopped = True
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()


def verbs(folder: Path) -> dict[str, Callable[[], object]]:
    """Every verb that works on devices or files, on a run that is large enough for a step to last."""
    executor, path = ram(), folder / "checkpoint"
    given: dict[str, Any] = {"depth": 2, "hidden": 128, "batch": shape(rows=32, columns=64, segments=64)}
    trainer = uform.Trainer.init_ram(executor, objective=Objective.JOINT, **given)
    trainer.save(path)
    model = uform.Model.init_ram(executor, path)
    modalities = [Modality.TEXT] * len(TEXTS)
    largest = max(trainer.describe()["parameters"], key=lambda entry: np.prod(entry["shape"]))["name"]
    value = trainer.read(largest)
    relations = relate(128, attract=((0, 1, 1.0),))
    vectors, logits, targets = unit_vectors(128, 64), np.zeros((2048, 256), np.float32), np.zeros(2048, np.uint8)
    return {
        "init_ram": lambda: uform.Trainer.init_ram(executor, **given).close(),
        "step": lambda: trainer.step(modalities, TEXTS),
        "deferred step": lambda: trainer.deferred(executor).step(modalities, TEXTS).result(),
        "save": lambda: trainer.save(path),
        "read": lambda: trainer.read(largest),
        "write": lambda: trainer.write(largest, value),
        "Model.init_ram": lambda: uform.Model.init_ram(executor, path),
        "embed": lambda: model.embed(modalities, TEXTS),
        "contrastive": lambda: uform.losses.contrastive(executor, vectors, relations=relations),
        "masked_bytes": lambda: uform.losses.masked_bytes(executor, logits, targets),
    }


def test_watchers_see_a_GIL_that_is_kept() -> None:
    with watching() as watchers:
        assert watchers.counted_during(lambda: sum(range(1_000_000))) == [0] * WATCHERS


@pytest.mark.parametrize(
    "name",
    [
        "init_ram",
        "step",
        "deferred step",
        "save",
        "read",
        "write",
        "Model.init_ram",
        "embed",
        "contrastive",
        "masked_bytes",
    ],
)
def test_eight_threads_make_progress_during(name: str, tmp_path: Path) -> None:
    verb = verbs(tmp_path)[name]
    progress = [0] * WATCHERS
    with watching() as watchers:
        for _ in range(MOST_CALLS):
            counted = watchers.counted_during(verb)
            progress = [before + count for before, count in zip(progress, counted, strict=True)]
            if all(progress):
                break
    assert all(progress), progress


def call_of(thread: int, number: int) -> Call:
    words = [f"word {place} of step {number} of thread {thread}" for place in range(4)]
    return Call(words, attract=pairs_both_ways(2))


def test_two_threads_on_one_trainer_take_turns() -> None:
    """Whatever order came about, the run is bit for bit the one that a single thread makes in that order."""
    steps = 25
    shared, alone = (make_trainer(objective=Objective.JOINT, threads=2) for _ in range(2))
    order: dict[int, tuple[int, int]] = {}
    losses: dict[int, float] = {}
    start = threading.Barrier(2)

    def run(thread: int) -> None:
        start.wait()
        for number in range(steps):
            stats = call_of(thread, number).step(shared).stats
            order[stats.step], losses[stats.step] = (thread, number), stats.loss

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(order) == list(range(1, 2 * steps + 1))
    assert [order[step][1] for step in sorted(order) if order[step][0] == 0] == list(range(steps))
    for step in sorted(order):
        assert call_of(*order[step]).step(alone).stats.loss == losses[step]
    assert digest(shared) == digest(alone)


# A process that was started in the background, as by nohup or cron, inherits that Ctrl-C is ignored.
HEEDFUL = """
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
"""

INTERRUPTED = (
    HEEDFUL
    + """
import json, os, sys, threading
import uform
from tests.helpers.runs import digest, ram, shape

texts = [f"a text of some length, number {number}" for number in range(64)]
modalities = [uform.Modality.TEXT] * len(texts)

def make():
    batch = shape(rows=32, columns=64, segments=64)
    return uform.Trainer.init_ram(ram(), depth=2, hidden=128, batch=batch)

trainer, alone, stats = make(), make(), uform.TrainerStepStats()
gate, sent = threading.Lock(), []

def interrupt():
    with gate:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGINT)

# The other thread gets the GIL, which nobody is made to give up, when a verb below releases it.
sys.setswitchinterval(1e6)
gate.acquire()
thread = threading.Thread(target=interrupt)
thread.start()
interrupted = False
try:
    gate.release()
    assert not sent
    for _ in range(1000):
        VERB
except KeyboardInterrupt:
    interrupted = True
sys.setswitchinterval(0.005)
thread.join()
trainer.deferred(trainer.executor).step(modalities, texts, stats=stats).result()
for _ in range(stats.step):
    alone.step(modalities, texts)
print(json.dumps([interrupted, digest(trainer) == digest(alone)]))
"""
)


@pytest.mark.parametrize(
    "verb",
    ["trainer.step(modalities, texts)", "trainer.deferred(trainer.executor).step(modalities, texts).result()"],
    ids=["blocking", "deferred"],
)
def test_ctrl_c_during_a_step_leaves_a_usable_trainer(verb: str) -> None:
    """Each step is made whole or not at all, the run goes on from there, and the interpreter comes to its end."""
    assert run_python(INTERRUPTED.replace("VERB", verb), timeout=60) == [True, True]


MIDWAY = (
    HEEDFUL
    + """
import json, os, sys, threading, traceback
from pathlib import Path
import uform
from tests.helpers.runs import digest, ram, shape

folder, given = Path(sys.argv[1]), dict(depth=2, hidden=128, batch=shape())
trainer = uform.Trainer.init_ram(ram(), **given)
kept, gate = digest(trainer), threading.Lock()

def interrupt():
    with gate:
        os.kill(os.getpid(), signal.SIGINT)

def verb(path):
    VERB

sys.setswitchinterval(1e6)  # the other thread gets the GIL when the verb releases it
for attempt in range(1000):
    path, midway = folder / str(attempt), False
    gate.acquire()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        gate.release()
        verb(path)
        thread.join()
    except KeyboardInterrupt:
        midway = "progress._tell" in traceback.format_exc()
    thread.join()
    if midway:
        break  # not after the verb's end
hidden = [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]
trainer.step([uform.Modality.TEXT] * 3, ["a text of some length"] * 3)
print(json.dumps([midway, path.exists(), hidden, digest(trainer) != kept]))
"""
)


@pytest.mark.parametrize("verb", ["trainer.save(path)", "uform.Trainer.init_ram(ram(), **given)"], ids=["save", "init"])
def test_ctrl_c_ends_a_save_or_an_init_midway(verb: str, tmp_path: Path) -> None:
    """Without a progress callback as well: no file is left, nor a half-made run, and the executor serves on."""
    assert run_python(MIDWAY.replace("VERB", verb), tmp_path, timeout=60) == [True, False, [], True]


MODEL_MIDWAY = (
    HEEDFUL
    + """
import json, sys, traceback
import numpy as np
import uform
from tests.helpers.runs import ram, shape

path, name = sys.argv[1:]
batch = uform.BatchShape(max_rows_per_device=2, max_columns_per_row=32, max_choices_per_item=2)
run = dict(depth=1, hidden=64, batch=batch, late_interaction=uform.LateInteraction(width=64), choices=uform.Choices())
uform.Trainer.init_ram(ram(), **run).save(path)
model, arena = uform.Model.init_ram(ram(), path), uform.Arena.for_ram()
texts = [f"text number {number}" for number in range(3000)]
modalities = [uform.Modality.TEXT] * len(texts)
verbs = {
    "embed": lambda: model.embed(modalities, texts, arena=arena),
    "embed_tokens": lambda: model.embed_tokens(modalities, texts, arena=arena),
    "text_choose": lambda: model.text_choose(texts, ["yes", "no"], arena=arena),
}

def values():
    answer = verbs[name]()
    return np.concatenate([row.ravel() for row in answer.numpy()] if name == "embed" else list(map(np.ravel, answer)))

expected, midway = values(), False
arena.reset()
signal.signal(signal.SIGALRM, signal.default_int_handler)
for attempt in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002 * (1 + attempt % 20))
        verbs[name]()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        midway = "progress._tell" in traceback.format_exc()
    if midway:
        break  # not before its beginning nor after its end
    arena.reset()
used = arena.used
print(json.dumps([midway, used, bool((values() == expected).all())]))
"""
)


@pytest.mark.parametrize("verb", ["embed", "embed_tokens", "text_choose"])
def test_ctrl_c_ends_a_long_verb_of_a_model_midway(verb: str, tmp_path: Path) -> None:
    """Between two passes: what was taken of the arena is given back, and the model answers as before."""
    assert run_python(MODEL_MIDWAY, tmp_path / "checkpoint", verb, timeout=60) == [True, 0, True]


ABANDONED = """
import sys, threading
import uform
from tests.helpers.runs import ram, shape

trainer, started = uform.Trainer.init_ram(ram(), depth=4, hidden=256, batch=shape()), threading.Event()

def tell(done, total):
    started.set()

def save():
    try:
        while True:
            trainer.save(sys.argv[1], progress=tell if sys.argv[2] == "callback" else None)
            started.set()
    except uform.Cancelled:
        pass  # the interpreter ends

threading.Thread(target=save, daemon=True).start()
started.wait(60)
print(1)
"""


@pytest.mark.parametrize("way", ["callback", "none"])
def test_an_interpreter_ends_beside_a_daemon_thread_that_saves(way: str, tmp_path: Path) -> None:
    """The thread is not ended where the core calls back, whose frames would not survive that."""
    assert run_python(ABANDONED, tmp_path / "checkpoint", way) == 1


OBJECTIVE = """
import sys, threading, time
import uform
from tests.helpers.runs import ram, shape

@uform.register
class Slow:
    name = "slow"

    def forward_backward(self, batch):
        started.set()
        for _ in range(20):
            time.sleep(0.001)  # gives the GIL up, and asks for it again
        return 0.0

texts, started, given = ["cat", "dog"], threading.Event(), dict(depth=1, hidden=64, batch=shape())

def make():
    return uform.Trainer.init_ram(ram(), plugins={"slow": None}, **given)

trainer = make()

def step():
    trainer.step([uform.Modality.TEXT] * 2, texts)

def init():
    make().close()
    started.set()

def run():
    try:
        while True:
            VERB()
    except uform.Cancelled:
        pass  # the interpreter ends

threading.Thread(target=run, daemon=True).start()
started.wait(60)
print(1)
"""


@pytest.mark.parametrize("verb", ["step", "init"])
def test_an_interpreter_ends_beside_a_daemon_thread_with_an_objective_in_python(verb: str) -> None:
    """Whatever the core calls there: the step's own part, what derives and makes it, and what lets go of it."""
    for _ in range(4):
        assert run_python(OBJECTIVE.replace("VERB", verb)) == 1
