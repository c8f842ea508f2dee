"""Buffers that a step borrows: changed by another thread meanwhile, without alignment, with a mask."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import uform
from tests.helpers.runs import digest, make_trainer, ram, shape, unit_vectors
from uform import Modality, Objective

Array = npt.NDArray[Any]

ITEMS = 16
STEPS = 40
# What a refusal names.
FIELDS = {name: name for name in ("offsets", "ids", "weights", "bags", "modalities")} | {"places": "contents"}
TEXTS = [f"text {item}" for item in range(ITEMS)]
PAIRS = np.arange(ITEMS, dtype=np.uint32) ^ 1  # each item attracts its neighbour
OFFSETS = np.arange(ITEMS + 1, dtype=np.uint64)
MODALITIES = np.zeros(ITEMS, np.uint8)


def make() -> uform.Trainer:
    return make_trainer(objective=Objective.CONTRASTIVE, batch=shape(rows=16, columns=32, segments=16))


SPOIL = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
right, wrong = memory[:], bytes.fromhex(sys.argv[2])
print("begun", flush=True)
while True:
    for numbers in (right, wrong):
        memory[:] = numbers
        for _ in range(100):  # some microseconds, which are between a check and a use
            pass
"""


@contextmanager
def spoiling(right: Array, wrong: int, path: Path) -> Iterator[Array]:
    """Numbers that another process, which no lock here stops, writes wrong and right again all the time."""
    path.write_bytes(right.tobytes())
    spoilt = right.copy()
    spoilt[1:-1] = wrong
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    command = [sys.executable, "-S", "-c", SPOIL, str(path), spoilt.tobytes().hex()]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"begun\n"
        yield np.frombuffer(memory, right.dtype)
    finally:
        writer.kill()
        writer.communicate()


def tape() -> tuple[bytes, Array]:
    data = "".join(TEXTS).encode()
    return data, np.cumsum([0, *map(len, TEXTS)]).astype(np.uint64)


def step_of(trainer: uform.Trainer, **changed: Any) -> Callable[[], object]:
    """A step over a tape, with its buffers or those given in their place."""
    data, offsets = tape()
    given = {"places": offsets, "modalities": MODALITIES, "offsets": OFFSETS, "ids": PAIRS, "weights": None, **changed}
    edges = (given["offsets"], given["ids"], given["weights"])
    return lambda: trainer.step(
        given["modalities"], (data, given["places"]), relations=uform.Relations(attract=edges), bags=given.get("bags")
    )


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("places", tape()[1], 2**62),
        ("places", tape()[1], 2**64 - 1),
        ("offsets", OFFSETS, 2**63),
        ("offsets", OFFSETS, 2**40),
        ("ids", PAIRS, 2**32 - 1),
        ("weights", np.ones(ITEMS, np.float32), 0),
        ("bags", np.arange(ITEMS, dtype=np.uint32), 3),
        ("modalities", MODALITIES, 200),
    ],
)
def test_a_writer_meanwhile_makes_no_step_read_elsewhere(name: str, right: Array, wrong: int, tmp_path: Path) -> None:
    """A step sees the numbers of some moment: it runs with them or refuses them, and reads within bounds."""
    trainer, done = make(), 0
    with spoiling(right, wrong, tmp_path / "numbers") as changing:
        step = step_of(trainer, **{name: changing})
        for _ in range(STEPS):
            try:
                step()
            except ValueError as refused:
                assert FIELDS[name] in str(refused)  # noqa: PT017 - either is right
            else:
                done += 1
    step_of(trainer)()
    assert trainer.describe()["step"] == done + 1


def unaligned(numbers: Array) -> Array:
    """The same numbers, one byte past where they would lie."""
    memory = np.zeros(numbers.nbytes + 1, np.uint8)
    moved: Array = np.ndarray(numbers.shape, numbers.dtype, memory, 1)
    moved[...] = numbers
    assert not moved.flags.aligned
    return moved


def test_unaligned_numbers_are_copied() -> None:
    plain, moved = make(), make()
    bags, weights = np.arange(ITEMS, dtype=np.uint32), np.linspace(1, 2, ITEMS, dtype=np.float32)
    given: dict[str, Array] = {"places": tape()[1], "offsets": OFFSETS, "ids": PAIRS, "weights": weights, "bags": bags}
    step_of(plain, **given)()
    step_of(moved, **{name: unaligned(numbers) for name, numbers in given.items()})()
    assert digest(moved) == digest(plain)


def test_unaligned_vectors_are_copied() -> None:
    vectors, relations = unit_vectors(4, 8), uform.Relations(attract=([0, 1, 2, 3, 4], [1, 0, 3, 2]))
    plain, moved = (
        uform.losses.contrastive(ram(), array, relations=relations) for array in (vectors, unaligned(vectors))
    )
    assert moved.loss == plain.loss
    assert np.array_equal(moved.gradient, plain.gradient)


def test_a_mask_is_not_lost_silently() -> None:
    trainer = make()
    before = digest(trainer)
    masked = {
        name: np.ma.masked_array(numbers, np.arange(len(numbers)) == 1)
        for name, numbers in {
            "places": tape()[1],
            "modalities": MODALITIES,
            "offsets": OFFSETS,
            "ids": PAIRS,
            "weights": np.ones(ITEMS, np.float32),
            "bags": np.arange(ITEMS, dtype=np.uint32),
        }.items()
    }
    for name, numbers in masked.items():
        field = "contents.offsets" if name == "places" else name
        with pytest.raises(TypeError, match=rf"{field}.*a masked array, whose mask would be lost"):
            step_of(trainer, **{name: numbers})()
    with pytest.raises(TypeError, match=r"contents\[0\].*a masked array"):
        trainer.step([Modality.TEXT], [np.ma.masked_array(np.frombuffer(b"ab", np.uint8), [True, False])])
    with pytest.raises(TypeError, match=r"contents\.data.*a masked array"):
        trainer.step([Modality.TEXT], (np.ma.masked_array(np.frombuffer(b"ab", np.uint8), [True, False]), [0, 2]))
    parameter = trainer.describe()["parameters"][0]
    with pytest.raises(TypeError, match=r"array.*a masked array"):
        trainer.write(parameter["name"], np.ma.zeros(parameter["shape"]))
    with pytest.raises(TypeError, match=r"embeddings.*a masked array"):
        uform.losses.contrastive(trainer.executor, np.ma.masked_array(unit_vectors(2, 4)), relations=None)
    with pytest.raises(TypeError, match=r"targets.*a masked array"):
        uform.losses.masked_bytes(trainer.executor, np.zeros((2, 256), np.float32), np.ma.zeros(2, np.uint8))
    assert digest(trainer) == before


def test_a_mask_of_a_picture_is_not_lost_silently() -> None:
    trainer = make_trainer(batch=shape(images=True))
    with pytest.raises(TypeError, match=r"contents\[0\].*a masked array"):
        trainer.step([Modality.IMAGE], [np.ma.zeros((8, 8, 3), np.uint8)])
