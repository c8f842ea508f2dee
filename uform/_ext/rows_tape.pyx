# cython: language_level=3, annotation_typing=False, auto_pickle=False
"""Rows of different lengths end to end."""

cimport cython
from cpython.buffer cimport PyObject_GetBuffer
from libc.stdint cimport uint64_t

from uform._ext.arena cimport ArenaBuffer
from uform._ext.buffers cimport Vector, as_array, exports_buffer, makes_array, unsigned_vector

import operator

import numpy as np


@cython.final
cdef class RowsTape:
    """Rows of different lengths end to end: a buffer of values, and where each row begins.

    Row `i` is `values[offsets[i]:offsets[i + 1]]`: numbers, or vectors where the values have two axes. The tape itself
    shows all values by the buffer protocol (in RAM), DLPack and the CUDA array interface, without a copy, so that
    `tape` and `(tape, tape.offsets)` are taken where values with offsets are.

    Args:
        values: an `ArenaBuffer` or any buffer, of one or two axes.
        offsets: one entry more than the rows; from 0, never falling, to the length of `values`.

    Raises:
        TypeError: `values` is no buffer, or `offsets` are no integers.
        ValueError: an offset is wrong.
    """

    def __cinit__(self, values, offsets, /):
        if not isinstance(values, ArenaBuffer):
            if not exports_buffer(values) and not makes_array(values):
                raise TypeError(f"values is of type {type(values).__name__}: expected an ArenaBuffer or another buffer")
            values = as_array(values, "values", "a buffer")
        if len(values.shape) not in (1, 2):
            raise ValueError(f"values has {len(values.shape)} axes: expected 1 or 2")
        self.rows = values
        self.starts = _checked(unsigned_vector(offsets, sizeof(uint64_t), "offsets"), values.shape[0])

    @property
    def values(self) -> ArenaBuffer | numpy.ndarray[Any, Any]:
        """All rows' values, end to end."""
        return self.rows

    @property
    def offsets(self) -> numpy.ndarray[Any, Any]:
        """Where each row begins, and the last one ends: `uint64`, rows + 1, read-only."""
        return self.starts

    @property
    def device(self) -> str:
        """Where the values lie: `"ram"`, or `"vram:0"` with the GPU's index."""
        return self.rows.device if isinstance(self.rows, ArenaBuffer) else "ram"

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """All rows' values as a NumPy array: a view in RAM, a copy from a GPU."""
        return self.rows.numpy() if isinstance(self.rows, ArenaBuffer) else self.rows

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: SupportsIndex, /) -> numpy.ndarray[Any, Any]:
        """One row: a view in RAM, a copy from a GPU."""
        first, last = self.span(row)
        if isinstance(self.rows, ArenaBuffer):
            return (<ArenaBuffer>self.rows).part(first, last)
        return self.rows[first:last]

    def __iter__(self) -> Iterator[numpy.ndarray[Any, Any]]:
        """The rows, one by one; from a GPU all are copied at once."""
        return _each(self.numpy(), self.starts)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyObject_GetBuffer(self.rows, view, flags)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]:
        """In RAM what `numpy` answers; from a GPU nothing is copied without being asked for."""
        return np.array(self.rows, dtype=dtype, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device: (1, 0) is the CPU, (2, 0) the first GPU."""
        return self.rows.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> object:
        """A DLPack capsule over all values."""
        return self.rows.__dlpack__(**options)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """That of all values, in a GPU's memory alone."""
        return self.rows.__cuda_array_interface__

    def __repr__(self) -> str:
        return f"<RowsTape of {len(self)} rows over {self.rows.shape[0]} values {self.device}>"

    cdef tuple span(self, object row):
        """Where one row begins and ends."""
        place = operator.index(row)
        count = len(self.starts) - 1
        if not -count <= place < count:
            raise IndexError(f"row {place}: the tape has {count} rows")
        place += count if place < 0 else 0
        return int(self.starts[place]), int(self.starts[place + 1])


def _each(values: numpy.ndarray[Any, Any], offsets: numpy.ndarray[Any, Any]) -> Iterator[numpy.ndarray[Any, Any]]:
    for place in range(len(offsets) - 1):
        yield values[int(offsets[place]):int(offsets[place + 1])]


cdef object _checked(Vector offsets, size_t values):
    """A copy of the offsets that nobody writes."""
    cdef const uint64_t* places = <const uint64_t*>offsets.data
    cdef size_t place
    if offsets.count == 0:
        raise ValueError("offsets has no entries: expected one more than the rows")
    if places[0] != 0:
        raise ValueError(f"offsets[0] is {places[0]}: expected 0")
    for place in range(1, offsets.count):
        if places[place] < places[place - 1]:
            raise ValueError(f"offsets[{place}] is {places[place]}: expected at least {places[place - 1]}, the one "
                             "before it")
    if places[offsets.count - 1] != values:
        raise ValueError(f"offsets[{offsets.count - 1}] is {places[offsets.count - 1]}: expected {values}, the length "
                         "of values")
    copied = np.array(<const uint64_t[:offsets.count]>places)
    copied.flags.writeable = False
    return copied
