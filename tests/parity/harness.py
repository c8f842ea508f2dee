"""What the parity tests share: guarded memory, layouts of columns, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy_openblas32

from tests.parity.build import load_operations

Array = npt.NDArray[Any]

VALUES = 1e-5  # relative error in the 2-norm against float64, of values and of gradients
GRADIENTS = 1e-4
CODE_VALUES = 0xFFFF

_GUARD = 256
_GUARD_BYTE = 0xA5
_ALIGNMENT = 64


class Memory:
    """Arrays as an operation sees them: aligned, between guard zones, poisoned where nothing was written."""

    def __init__(self) -> None:
        self._guards: list[Array] = []
        self._inputs: list[tuple[Array, bytes]] = []

    def output(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """Poison: NaN, or all bits set in integers."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape))
        size = count * kind.itemsize
        block = np.full(2 * _GUARD + size + _ALIGNMENT, _GUARD_BYTE, np.uint8)
        start = _GUARD + -(block.ctypes.data + _GUARD) % _ALIGNMENT
        block[start : start + size] = 0xFF
        self._guards += [block[:start], block[start + size :]]
        array: Array = block[start : start + size].view(kind).reshape(shape)
        return array

    def holding(
        self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32, *, capacity: int | None = None
    ) -> Array:
        """The values, then poison up to `capacity` rows; an operation may change them."""
        given = np.asarray(values, dtype=dtype)
        array = self.output((len(given) if capacity is None else capacity, *given.shape[1:]), given.dtype)
        array[: len(given)] = given
        return array

    def input(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32, *, capacity: int | None = None) -> Array:
        """The same, but `check` refuses a change."""
        array = self.holding(values, dtype, capacity=capacity)
        self._inputs.append((array, array.tobytes()))
        return array

    def workspace(self, size: int) -> Array:
        return self.output(size, np.uint8)

    def check(self) -> None:
        assert all(np.all(guard == _GUARD_BYTE) for guard in self._guards), "written outside of an array"
        for array, before in self._inputs:
            assert array.tobytes() == before, "an input was changed"


@cache
def operations_module() -> ModuleType:
    return load_operations()


@cache
def blas_path() -> str:
    """The library of the scipy-openblas32 wheel."""
    (library,) = Path(scipy_openblas32.get_lib_dir()).glob("libscipy_openblas*.so")
    return str(library)


@cache
def backend(threads: int = 1, devices: int = 1, blas: str | None = None) -> Any:
    return operations_module().Operations(threads, devices, blas)


def run_on_threads(case: Callable[[Any], dict[str, Array]], *, blas: str | None = None) -> dict[str, Array]:
    """What a case answers on one thread; three threads must answer the same bits."""
    alone = case(backend(1, 1, blas))
    shared = case(backend(3, 1, blas))
    assert alone.keys() == shared.keys()
    for name, value in alone.items():
        assert value.tobytes() == shared[name].tobytes(), f"{name} depends on the number of threads"
    return alone


def relative_error(actual: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """In the 2-norm; where nothing but zero is expected, the norm itself."""
    exact = np.asarray(expected, dtype=np.float64)
    difference = float(np.linalg.norm(np.ravel(np.asarray(actual, dtype=np.float64) - exact)))
    norm = float(np.linalg.norm(np.ravel(exact)))
    return difference / norm if norm > 0 else difference


def assert_close(actual: npt.ArrayLike, expected: npt.ArrayLike, bound: float, name: str = "") -> None:
    assert np.shape(actual) == np.shape(expected), name
    error = relative_error(actual, expected)
    assert error <= bound, f"{name}: relative error {error:.3g} > {bound:.3g}"


@dataclass(frozen=True)
class Piece:
    """One segment of a layout: its grid, and the columns behind the content that are not pooled."""

    grid: tuple[int, ...]
    modality: int = 0
    bag: int = 0
    extra: int = 0

    @property
    def content(self) -> int:
        return int(np.prod(self.grid))

    @property
    def columns(self) -> int:
        return 1 + self.content + self.extra

    @property
    def positions_grid(self) -> tuple[int, ...]:
        """The grid whose raster order covers the extra columns, too: they go on along the only axis."""
        assert self.extra == 0 or len(self.grid) == 1
        return (self.grid[0] + self.extra,) if self.extra else self.grid


LAYOUTS: dict[str, tuple[Piece, ...]] = {
    "marker": (Piece((0,)),),
    "short": (Piece((5,), bag=1), Piece((2, 3), modality=1, bag=0), Piece((0,), bag=1), Piece((1,), bag=2, extra=3)),
    "grids": (Piece((2, 2, 3), modality=2, bag=1), Piece((7,), modality=3, bag=1), Piece((4, 1), modality=1, bag=0)),
    "long": (Piece((201,), bag=0, extra=2), Piece((9, 7), modality=1, bag=1), Piece((3,), bag=2)),
    "many": tuple(Piece((1 + 7 * i % 11,), bag=i // 2) for i in range(37)),
}


class Layout:
    """The columns of a batch made of pieces, in memory with room to spare."""

    def __init__(self, memory: Memory, pieces: Sequence[Piece], codes: Array | None = None, spare: int = 13) -> None:
        self.pieces = pieces
        self.firsts = np.cumsum([0, *(piece.columns for piece in pieces)])
        self.count = int(self.firsts[-1])
        self.capacity = self.count + spare
        self.bags = 1 + max(piece.bag for piece in pieces)
        self.bags_capacity = self.bags + 3
        records = np.zeros(len(pieces), operations_module().SEGMENT)
        for record, first, piece in zip(records, self.firsts, pieces, strict=False):
            record["first"], record["columns"], record["pooled"] = first, piece.columns, 1 + piece.content
            record["bag"], record["modality"], record["axes"] = piece.bag, piece.modality, len(piece.grid)
            record["extents"][: len(piece.grid)] = piece.grid
        self.segment_of = memory.output(self.capacity, np.uint32)
        self.positions = memory.output((self.capacity, 3), np.uint16)
        self.fields: dict[str, Any] = {
            "capacity": self.capacity,
            "active": min(self.capacity, self.count + 5),
            "segments_capacity": len(pieces) + 2,
            "bags_capacity": self.bags_capacity,
            "longest": max(piece.columns for piece in pieces),
            "counts": memory.input([self.count, len(pieces), self.bags], np.uint32),
            "segments": memory.input(records, records.dtype, capacity=len(pieces) + 2),
            "codes": memory.input(
                np.zeros(self.count, np.uint16) if codes is None else codes, np.uint16, capacity=self.capacity
            ),
            "segment_of": self.segment_of,
            "positions": self.positions,
        }

    def slices(self) -> list[slice]:
        """The columns of each piece."""
        return [slice(int(a), int(b)) for a, b in zip(self.firsts[:-1], self.firsts[1:], strict=True)]

    def expand(self, operations: Any) -> None:
        operations.columns_expand(self.fields)
