from libc.stdint cimport uint32_t


cdef class View:
    """One borrowed buffer, given back when the object goes."""
    cdef Py_buffer c
    cdef bint held
    cdef object source  # what exports it

    @staticmethod
    cdef View borrow(object source)
    cdef char kind(self)
    cdef bint is_dense(self)
    cdef bint is_aligned(self)


cdef class Vector:
    """Numbers end to end, as they were when they were read; what they were read from is held as long."""
    cdef const void* data
    cdef size_t count
    cdef object keeper


cdef int refuse_mask(object source) except -1
cdef bint exports_buffer(object source)
cdef bint makes_array(object source)
cdef object as_array(object source, str field, str expected)
cdef object as_float32(object numbers, str field)
cdef Vector unsigned_vector(object source, int item_bytes, str field)
cdef Vector enum_vector(object source, object enumeration, str field, object more=*)
cdef Vector float_vector(object source, str field)
cdef View dense_bytes(object source, str field)
