cdef class RowsTape:
    cdef object rows
    cdef object starts
    cdef tuple span(self, object row)
