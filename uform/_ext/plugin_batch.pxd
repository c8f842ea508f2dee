from uform._ext.plugin cimport uform_operations_t, uform_pass_t, uform_stream_t


cdef class PluginArray:
    """Numbers on a step's device, lent to a Python objective."""
    cdef void* data
    cdef int axes
    cdef Py_ssize_t[2] extents
    cdef Py_ssize_t[2] strides
    cdef int index  # of the GPU, or -1 for the host
    cdef bint lent
    cdef bint writable
    cdef Py_ssize_t exports
    cdef PluginArray update(self, object function, object other)
    cdef int check_writable(self) except -1
    cdef int check_lent(self) except -1
    cdef Py_ssize_t take_back(self)


cdef PluginArray lend(void* data, tuple shape, int index, bint writable)
