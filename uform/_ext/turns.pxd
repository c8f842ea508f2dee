cdef class Turn:
    """One call's place among those of an executor."""
    cdef object call
    cdef object future
    cdef object gate
    cdef unsigned long thread
    cdef int depth
    cdef bint ready
    cdef bint busy


cdef class Turns:
    """The order of an executor's calls."""
    cdef list waiting
    cdef Turn running
    cdef Turn take(self, object call, object future)
    cdef Turn next_taken(self)
    cdef int begin(self, Turn turn) except -1
    cdef int end(self) except -1
    cdef int withdraw(self, Turn turn) except -1
    cdef int enter(self, bint first) except -1
    cdef int leave(self) except -1
    cdef bint runs_here(self)
    cdef int pass_on(self) except -1
    cdef Py_ssize_t place_of(self, unsigned long thread)
