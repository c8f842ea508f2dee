# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Arenas: memory for answers, on the host or on a GPU, freed all at once."""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES
from libc.stdint cimport int32_t, uintptr_t

from uform._ext.buffers cimport View
from uform._ext.c_api cimport (
    uform_arena_allocate,
    uform_arena_capacity,
    uform_arena_copy,
    uform_arena_free,
    uform_arena_give_back,
    uform_arena_init_on,
    uform_arena_init_ram,
    uform_arena_init_vram,
    uform_arena_pin,
    uform_arena_reset,
    uform_arena_t,
    uform_arena_used,
    uform_scalar_row_bytes,
)
from uform._ext.dlpack cimport (
    DL_BFLOAT,
    DL_CPU,
    DL_CUDA,
    DL_FLOAT,
    DL_INT,
    DL_IS_COPIED,
    DL_UINT,
    DLDevice,
    export,
)
from uform._ext.executor cimport Executor
from uform._ext.fields cimport as_int32, as_integer
from uform._ext.status cimport check

import numpy as np

from uform._ext.enums import Scalar

cdef extern from *:
    const size_t most_bytes "((size_t)PY_SSIZE_T_MAX)"

# By scalar: the buffer protocol's format (bfloat16 has none: its bits are shown), DLPack's code and bits, and the CUDA
# array interface's type (which has no bfloat16 either).
_FORMATS = {
    Scalar.FLOAT32: (b"f", DL_FLOAT, 32, "<f4"),
    Scalar.FLOAT16: (b"e", DL_FLOAT, 16, "<f2"),
    Scalar.BFLOAT16: (b"H", DL_BFLOAT, 16, None),
    Scalar.INT8: (b"b", DL_INT, 8, "|i1"),
    Scalar.BIT: (b"B", DL_UINT, 8, "|u1"),
}


