from libc.stdint cimport uint32_t


cdef class View:
    """One borrowed buffer, given back when the object goes."""
    cdef Py_buffer c
    cdef bint held

    @staticmethod
    cdef View borrow(object source)
    cdef char kind(self)
    cdef bint is_dense(self)


cdef class Vector:
    """Numbers end to end, borrowed where they already are what is asked for, else converted."""
    cdef const void* data
    cdef size_t count
    cdef readonly bint borrowed
    cdef object keeper


cdef bint exports_buffer(object source)
cdef Vector unsigned_vector(object source, int item_bytes, str field)
cdef Vector float_vector(object source, str field)
cdef View dense_bytes(object source, str field)
