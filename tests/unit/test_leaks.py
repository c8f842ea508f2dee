"""Nothing is kept that a call borrowed, and nothing grows: references, arrays, memory, threads, files."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call, relate
from tests.helpers.runs import make_trainer, picture, ram, shape, unit_vectors
from uform import Modality, Objective, Relations

LIBC = ctypes.CDLL(None)
LINUX = pytest.mark.skipif(
    not Path("/proc/self/task").exists() or not hasattr(LIBC, "mallinfo2"),
    reason="threads and files are read from /proc, memory from glibc",
)
# Python's tables grow by steps of this order; what a core loses call by call is counted to the byte in test_lifetimes.
SLACK = 64 << 10


@pytest.fixture
def trainer() -> uform.Trainer:
    return make_trainer(objective=Objective.JOINT, batch=shape(images=True))


def inputs() -> dict[str, Any]:
    """Objects of every kind that a step borrows; none is shared or immortal."""
    return {
        "text": f"a text that is made here: {os.getpid()}",
        "accented": f"ein Täxt: {os.getpid()}",
        "data": bytes(f"bytes {os.getpid()}", "ascii"),
        "view": np.frombuffer(b"strided bytes", np.uint8)[::2],
        "image": picture(8, 8),
        "turned": picture(8, 8).transpose(1, 0, 2),
        "bags": np.array([1, 2, 1000, 3, 4, 5], np.uint32),
        "groups": np.zeros(6, np.uint32),
        "offsets": np.array([0, 1, 1, 1, 1, 1, 1], np.uint64),
        "ids": np.array([4], np.uint32),
        "weights": np.array([0.5], np.float32),
        "stats": uform.TrainerStepStats(),
    }


def step(trainer: uform.Trainer, given: dict[str, Any], **changes: Any) -> None:
    relations = Relations(attract=(given["offsets"], given["ids"], given["weights"]))
    contents = [given[name] for name in ("text", "accented", "data", "view", "image", "turned")]
    keywords: dict[str, Any] = {
        "bags": given["bags"],
        "temperature_groups": given["groups"],
        "relations": relations,
        "stats": given["stats"],
        "arena": uform.Arena.for_ram(),
        **changes,
    }
    trainer.step([Modality.TEXT] * 4 + [Modality.IMAGE] * 2, contents, **keywords)


def counts(given: dict[str, Any]) -> dict[str, int]:
    gc.collect()
    return {name: sys.getrefcount(value) for name, value in given.items()}


def test_a_step_keeps_no_reference(trainer: uform.Trainer) -> None:
    given = inputs()
    before = counts(given)
    for _ in range(3):
        step(trainer, given)
    assert counts(given) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"bags": np.zeros(5, np.uint32)},
        {"temperature_groups": [0, 0, 0, 0, 0, 9]},
        {"sides": [0, 0, 0, 0, 0, 7]},
        {"arena": uform.Arena.for_ram(capacity=64)},
        {"outputs_scalar": 77},
        {"stats": 3},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_refused_step_keeps_no_reference(trainer: uform.Trainer, changes: dict[str, Any]) -> None:
    given = inputs()
    before = counts(given)
    for _ in range(3):
        with pytest.raises((ValueError, TypeError, MemoryError)):
            step(trainer, given, **changes)
    assert counts(given) == before


def test_a_step_without_finite_numbers_keeps_no_reference(trainer: uform.Trainer) -> None:
    trainer.write("norm", np.full(64, np.nan, np.float32))
    given = inputs()
    before = counts(given)
    for _ in range(3):
        with pytest.raises(FloatingPointError):
            step(trainer, given)
    assert counts(given) == before


def test_arrays_die_with_their_last_name(trainer: uform.Trainer) -> None:
    given = inputs()
    step(trainer, given)
    watched = [weakref.ref(value) for value in given.values() if isinstance(value, np.ndarray)]
    del given
    gc.collect()
    assert [reference() for reference in watched] == [None] * len(watched)


def test_deferred_steps_let_go_when_they_are_done() -> None:
    executor = uform.Executor.for_ram(threads=1)
    trainer = uform.Trainer.init_ram(executor, depth=1, hidden=64, batch=shape(images=True))
    given = inputs()
    before = counts(given)
    deferred = trainer.deferred(executor)
    contents = [given["text"], given["data"], given["image"]]
    modalities = [Modality.TEXT, Modality.TEXT, Modality.IMAGE]
    pending = [deferred.step(modalities, contents, stats=given["stats"]) for _ in range(5)]
    for call in pending:
        call.result()
    del contents, call, pending
    assert counts(given) == before


def test_losses_keep_no_reference() -> None:
    vectors, logits, targets = unit_vectors(4, 8), np.zeros((3, 256), np.float32), np.zeros(3, np.uint8)
    relations = relate(4, attract=((0, 1, 1.0),))
    given = {"vectors": vectors, "logits": logits, "targets": targets, "relations": relations}
    before = counts(given)
    for _ in range(3):
        uform.losses.contrastive(ram(), vectors, relations=relations)
        uform.losses.masked_bytes(ram(), logits, targets)
        with pytest.raises(ValueError, match="targets"):
            uform.losses.masked_bytes(ram(), logits, targets[:2])
    assert counts(given) == before


def test_an_answer_keeps_its_arena(trainer: uform.Trainer) -> None:
    arena = uform.Arena.for_ram()
    answered = trainer.step([Modality.TEXT] * 2, ["a", "b"], arena=arena)
    assert answered is not None
    expected = np.array(answered.numpy())
    view = answered.numpy()
    del arena, answered
    gc.collect()
    filler = [np.full(4096, 7, np.uint8) for _ in range(100)]
    np.testing.assert_array_equal(view, expected)
    del filler


def test_an_arena_is_not_reset_below_what_shows_it(trainer: uform.Trainer) -> None:
    arena = uform.Arena.for_ram()
    answered = trainer.step([Modality.TEXT] * 2, ["a", "b"], arena=arena)
    assert answered is not None
    view = answered.numpy()
    with pytest.raises(BufferError, match="1 of its buffers"):
        arena.reset()
    del view
    gc.collect()
    arena.reset()
    assert arena.used == 0
    with pytest.raises(ValueError, match="reset"):
        answered.numpy()


def test_a_refused_step_unpins_its_arena(trainer: uform.Trainer) -> None:
    arena = uform.Arena.for_ram()
    with pytest.raises(ValueError, match="temperature_groups"):
        trainer.step([Modality.TEXT], ["a"], arena=arena, temperature_groups=[4])
    arena.reset()


class MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


def allocated_bytes() -> int:
    """What was allocated and not released: unlike the process's size, it does not hold what the allocator keeps."""
    gc.collect()
    LIBC.mallinfo2.restype = MallocInfo
    info = LIBC.mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


