# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""The two lines in which an executor's calls wait: for their turn among what is submitted to it, and for its devices.

A call waits for its turn in the order of the executor that it is given to, and then for the devices of the one that its
receiver was made on, which may be another one. No calls wait for each other in a circle: who has a turn in some order
waits for devices alone, and who has devices, in a callback, is refused others' where their holder waits for it.
"""

from cpython.pythread cimport PyThread_get_thread_ident

import threading

cdef extern from *:
    """
    static _Thread_local int turns = 0; /* that this thread has in orders */
    static void count_turn(int change) { turns += change; }
    static int has_turn(void) { return turns != 0; }
    static unsigned long long counted = 0; /* guarded by the GIL */
    static unsigned long long count_up(void) { return ++counted; }
    """
    void count_turn(int change) noexcept
    bint has_turn() noexcept
    unsigned long long count_up() noexcept

# Of all that wait for devices. A thread has several here where a signal's handler calls while it waits.
cdef list _held_up = []


cdef class Turn:

    def __cinit__(self):
        self.gate = threading.Lock()
        self.gate.acquire()


# The GIL guards what follows. It is given up in waiting for a gate alone: what else is done between two looks at the
# state makes no object, so that no collection of garbage comes between.
cdef class Line:

    def __cinit__(self):
        self.waiting = []

    cdef int wait(self, Turn turn) except -1:
        """Waits until all that came before have ended; what a signal's handler raises gives the turn up."""
        turn.thread = PyThread_get_thread_ident()
        turn.number = count_up()
        turn.depth = 1
        turn.ready = True
        self.next()
        if self.running is turn:
            return 0
        try:
            turn.gate.acquire()
        except BaseException:
            if self.running is turn:
                self.running = None
                self.next()
            else:
                self.withdraw(turn)
            raise
        return 0

    cdef int withdraw(self, Turn turn) except -1:
        """Gives up a turn that has not begun."""
        self.waiting.remove(turn)
        return self.next()

    cdef int next(self) except -1:
        """Lets the first begin, if it waits for that by now."""
        if self.running is None and self.waiting and (<Turn>self.waiting[0]).ready:
            self.running = self.waiting.pop(0)
            self.running.gate.release()
        return 0

    cdef bint runs_here(self):
        """Whether the call that runs is one of this thread's."""
        return self.running is not None and self.running.thread == PyThread_get_thread_ident()

    cdef int join(self, Turn turn) except -1:
        """Last; but before what this thread waits for already, where a signal's handler calls meanwhile."""
        cdef Py_ssize_t place
        for place in range(len(self.waiting)):
            if (<Turn>self.waiting[place]).thread == PyThread_get_thread_ident():
                break
        else:
            place = len(self.waiting)
        self.waiting.insert(place, turn)
        return 0

    cdef bint waits_for(self, Turn waiter, unsigned long thread, unsigned long long look):
        """Whether a turn that waits here does so for a thread, on whichever way.

        Args:
            waiter: the turn; None is one after all others.
            thread: which one.
            look: a number of this question's own; see `_ends_after`.
        """
        cdef Py_ssize_t place
        if self.running is None or self.running is waiter:
            return False
        if _ends_after(self.running, thread, look):
            return True
        for place in range(len(self.waiting)):
            if self.waiting[place] is waiter:
                break
            if _ends_after(self.waiting[place], thread, look):
                return True
        return False


cdef bint _ends_after(Turn turn, unsigned long thread, unsigned long long look):
    """Whether a turn's end waits for a thread: the turn's own, or one that what it calls meanwhile waits for.

    What the turn's thread waits for since before the turn, which a signal's handler has then, does not count. A turn
    that was asked in the same look is not asked again.
    """
    cdef Py_ssize_t place
    cdef Turn inner
    if turn.thread == thread:
        return True
    if turn.seen == look:
        return False
    turn.seen = look
    for place in range(len(_held_up)):
        inner = _held_up[place]
        if (inner.thread == turn.thread and inner.number >= turn.number
                and inner.line.waits_for(inner, thread, look)):
            return True
    return False


