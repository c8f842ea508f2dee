from posix.types cimport pid_t

from uform._ext.c_api cimport uform_executor_t
from uform._ext.turns cimport Devices, Turns


cdef class Executor:
    cdef uform_executor_t* handle
    cdef object worker
    cdef Turns turns
    cdef Devices held
    cdef pid_t process
    cdef int check_process(self) except -1
    cdef int enter(self) except -1
    cdef int leave(self) except -1
    cdef int begin(self, Executor on) except -1
    cdef int end(self) except -1
    cdef uform_executor_t* open(self) except NULL
