cdef class Fields:
    pass


cdef class Record(Fields):
    pass


cdef int refuse_unknown(object made, tuple positional, dict given) except -1
