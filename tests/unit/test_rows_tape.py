"""Rows of different lengths end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.runs import make_trainer

VALUES = np.arange(10, dtype=np.float32)
OFFSETS = np.array([0, 3, 3, 10], np.uint64)


def test_rows_are_views_of_the_values() -> None:
    tape = uform.RowsTape(VALUES, OFFSETS)
    assert len(tape) == 3
    assert [row.tolist() for row in tape] == [[0, 1, 2], [], [3, 4, 5, 6, 7, 8, 9]]
    assert tape[-1].tolist() == tape[2].tolist() == VALUES[3:].tolist()
    assert np.shares_memory(tape[0], VALUES)
    assert np.shares_memory(tape.numpy(), VALUES)
    assert tape.device == "ram"
    assert repr(tape) == "<RowsTape of 3 rows over 10 values ram>"


def test_rows_may_be_vectors() -> None:
    tape = uform.RowsTape(VALUES.reshape(5, 2), [0, 1, 5])
    assert [row.shape for row in tape] == [(1, 2), (4, 2)]


@pytest.mark.parametrize("row", [3, -4, 10**30])
def test_rows_that_are_none_are_refused(row: int) -> None:
    with pytest.raises(IndexError, match=f"row {row}: the tape has 3 rows"):
        uform.RowsTape(VALUES, OFFSETS)[row]
    with pytest.raises(TypeError):
        uform.RowsTape(VALUES, OFFSETS)[0.5]  # type: ignore[index]


def test_offsets_are_copied_and_read_only() -> None:
    given = OFFSETS.copy()
    tape = uform.RowsTape(VALUES, given)
    given[:] = 0
    assert tape.offsets.dtype == np.uint64
    assert tape.offsets.tolist() == OFFSETS.tolist()
    with pytest.raises(ValueError, match="read-only"):
        tape.offsets[0] = 1


def test_the_tape_shows_its_values() -> None:
    tape = uform.RowsTape(VALUES, OFFSETS)
    assert memoryview(tape).tolist() == VALUES.tolist()
    assert np.asarray(tape).tolist() == VALUES.tolist()
    assert tape.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(tape).tolist() == VALUES.tolist()


def test_values_in_an_arena() -> None:
    arena = uform.Arena.for_ram()
    buffer: Any = make_trainer(objective=uform.Objective.CONTRASTIVE).step(
        [uform.Modality.TEXT] * 3, ["cat", "dog", "cow"], arena=arena
    )
    tape = uform.RowsTape(buffer, [0, 1, 3])
    assert tape.values is buffer
    assert tape[1].tolist() == np.asarray(buffer)[1:].tolist()
    del buffer
    assert np.shares_memory(tape[0], tape.numpy())
    arena.reset()
    with pytest.raises(ValueError, match="its arena was reset"):
        tape[0]


@pytest.mark.parametrize(
    ("values", "offsets", "kind", "message"),
    [
        (VALUES, [], ValueError, "offsets has no entries"),
        (VALUES, [1, 10], ValueError, r"offsets\[0\] is 1: expected 0"),
        (VALUES, [0, 5, 4, 10], ValueError, r"offsets\[2\] is 4: expected at least 5"),
        (VALUES, [0, 5], ValueError, r"offsets\[1\] is 5: expected 10, the length of values"),
        (VALUES, [0, 11], ValueError, r"offsets\[1\] is 11: expected 10"),
        (VALUES, [0.0, 10.0], TypeError, "offsets"),
        (7, [0], TypeError, "values is of type int"),
        (np.zeros((1, 1, 1), np.float32), [0, 1], ValueError, "values has 3 axes"),
    ],
)
def test_wrong_tapes_are_refused(values: Any, offsets: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        uform.RowsTape(values, offsets)
