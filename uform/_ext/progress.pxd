from libc.stdint cimport uint64_t

from uform._ext.c_api cimport uform_progress_t, uform_status_t


cdef class Progress:
    """A user's callback as the C API calls it."""
    cdef object callback
    cdef object raised
    cdef uform_progress_t function
    cdef uint64_t steps
    cdef int finish(self, uform_status_t status) except -1


cdef Progress as_progress(object callback, object steps)
