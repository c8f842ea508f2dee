# cython: language_level=3, annotation_typing=False
"""Arenas: memory for answers, freed all at once."""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES
from libc.stdint cimport int32_t

from uform._ext.c_api cimport (
    uform_arena_allocate,
    uform_arena_capacity,
    uform_arena_free,
    uform_arena_init_ram,
    uform_arena_init_vram,
    uform_arena_pin,
    uform_arena_reset,
    uform_arena_t,
    uform_arena_used,
    uform_scalar_row_bytes,
)
from uform._ext.dlpack cimport export
from uform._ext.fields cimport as_int32, as_integer
from uform._ext.status cimport check

import numpy as np

from uform._ext.enums import Scalar

cdef extern from *:
    const size_t most_bytes "((size_t)PY_SSIZE_T_MAX)"

# By scalar: the buffer protocol's format (bfloat16 has none: its bits are shown), and DLPack's code and bits.
_FORMATS = {
    Scalar.FLOAT32: (b"f", 2, 32),
    Scalar.FLOAT16: (b"e", 2, 16),
    Scalar.BFLOAT16: (b"H", 4, 16),
    Scalar.INT8: (b"b", 0, 8),
    Scalar.BIT: (b"B", 1, 8),
}


@cython.final
cdef class Arena:
    """Memory that answers are written into, freed all at once; made by `Arena.for_ram` or `Arena.for_vram`."""

    def __init__(self) -> None:
        raise TypeError("Arena() is not how arenas are made: use Arena.for_ram() or Arena.for_vram()")

    def __dealloc__(self):
        uform_arena_free(self.handle)

    @classmethod
    def for_ram(cls, capacity: int = 0) -> Arena:
        """An arena in host memory.

        Args:
            capacity: its bytes; 0 lets it grow.
        """
        cdef Arena made = Arena.__new__(Arena)
        cdef size_t bytes = as_integer(capacity, "capacity", 0, most_bytes)
        check(uform_arena_init_ram(bytes, &made.handle))
        made.device = "ram"
        return made

    @classmethod
    def for_vram(cls, device: int = 0, capacity: int = 0) -> Arena:
        """An arena in a GPU's memory.

        Args:
            device: the GPU's index.
            capacity: its bytes; 0 lets it grow.

        Raises:
            DeviceError: there is no such GPU, or this build has no VRAM part.
        """
        cdef Arena made = Arena.__new__(Arena)
        cdef int32_t index = as_int32(device, "device")
        cdef size_t bytes = as_integer(capacity, "capacity", 0, most_bytes)
        with nogil:
            check(uform_arena_init_vram(index, bytes, &made.handle))
        made.device = f"vram:{index}"
        return made

    @property
    def used(self) -> int:
        """Bytes in use."""
        return uform_arena_used(self.open())

    @property
    def capacity(self) -> int:
        """Bytes it may hold; 0 where it grows."""
        return uform_arena_capacity(self.open())

    def reset(self) -> None:
        """Frees everything at once; the buffers handed out so far raise ValueError when used again.

        Raises:
            BufferError: an array or capsule still shows one of its buffers.
            ValueError: a step that writes into it is in flight.
        """
        cdef uform_arena_t* handle = self.open()
        if self.exports:
            raise BufferError(f"the arena cannot be reset: {self.exports} of its buffers are shown by arrays that are "
                              "still alive")
        check(uform_arena_reset(handle))
        self.generation += 1

    def __repr__(self) -> str:
        return f"<Arena {self.device} used={self.used} capacity={self.capacity}>"

    cdef uform_arena_t* open(self) except NULL:
        if self.handle == NULL:
            raise ValueError("the arena is not initialised: use Arena.for_ram() or Arena.for_vram()")
        return self.handle


