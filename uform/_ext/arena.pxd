from libc.stdint cimport int32_t

from uform._ext.c_api cimport uform_arena_t
from uform._ext.executor cimport Executor

# The index of the device of an arena in host memory.
cdef enum:
    HOST = -1


cdef class Arena:
    cdef uform_arena_t* handle
    cdef int32_t index
    cdef Py_ssize_t exports
    cdef unsigned long long generation
    cdef uform_arena_t* open(self) except NULL


cdef class ArenaBuffer:
    cdef Arena place
    cdef object type
    cdef void* data
    cdef unsigned long long generation
    cdef int axes
    cdef Py_ssize_t[2] extents
    cdef Py_ssize_t[2] strides
    cdef Py_ssize_t item_bytes
    cdef int check_made(self) except -1
    cdef int check_alive(self) except -1
    cdef Py_ssize_t bytes(self)
    cdef object part(self, Py_ssize_t first, Py_ssize_t last)
    cdef ArenaBuffer copied(self, Arena to)


cdef class Room:
    """A call's memory until it is done: its arena is not reset, and takes it back unless the call succeeds."""
    cdef Arena arena
    cdef void* memory
    cdef int fill(self, ArenaBuffer buffer) except -1
    cdef int release(self, bint keep) except -1


cdef ArenaBuffer allocate_rows(Arena arena, size_t rows, size_t width, object scalar)
cdef ArenaBuffer allocate_vector(Arena arena, size_t count)
cdef int shorten(ArenaBuffer buffer, size_t count) except -1
cdef Room pin(Arena arena)
cdef Room reserve(ArenaBuffer buffer)
cdef Arena arena_on(Executor executor, int32_t device, size_t capacity)