@cython.final
cdef class Arena:
    """Memory that answers are written into, freed all at once; made by `Arena.for_ram` or `Arena.for_vram`."""

    def __cinit__(self):
        self.index = HOST

    def __init__(self) -> None:
        raise TypeError("Arena() is not how arenas are made: use Arena.for_ram() or Arena.for_vram()")

    def __dealloc__(self):
        # The device finishes what it was given before its memory goes.
        with nogil:
            uform_arena_free(self.handle)

    @classmethod
    def for_ram(cls, capacity: int = 0) -> Arena:
        """An arena in host memory.

        Args:
            capacity: its bytes, taken at once; 0 lets it grow.

        Raises:
            MemoryError: the host has not so much.
        """
        cdef Arena made = Arena.__new__(Arena)
        cdef size_t bytes = as_integer(capacity, "capacity", 0, most_bytes)
        with nogil:
            check(uform_arena_init_ram(bytes, &made.handle))
        return made

    @classmethod
    def for_vram(cls, device: int = 0, capacity: int = 0) -> Arena:
        """An arena in a GPU's memory.

        Args:
            device: the GPU's index.
            capacity: its bytes, taken at once; 0 lets it grow.

        Raises:
            DeviceError: there is no such GPU, or this build has no VRAM part.
            MemoryError: the GPU has not so much.
        """
        cdef Arena made = Arena.__new__(Arena)
        cdef int32_t index = as_int32(device, "device")
        cdef size_t bytes = as_integer(capacity, "capacity", 0, most_bytes)
        with nogil:
            check(uform_arena_init_vram(index, bytes, &made.handle))
        made.index = index
        return made

    def __reduce__(self):
        raise TypeError("an Arena cannot be pickled or copied: its memory is of this process")

    @property
    def device(self) -> str:
        """Where it lies: `"ram"`, or `"vram:0"` with the GPU's index."""
        self.open()
        return "ram" if self.index == HOST else f"vram:{self.index}"

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

        In a GPU's memory it waits for all work that the GPU was given, which may still read a buffer.

        Raises:
            BufferError: an array or capsule still shows one of its buffers.
            ValueError: a step that writes into it is in flight.
        """
        cdef uform_arena_t* handle = self.open()
        if self.exports:
            raise BufferError(f"the arena cannot be reset: {self.exports} of its buffers are shown by arrays that are "
                              "still alive")
        with nogil:
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
    """Rows of equal width in an arena, or one row, which it keeps alive.

    In RAM it has the buffer protocol and DLPack, in a GPU's memory DLPack and the CUDA array interface, so that NumPy,
    PyTorch and others see it without a copy. The element type is `scalar`'s. The buffer protocol knows no bfloat16 and
    shows its bits as `uint16`; DLPack hands it over as it is. BIT shows the bytes that the bits are packed in.

    Its values are complete when a verb answers it: no stream has to wait for them.
    """

    def __init__(self) -> None:
        raise TypeError("ArenaBuffer() is not how buffers are made: verbs that take an arena answer them")

    @property
    def arena(self) -> Arena:
        """Where it lies."""
        self.check_made()
        return self.place

    @property
    def scalar(self) -> Scalar:
        """Its element type."""
        self.check_made()
        return self.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and elements a row; for BIT bytes a row."""
        self.check_made()
        return tuple([self.extents[axis] for axis in range(self.axes)])

    @property
    def device(self) -> str:
        """Where it lies: `"ram"`, or `"vram:0"` with the GPU's index."""
        self.check_made()
        return self.place.device

    def __len__(self) -> int:
        self.check_made()
        return self.extents[0]

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """As a NumPy array: a view in RAM, whose arena cannot be reset while it is alive, and a copy from a GPU."""
        return self.part(0, self.extents[0])

    def __array__(self, dtype: object = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]:
        """In RAM what `numpy` answers; from a GPU nothing is copied without being asked for."""
        self.check_alive()
        if self.place.index != HOST:
            raise TypeError(f"the buffer lies in {self.device}: call its numpy() for a copy in RAM")
        return np.array(memoryview(self), dtype=dtype, copy=copy)

    def __getbuffer__(self, Py_buffer* view, int flags):
        self.check_alive()
        if self.place.index != HOST:
            raise BufferError(f"the buffer lies in {self.device}, which the buffer protocol cannot show: use DLPack, "
                              "or its numpy() for a copy")
        view.buf = self.data
        view.obj = self
        view.len = self.bytes()
        view.itemsize = self.item_bytes
        view.readonly = 0
        view.ndim = self.axes
        view.format = <char*>_FORMATS[self.type][0] if flags & PyBUF_FORMAT else NULL
        view.shape = self.extents if flags & PyBUF_ND else NULL
        view.strides = self.strides if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL
        self.place.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.place.exports -= 1

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device: (1, 0) is the CPU, (2, 0) the first GPU."""
        self.check_made()
        if self.place.index == HOST:
            return DL_CPU, 0
        return DL_CUDA, self.place.index

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule over the buffer; the arena cannot be reset while its consumer is alive.

        Args:
            stream: the consumer's, as the array API numbers CUDA's; the values are complete, so it need not wait.
            max_version: of DLPack that the consumer takes.
            dl_device: where it wants the values: None is where they are; from a GPU also (1, 0), a copy in RAM.
            copy: from a GPU, True asks for a copy and False refuses one; in RAM the memory itself is handed over.

        Raises:
            BufferError: the values cannot be had there, or only as a copy, or no copy is made.
        """
        self.check_alive()
        cdef bint versioned = max_version is not None and max_version[0] >= 1
        if self.place.index == HOST:
            return _export_from_ram(self, versioned, dl_device, copy)
        wanted = self.__dlpack_device__() if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        _check_stream(stream)  # PyTorch names one for a copy in RAM, too
        if wanted == (DL_CPU, 0):
            if copy is not None and not copy:
                raise BufferError(f"copy is False: the buffer lies in {self.device}, and dl_device asks for RAM")
            return _export(self.copied(Arena.for_ram()), versioned, True)
        if wanted != self.__dlpack_device__():
            raise BufferError(f"dl_device is {dl_device}: the buffer lies in {self.device}, "
                              f"{self.__dlpack_device__()}, and is copied to the CPU, (1, 0), alone")
        if copy:
            return _export(self.copied(Arena.for_vram(self.place.index)), versioned, True)
        return _export(self, versioned, False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the CUDA array interface, in a GPU's memory alone.

        The array made from it is not counted: do not reset the arena while it is alive. The values are complete, so
        that `stream` is None.

        Raises:
            AttributeError: the buffer lies in RAM.
            TypeError: it is of bfloat16, for which the interface has no type.
        """
        self.check_alive()
        if self.place.index == HOST:
            raise AttributeError("the buffer lies in RAM: it has the buffer protocol and DLPack")
        typestr = _FORMATS[self.type][3]
        if typestr is None:
            raise TypeError("the CUDA array interface has no type for bfloat16: take the buffer through DLPack")
        return {
            "shape": self.shape,
            "typestr": typestr,
            "data": (<uintptr_t>self.data if self.bytes() else 0, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __reduce__(self):
        raise TypeError("an ArenaBuffer cannot be pickled or copied: it lies in an arena of this process; numpy() "
                        "gives what can be")

    def __repr__(self) -> str:
        return f"<ArenaBuffer {list(self.shape)} {self.scalar.name} {self.device}>"

    cdef int check_made(self) except -1:
        if self.place is None:
            raise ValueError("the buffer is not initialised: verbs that take an arena answer buffers")
        return 0

    cdef int check_alive(self) except -1:
        self.check_made()
        if self.generation != self.place.generation:
            raise ValueError("the buffer is gone: its arena was reset")
        return 0

    cdef Py_ssize_t bytes(self):
        return self.extents[0] * self.strides[0]

    cdef object part(self, Py_ssize_t first, Py_ssize_t last):
        """Some rows as a NumPy array: a view in RAM, a copy from a GPU."""
        cdef View view
        cdef Py_ssize_t bytes = (last - first) * self.strides[0]
        cdef const char* source
        self.check_alive()
        if self.place.index == HOST:
            return np.asarray(memoryview(self))[first:last]
        array = np.empty((last - first, *self.shape[1:]), _FORMATS[self.type][0].decode())
        view = View.borrow(array)
        source = <const char*>self.data + first * self.strides[0]
        with nogil:
            check(uform_arena_copy(self.place.handle, view.c.buf, source, bytes))
        return array

    cdef ArenaBuffer copied(self, Arena to):
        """The same values in another arena, of RAM or of the same device."""
        cdef ArenaBuffer made = _allocate(to, self.axes, self.extents, self.item_bytes, self.type)
        cdef Py_ssize_t bytes = self.bytes()
        with nogil:
            check(uform_arena_copy(self.place.handle, made.data, self.data, bytes))
        return made


cdef object _export_from_ram(ArenaBuffer buffer, bint versioned, object dl_device, object copy):
    if dl_device is not None and tuple(dl_device) != (DL_CPU, 0):
        raise BufferError(f"dl_device is {dl_device}: the buffer lies in RAM, (1, 0)")
    if copy:
        raise BufferError("copy is True: the buffer hands over its own memory; copy what comes of it")
    return _export(buffer, versioned, False)


cdef object _export(ArenaBuffer buffer, bint versioned, bint copied):
    cdef DLDevice device
    device.device_type = DL_CPU if buffer.place.index == HOST else DL_CUDA
    device.device_id = 0 if buffer.place.index == HOST else buffer.place.index
    _, code, bits, _ = _FORMATS[buffer.type]
    cdef Lease lease = Lease.__new__(Lease, buffer)
    return export(lease, buffer.data, device, buffer.axes, buffer.extents, code, bits, versioned,
                  DL_IS_COPIED if copied else 0)


cdef int _check_stream(object stream) except -1:
    """A consumer's stream as the array API has it for CUDA."""
    if stream is None:
        return 0
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise TypeError(f"stream is {stream!r}: expected None or an int")
    if stream < -1 or stream == 0:
        raise ValueError(f"stream is {stream}: expected None, -1, 1 (the legacy default stream), 2 (the thread's "
                         "default stream) or a stream's handle")
    return 0


# Its parts are needed when it goes, even out of a cycle.
@cython.no_gc_clear
cdef class Lease:
    """Counts a consumer of a buffer for as long as it lives."""
    cdef ArenaBuffer buffer

    def __cinit__(self, ArenaBuffer buffer not None):
        self.buffer = buffer
        buffer.place.exports += 1

    def __dealloc__(self):
        if self.buffer is not None:
            self.buffer.place.exports -= 1


@cython.no_gc_clear
cdef class Room:

    def __dealloc__(self):
        self.release(False)

    cdef int fill(self, ArenaBuffer buffer) except -1:
        """Says which memory of the arena it is, where that was not known when the call was made."""
        self.memory = buffer.data
        return 0

    cdef int release(self, bint keep) except -1:
        """Ends the call; calls after the first do nothing."""
        cdef Arena arena = self.arena
        if arena is None:
            return 0
        self.arena = None
        if not keep and self.memory != NULL:
            check(uform_arena_give_back(arena.handle, self.memory))
        check(uform_arena_pin(arena.handle, -1))
        return 0


cdef Room pin(Arena arena):
    cdef Room made = Room.__new__(Room)
    check(uform_arena_pin(arena.open(), 1))
    made.arena = arena
    return made


cdef Room reserve(ArenaBuffer buffer):
    cdef Room made = pin(buffer.place)
    made.fill(buffer)
    return made


cdef ArenaBuffer allocate_rows(Arena arena, size_t rows, size_t width, object scalar):
    """Room for rows of `width` values of a scalar, not yet written."""
    cdef size_t row_bytes
    cdef Py_ssize_t[2] extents
    cdef Py_ssize_t item_bytes = _FORMATS[scalar][2] // 8
    check(uform_scalar_row_bytes(scalar.value, width, &row_bytes))
    extents[0], extents[1] = rows, row_bytes // item_bytes
    return _allocate(arena, 2, extents, item_bytes, scalar)


cdef ArenaBuffer allocate_vector(Arena arena, size_t count):
    """Room for float32 numbers, not yet written."""
    cdef Py_ssize_t[2] extents
    extents[0], extents[1] = count, 1
    return _allocate(arena, 1, extents, sizeof(float), Scalar.FLOAT32)


cdef int shorten(ArenaBuffer buffer, size_t count) except -1:
    """Leaves a vector its first numbers."""
    buffer.extents[0] = count
    return 0


cdef ArenaBuffer _allocate(Arena arena, int axes, const Py_ssize_t* extents, Py_ssize_t item_bytes, object scalar):
    cdef ArenaBuffer made = ArenaBuffer.__new__(ArenaBuffer)
    cdef size_t bytes = extents[0] * extents[1] * item_bytes
    cdef uform_arena_t* handle = arena.open()
    with nogil:
        check(uform_arena_allocate(handle, bytes, &made.data))
    made.place = arena
    made.type = scalar
    made.generation = arena.generation
    made.axes = axes
    made.item_bytes = item_bytes
    made.extents[0], made.extents[1] = extents[0], extents[1]
    made.strides[0], made.strides[1] = extents[1] * item_bytes, item_bytes
    return made


cdef Arena arena_on(Executor executor, int32_t device, size_t capacity):
    """An arena in the memory of one of an executor's GPUs, which it keeps alive."""
    cdef Arena made = Arena.__new__(Arena)
    with nogil:
        check(uform_arena_init_on(executor.handle, device, capacity, &made.handle))
    made.index = device
    return made
