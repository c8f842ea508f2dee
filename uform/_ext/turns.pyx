# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""The order of an executor's calls: a lock whose holders come in the order in which they took their places."""

from cpython.pythread cimport PyThread_get_thread_ident

import threading


cdef class Turn:

    def __cinit__(self):
        self.gate = threading.Lock()
        self.gate.acquire()


# The GIL guards what follows. It is given up in waiting for a gate alone: what else is done between two looks at the
# state makes no object, so that no collection of garbage comes between.
cdef class Turns:

    def __cinit__(self):
        self.waiting = []

    cdef Turn take(self, object call, object future):
        """A turn after all others, for a call that another thread begins."""
        cdef Turn turn = Turn.__new__(Turn)
        turn.call = call
        turn.future = future
        self.waiting.append(turn)
        return turn

    cdef Turn next_taken(self):
        """The first turn that was taken for another thread, and whose call nobody has; None where there is none."""
        cdef Turn turn
        cdef Py_ssize_t place
        for place in range(len(self.waiting)):
            turn = self.waiting[place]
            if turn.call is not None:
                return turn
        return None

    cdef int begin(self, Turn turn) except -1:
        """Waits until all that took their turns before have ended; what a signal's handler raises gives the turn up."""
        turn.thread = PyThread_get_thread_ident()
        turn.depth = 1
        turn.ready = True
        self.pass_on()
        if self.running is turn:
            return 0
        try:
            turn.gate.acquire()
        except BaseException:
            if self.running is turn:
                self.end()
            else:
                self.withdraw(turn)
            raise
        return 0

    cdef int end(self) except -1:
        """Ends what `begin` or `enter` began."""
        self.running.depth -= 1
        if self.running.depth == 0:
            self.running = None
            self.pass_on()
        return 0

    cdef int withdraw(self, Turn turn) except -1:
        """Gives up a turn that has not begun."""
        self.waiting.remove(turn)
        return self.pass_on()

    cdef int enter(self, bint first) except -1:
        """Begins a call of this thread after all others, or as a part of what this thread has begun.

        Args:
            first: before those that wait, since the end of some of them waits for this thread.
        """
        cdef unsigned long thread = PyThread_get_thread_ident()
        cdef Turn turn = self.running
        if turn is not None and turn.thread == thread:
            if turn.busy:
                raise RuntimeError("the executor is in a call of this thread: what that calls, progress or a plugin, "
                                   "cannot make another one on it")
            turn.depth += 1
        else:
            turn = Turn.__new__(Turn)
            self.waiting.insert(0 if first else self.place_of(thread), turn)
            self.begin(turn)
        turn.busy = True
        return 0

    cdef int leave(self) except -1:
        self.running.busy = False
        return self.end()

    cdef bint runs_here(self):
        """Whether the call that runs is one of this thread's."""
        return self.running is not None and self.running.thread == PyThread_get_thread_ident()

    cdef int pass_on(self) except -1:
        """Lets the first begin, if it waits for that by now."""
        if self.running is None and self.waiting and (<Turn>self.waiting[0]).ready:
            self.running = self.waiting.pop(0)
            self.running.gate.release()
        return 0

    cdef Py_ssize_t place_of(self, unsigned long thread):
        """The end; but before what this thread waits for already, where a signal's handler calls meanwhile."""
        cdef Py_ssize_t place
        for place in range(len(self.waiting)):
            if (<Turn>self.waiting[place]).thread == thread:
                return place
        return len(self.waiting)
