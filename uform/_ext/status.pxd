from uform._ext.c_api cimport uform_status_t


cdef int check(uform_status_t status) except -1 nogil
cdef void remember_cause(object error)
