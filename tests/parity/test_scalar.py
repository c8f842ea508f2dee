"""Rows between float32 and the element types that others take and give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.harness import Array, Memory, backend, run_on_threads
from uform import Scalar

ITEM_BYTES = {Scalar.FLOAT32: 4, Scalar.FLOAT16: 2, Scalar.BFLOAT16: 2, Scalar.INT8: 1}
NOTHING = np.iinfo(np.uint64).max


def bytes_of_row(scalar: Scalar, width: int) -> int:
    return (width + 7) // 8 if scalar is Scalar.BIT else width * ITEM_BYTES[scalar]


def awkward_values(rows: int, width: int) -> Array:
    """Normal numbers among those at the edges of every type: ties, subnormals, infinities, what is out of range."""
    rng = np.random.default_rng(17)
    values = rng.normal(size=(rows, width)).astype(np.float32)
    ties = [2.0**-14, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 0.5 / 127, 1.5 / 127]
    large = [65519.996, 65520.0, -65536.0, 3e38, np.inf, -np.inf, 1.25, -7.0]
    edges = np.array([0.0, -0.0, 1.0, -1.0, 1e-45, *ties, *large], np.float32)
    places = rng.integers(0, rows * width, 3 * len(edges))
    values.reshape(-1)[places] = np.tile(edges, 3)
    return values


def to_bfloat16(values: Array) -> Array:
    """The bits of the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def expected_rows(values: Array, scalar: Scalar) -> Array:
    with np.errstate(over="ignore"):
        if scalar is Scalar.FLOAT32:
            narrowed = values
        elif scalar is Scalar.FLOAT16:
            narrowed = values.astype(np.float16)
        elif scalar is Scalar.BFLOAT16:
            narrowed = to_bfloat16(values)
        elif scalar is Scalar.INT8:
            narrowed = np.rint(np.clip(values * np.float32(127), -127, 127)).astype(np.int8)
        else:
            narrowed = np.packbits(values > 0, axis=1)
    return np.ascontiguousarray(narrowed).view(np.uint8)


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(0, 64), (1, 1), (150, 64), (37, 67), (300, 8)])
@pytest.mark.parametrize("scalar", list(Scalar))
def test_narrow(scalar: Scalar, rows: int, width: int, placed: bool) -> None:
    values = awkward_values(rows, width) if rows else np.zeros((0, width), np.float32)
    places = np.random.default_rng(3).permutation(rows + 9)[:rows] if placed else np.arange(rows)
    row_bytes = bytes_of_row(scalar, width)
    to_bytes = row_bytes + 5  # rows may lie apart

    def case(operations: Any) -> dict[str, Array]:
        memory = Memory()
        to = memory.output((rows + 9, to_bytes), np.uint8)
        operations.narrow(
            width=width,
            count=rows,
            scalar=int(scalar),
            from_=memory.input(values),
            places=memory.input(places, np.uint32) if placed else None,
            to=to,
            to_bytes=to_bytes,
        )
        memory.check()
        return {"to": to}

    to = run_on_threads(case)["to"]
    expected = np.full_like(to, 0xFF)
    expected[places, :row_bytes] = expected_rows(values, scalar)
    assert np.array_equal(to, expected)


def test_narrow_refuses_other_types() -> None:
    values = np.zeros((1, 8), np.float32)
    with pytest.raises(RuntimeError, match="scalar is 5, expected 0 to 4"):
        backend().narrow(width=8, count=1, scalar=5, from_=values, to=np.zeros(32, np.uint8), to_bytes=32)


LAYOUTS = {  # rows, columns: the strides, and the first value's place, of a matrix of 41 x 19 in an array of 100,000
    "end to end": (19, 1, 0),
    "rows apart": (50, 1, 3),
    "columns apart": (40, 2, 1),
    "turned": (1, 41, 0),
    "backwards": (-19, 1, 40 * 19),
    "one row": (0, 1, 5),
    "one value": (0, 0, 7),
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("scalar", [Scalar.FLOAT32, Scalar.BFLOAT16])
def test_widen(scalar: Scalar, layout: str) -> None:
    rows, width = 41, 19
    row_stride, column_stride, first = LAYOUTS[layout]
    wide = np.random.default_rng(5).normal(size=4000).astype(np.float32)
    stored = wide if scalar is Scalar.FLOAT32 else to_bfloat16(wide)
    exact = wide if scalar is Scalar.FLOAT32 else from_bfloat16(stored)
    expected = exact[first + np.arange(rows)[:, None] * row_stride + np.arange(width) * column_stride]

    def case(operations: Any) -> dict[str, Array]:
        memory = Memory()
        to, not_finite = memory.output((rows, width)), memory.output(1, np.uint64)
        given = {"rows": rows, "width": width, "scalar": int(scalar), "first": first}
        given |= {"row_stride": row_stride, "column_stride": column_stride}
        operations.widen(from_=memory.input(stored, stored.dtype), to=to, not_finite=not_finite, **given)
        operations.widen(from_=memory.input(stored, stored.dtype), to=None, not_finite=not_finite, **given)
        memory.check()
        return {"to": to, "not_finite": not_finite}

    result = run_on_threads(case)
    assert np.array_equal(result["to"], expected)
    assert result["not_finite"] == NOTHING


@pytest.mark.parametrize("to_given", [False, True])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scalar", [Scalar.FLOAT32, Scalar.BFLOAT16])
def test_widen_finds_the_first_that_is_not_finite(scalar: Scalar, wrong: float, to_given: bool) -> None:
    rows, width = 700, 24
    values = np.random.default_rng(5).normal(size=(rows, width)).astype(np.float32)
    for row, column in ((699, 0), (350, 23), (350, 11), (351, 0)):
        values[row, column] = wrong
    stored = values if scalar is Scalar.FLOAT32 else (values.view(np.uint32) >> 16).astype(np.uint16)

    def case(operations: Any) -> dict[str, Array]:
        memory = Memory()
        not_finite = memory.output(1, np.uint64)
        operations.widen(
            rows=rows,
            width=width,
            scalar=int(scalar),
            first=0,
            row_stride=width,
            column_stride=1,
            from_=memory.input(stored, stored.dtype),
            to=memory.output((rows, width)) if to_given else None,
            not_finite=not_finite,
        )
        memory.check()
        return {"not_finite": not_finite}

    assert run_on_threads(case)["not_finite"] == 350 * width + 11


def test_widen_refuses_other_types() -> None:
    found = np.zeros(1, np.uint64)
    with pytest.raises(RuntimeError, match="expected FLOAT32 or BFLOAT16"):
        backend().widen(rows=1, width=8, scalar=1, first=0, row_stride=8, column_stride=1,
                        from_=np.zeros(8, np.float16), to=None, not_finite=found)  # fmt: skip