def entries(folder: str, known: set[threading.Thread]) -> int:
    """Counted once the threads that deferred calls ran on, of executors made and gone since, have run to their end."""
    gc.collect()
    for thread in set(threading.enumerate()) - known:
        if thread.name.startswith("uform-executor"):
            thread.join(timeout=30)
    return len(os.listdir(f"/proc/self/{folder}"))


@LINUX
def test_memory_does_not_grow_with_the_steps(trainer: uform.Trainer) -> None:
    given = inputs()
    bad = {**given, "bags": np.zeros(5, np.uint32)}

    def steps(count: int) -> None:
        for _ in range(count):
            step(trainer, given)
            with pytest.raises(ValueError, match="bags"):
                step(trainer, bad)

    steps(20)
    blocks, before = sys.getallocatedblocks(), allocated_bytes()
    steps(200)
    assert allocated_bytes() - before < SLACK
    assert sys.getallocatedblocks() - blocks < 1000


@LINUX
def test_trainers_models_and_executors_give_everything_back(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    make_trainer().save(path)
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:-8])

    def live_once() -> None:
        executor = uform.Executor.for_ram(devices=2, threads=3)
        trainer = uform.Trainer.init_ram(executor, depth=1, hidden=64, batch=shape(rows=64))
        Call(["a", "b"]).step(trainer)
        trainer.deferred(executor).step([Modality.TEXT], ["c"]).result()
        trainer.save(path)
        uform.Model.init_ram(executor, path).embed([Modality.TEXT], ["a"])
        for refused in ({"hidden": 65}, {"resume": cut}, {"resume": path, "depth": 3}):
            with pytest.raises((ValueError, OSError)):
                uform.Trainer.init_ram(executor, **refused)

    known = set(threading.enumerate())
    for _ in range(4):
        live_once()
    threads, files, before = entries("task", known), entries("fd", known), allocated_bytes()
    for _ in range(25):
        live_once()
    assert entries("task", known) == threads
    assert entries("fd", known) == files
    assert allocated_bytes() - before < SLACK


@LINUX
def test_what_stays_is_counted() -> None:
    before = allocated_bytes()
    kept = uform.Trainer.init_ram(ram(), depth=1, hidden=64, batch=shape())
    assert allocated_bytes() - before > 10 * SLACK
    del kept
    assert allocated_bytes() - before < SLACK


def test_a_trainer_keeps_its_executor() -> None:
    executor = uform.Executor.for_ram(threads=2)
    trainer = uform.Trainer.init_ram(executor, depth=1, hidden=64, batch=shape())
    del executor
    gc.collect()
    assert Call(["a", "b"]).step(trainer).stats.step == 1


def test_a_closed_trainer_says_so() -> None:
    trainer = make_trainer()
    trainer.close()
    trainer.close()
    for verb in (lambda: trainer.step([Modality.TEXT], ["a"]), lambda: trainer.save("x"), lambda: trainer.read("norm")):
        with pytest.raises(ValueError, match="closed"):
            verb()