@cython.final
cdef class ArenaBuffer:
    """Rows of equal width in an arena, which it keeps alive.

    It has the buffer protocol and DLPack, so that NumPy, PyTorch and others see it without a copy. The element type is
    `scalar`'s. The buffer protocol knows no bfloat16 and shows its bits as `uint16`; DLPack hands it over as it is.
    BIT shows the bytes that the bits are packed in.

    Attributes:
        arena: where it lies.
        scalar: its element type.
    """

    def __init__(self) -> None:
        raise TypeError("ArenaBuffer() is not how buffers are made: verbs that take an arena answer them")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and elements a row; for BIT bytes a row."""
        return self.extents[0], self.extents[1]

    @property
    def device(self) -> str:
        """Where it lies: `"ram"` or `"vram:0"`."""
        return self.arena.device

    def __len__(self) -> int:
        return self.extents[0]

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """A view as a NumPy array; the arena cannot be reset while it is alive."""
        return np.asarray(memoryview(self))

    def __getbuffer__(self, Py_buffer* view, int flags):
        self.check_alive()
        view.buf = self.data
        view.obj = self
        view.len = self.extents[0] * self.extents[1] * self.item_bytes
        view.itemsize = self.item_bytes
        view.readonly = 0
        view.ndim = 2
        view.format = <char*>_FORMATS[self.scalar][0] if flags & PyBUF_FORMAT else NULL
        view.shape = self.extents if flags & PyBUF_ND else NULL
        view.strides = self.strides if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL
        self.arena.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.arena.exports -= 1

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device: (1, 0), the CPU."""
        return 1, 0

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule over the buffer, never a copy; the arena cannot be reset while its consumer is alive."""
        self.check_alive()
        if dl_device is not None and tuple(dl_device) != (1, 0):
            raise BufferError(f"dl_device is {dl_device}: the buffer lies in RAM, (1, 0)")
        if copy:
            raise BufferError("copy is True: the buffer hands over its own memory; copy what comes of it")
        _, code, bits = _FORMATS[self.scalar]
        cdef Lease lease = Lease.__new__(Lease, self)
        cdef bint versioned = max_version is not None and max_version[0] >= 1
        return export(lease, self.data, 2, self.extents, code, bits, versioned)

    def __repr__(self) -> str:
        return f"<ArenaBuffer {list(self.shape)} {self.scalar.name} {self.device}>"

    cdef int check_alive(self) except -1:
        if self.arena is None:
            raise ValueError("the buffer is not initialised: verbs that take an arena answer buffers")
        if self.generation != self.arena.generation:
            raise ValueError("the buffer is gone: its arena was reset")
        return 0


cdef class Lease:
    """Counts a consumer of a buffer for as long as it lives."""
    cdef ArenaBuffer buffer

    def __cinit__(self, ArenaBuffer buffer):
        self.buffer = buffer
        buffer.arena.exports += 1

    def __dealloc__(self):
        self.buffer.arena.exports -= 1


cdef class Pin:

    def __dealloc__(self):
        self.release()

    cdef void release(self):
        if self.arena is not None:
            uform_arena_pin(self.arena.handle, -1)
        self.arena = None


cdef Pin pin(Arena arena):
    cdef Pin made = Pin.__new__(Pin)
    check(uform_arena_pin(arena.open(), 1))
    made.arena = arena
    return made


cdef ArenaBuffer allocate_rows(Arena arena, size_t rows, size_t width, object scalar):
    """Room for rows of `width` values of a scalar, not yet written."""
    cdef ArenaBuffer made = ArenaBuffer.__new__(ArenaBuffer)
    cdef size_t row_bytes
    check(uform_scalar_row_bytes(scalar.value, width, &row_bytes))
    check(uform_arena_allocate(arena.open(), rows * row_bytes, &made.data))
    made.arena = arena
    made.scalar = scalar
    made.row_bytes = row_bytes
    made.generation = arena.generation
    made.item_bytes = _FORMATS[scalar][2] // 8
    made.extents[0] = rows
    made.extents[1] = row_bytes // made.item_bytes
    made.strides[0] = row_bytes
    made.strides[1] = made.item_bytes
    return made