cdef class Devices(Line):

    cdef int enter(self) except -1:
        """Waits until nobody has the devices; refused from within a call that has them, which would never end."""
        cdef Turn turn = Turn.__new__(Turn)
        if self.runs_here():
            self.take_back()
        turn.line = self
        self.join(turn)
        if self.waits_for(turn, PyThread_get_thread_ident(), count_up()):
            self.waiting.remove(turn)
            raise RuntimeError("the executor is in a call whose callback waits for the one whose callback this is: "
                               "neither would end")
        _held_up.append(turn)
        try:
            self.wait(turn)
        finally:
            _held_up.remove(turn)
        return 0

    cdef int leave(self) except -1:
        self.running = None
        return self.next()

    cdef bint serves(self, unsigned long thread):
        """Whether a thread has the devices or waits for them."""
        cdef Py_ssize_t place
        if self.running is not None and self.running.thread == thread:
            return True
        for place in range(len(self.waiting)):
            if (<Turn>self.waiting[place]).thread == thread:
                return True
        return False

    cdef int take_back(self) except -1:
        """Takes the devices from this thread's own turn, if it still waits: a signal's handler that calls is first."""
        cdef Turn turn = self.running
        if turn not in _held_up:
            raise RuntimeError("the executor is in a call of this thread: what that calls, progress or a plugin, "
                               "cannot make another one on it")
        turn.gate.acquire()  # open: the thread has not come to it
        self.waiting.insert(0, turn)
        self.running = None
        return 0


cdef class Turns(Line):

    cdef Turn take(self, object call, object future, Devices needs):
        """A turn after all others, for a call that another thread begins."""
        cdef Turn turn = Turn.__new__(Turn)
        turn.call = call
        turn.future = future
        turn.needs = needs
        self.waiting.append(turn)
        return turn

    cdef Turn next_taken(self):
        """The first turn that was taken for another thread, and which none waits for; None where there is none."""
        cdef Turn turn
        cdef Py_ssize_t place
        for place in range(len(self.waiting)):
            turn = self.waiting[place]
            if turn.future is not None and not turn.ready:
                return turn
        return None

    cdef object withdraw_call(self, object future):
        """Takes the call out of a turn whose thread has not taken it, and answers it; None where there is none.

        The turn stays in the line, and ends when it comes.
        """
        cdef Py_ssize_t place
        cdef Turn turn = self.running
        if turn is None or turn.future is not future:
            for place in range(len(self.waiting)):
                turn = self.waiting[place]
                if turn.future is future:
                    break
            else:
                return None
        call, turn.call = turn.call, None
        if call is not None:
            turn.needs = None
        return call

    cdef int begin(self, Turn turn) except -1:
        self.wait(turn)
        count_turn(1)
        return 0

    cdef int end(self) except -1:
        """Ends what `begin` or `enter` began."""
        self.running.depth -= 1
        if self.running.depth == 0:
            count_turn(-1)
            self.running = None
            self.next()
        return 0

    cdef int enter(self, Devices needs, bint first) except -1:
        """Begins a call of this thread after all others, or as a part of one that the thread has begun in any order.

        Args:
            needs: what the call will wait for.
            first: before those that wait, since the end of some of them waits for this thread.
        """
        cdef Turn turn
        if self.runs_here():
            self.running.depth += 1
        elif not has_turn():
            turn = Turn.__new__(Turn)
            turn.needs = needs
            if first:
                self.waiting.insert(0, turn)
            else:
                self.join(turn)
            self.begin(turn)
        return 0

    cdef int leave(self) except -1:
        """Ends what `enter` began, where it did."""
        return self.end() if self.runs_here() else 0

    cdef bint held_up_here(self, object future):
        """Whether a call that was submitted, or one before it, waits for this thread: for devices that it has or waits
        for, or for its turn, where a signal's handler has interrupted that."""
        cdef Py_ssize_t place
        cdef Turn turn
        cdef unsigned long thread = PyThread_get_thread_ident()
        cdef unsigned long long look = count_up()
        cdef bint held_up = self.running is not None and _waits_for(self.running, thread, look)
        if self.running is not None and self.running.future is future:
            return held_up
        for place in range(len(self.waiting)):
            turn = self.waiting[place]
            held_up = held_up or _waits_for(turn, thread, look)
            if turn.future is future:
                return held_up
        return False  # it has begun


cdef bint _waits_for(Turn turn, unsigned long thread, unsigned long long look):
    """Whether a turn in an order will not end before a thread goes on; see `_ends_after`."""
    return _ends_after(turn, thread, look) or (turn.needs is not None and not turn.needs.serves(turn.thread)
                                               and turn.needs.waits_for(None, thread, look))
