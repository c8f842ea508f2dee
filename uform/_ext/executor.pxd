from uform._ext.c_api cimport uform_executor_t


cdef class Executor:
    cdef uform_executor_t* handle
    cdef object worker
    cdef object order
    cdef bint busy
    cdef int enter(self) except -1
    cdef int leave(self) except -1
    cdef uform_executor_t* open(self) except NULL
