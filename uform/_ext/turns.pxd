cdef class Turn:
    """One call's place in a line."""
    cdef object call
    cdef object future
    cdef object gate
    cdef Line line
    cdef Devices needs
    cdef unsigned long thread
    cdef unsigned long long number
    cdef unsigned long long seen
    cdef int depth
    cdef bint ready


cdef class Line:
    """A lock whose holders come in the order of their places."""
    cdef list waiting
    cdef Turn running
    cdef int wait(self, Turn turn) except -1
    cdef int withdraw(self, Turn turn) except -1
    cdef int next(self) except -1
    cdef bint runs_here(self)
    cdef int join(self, Turn turn) except -1
    cdef bint waits_for(self, Turn waiter, unsigned long thread, unsigned long long look)


cdef class Devices(Line):
    """An executor's devices and what is made on them, which one call has at a time."""
    cdef int enter(self) except -1
    cdef int leave(self) except -1
    cdef bint serves(self, unsigned long thread)
    cdef int take_back(self) except -1


cdef class Turns(Line):
    """The order of what is submitted to an executor."""
    cdef Turn take(self, object call, object future, Devices needs)
    cdef Turn next_taken(self)
    cdef object withdraw_call(self, object future)
    cdef int begin(self, Turn turn) except -1
    cdef int end(self) except -1
    cdef int enter(self, Devices needs, bint first) except -1
    cdef int leave(self) except -1
    cdef bint held_up_here(self, object future)
