from libc.stdint cimport int32_t

from uform._ext.c_api cimport uform_arena_t


cdef class Arena:
    cdef uform_arena_t* handle
    cdef readonly str device
    cdef Py_ssize_t exports
    cdef unsigned long long generation
    cdef uform_arena_t* open(self) except NULL


cdef class ArenaBuffer:
    cdef readonly Arena arena
    cdef readonly object scalar
    cdef void* data
    cdef size_t row_bytes
    cdef unsigned long long generation
    cdef Py_ssize_t[2] extents
    cdef Py_ssize_t[2] strides
    cdef Py_ssize_t item_bytes
    cdef int check_alive(self) except -1


cdef class Pin:
    """Keeps an arena from being reset while a call that writes into it is in flight."""
    cdef Arena arena
    cdef void release(self)


cdef Pin pin(Arena arena)
cdef ArenaBuffer allocate_rows(Arena arena, size_t rows, size_t width, object scalar)
