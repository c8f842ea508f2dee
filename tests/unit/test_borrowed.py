"""Buffers that a step borrows: changed by another thread meanwhile, without alignment, with a mask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import uform
from tests.helpers.runs import digest, make_trainer, ram, shape, unit_vectors
from uform import Modality, Objective

Array = npt.NDArray[Any]

ITEMS = 16
TEXTS = [f"text {item}" for item in range(ITEMS)]
PAIRS = np.arange(ITEMS, dtype=np.uint32) ^ 1  # each item attracts its neighbour
OFFSETS = np.arange(ITEMS + 1, dtype=np.uint64)
MODALITIES = np.zeros(ITEMS, np.uint8)


def make() -> uform.Trainer:
    return make_trainer(objective=Objective.CONTRASTIVE, batch=shape(rows=16, columns=32, segments=16))


@contextmanager
def spoiling(array: Array, wrong: int) -> Iterator[None]:
    """Another thread writes wrong numbers into the array, and the right ones again, as fast as it can."""
    right, stop = array.copy(), threading.Event()

    def spoil() -> None:
        while not stop.is_set():
            array[1:-1] = wrong
            array[:] = right

    thread = threading.Thread(target=spoil)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        array[:] = right


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
    ],
)
def test_a_writer_meanwhile_makes_no_step_read_elsewhere(name: str, right: Array, wrong: int) -> None:
    """A step sees the numbers of some moment: it runs with them or refuses them (a sanitizer would see the rest)."""
    trainer, changing = make(), right.copy()
    step = step_of(trainer, **{name: changing})
    with spoiling(changing, wrong):
        for _ in range(12):
            try:
                step()
            except ValueError as refused:
                assert name in str(refused) or "contents.offsets" in str(refused)  # noqa: PT017 - any outcome is fine
    step()


def test_a_writer_of_modalities_makes_no_step_call_elsewhere() -> None:
    trainer = make()
    changing: Any = np.zeros(ITEMS, np.uint8)
    with spoiling(changing, 200):
        for _ in range(12):
            try:
                trainer.step(changing, TEXTS, relations=uform.Relations(attract=(OFFSETS, PAIRS)))
            except (ValueError, TypeError) as refused:
                assert "contents" in str(refused) or "modalities" in str(refused)  # noqa: PT017 - any outcome is fine
    step_of(trainer)()


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
