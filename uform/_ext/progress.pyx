# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Progress callbacks across the C API."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t

from uform._ext.c_api cimport uform_status_cancelled_k, uform_status_success_k, uform_status_t
from uform._ext.fields cimport as_uint64, refused
from uform._ext.status cimport check

import atexit
import os
import threading
import time

# The interpreter ends a daemon thread where it waits for the GIL, which the frames of C++ below do not survive. So its
# end first keeps threads from asking for the GIL there, and waits for those that have.
cdef extern from *:
    """
    static int inside = 0, ending = 0;

    static int enter_python(void) {
        __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&ending, __ATOMIC_SEQ_CST))
            return 1;
        __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
        return 0;
    }
    static void leave_python(void) { __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST); }
    static void begin_ending(void) { __atomic_store_n(&ending, 1, __ATOMIC_SEQ_CST); }
    static int threads_inside(void) { return __atomic_load_n(&inside, __ATOMIC_SEQ_CST); }
    static void forget_threads(void) { __atomic_store_n(&inside, 0, __ATOMIC_SEQ_CST); }
    """
    int enter_python() noexcept nogil
    void leave_python() noexcept nogil
    void begin_ending()
    int threads_inside()
    void forget_threads()

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef unsigned long main_thread = threading.main_thread().ident


def _end() -> None:
    begin_ending()
    while threads_inside():
        time.sleep(0.001)


def _forget() -> None:
    forget_threads()


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)


cdef int _call(uint64_t done, uint64_t total, void* state) noexcept nogil:
    """0 cancels."""
    cdef int answer
    if PyThread_get_thread_ident() == main_thread:
        return _tell(done, total, state)  # the thread that ends the interpreter, and may save in doing so
    if not enter_python():
        return 0
    answer = _tell(done, total, state)
    leave_python()
    return answer


cdef int _tell(uint64_t done, uint64_t total, void* state) noexcept with gil:
    """An exception of the callback's, or of a signal's handler, is kept and raised once the call is back."""
    cdef Progress progress = <Progress>state
    try:
        PyErr_CheckSignals()
        return progress.callback is None or progress.callback(done, total) is not False
    except BaseException as error:
        progress.raised = error
        return 0


cdef class Progress:

    cdef int finish(self, uform_status_t status) except -1:
        """Raises the callback's own exception before the call's."""
        raised, self.raised = self.raised, None
        if raised is not None and status in (uform_status_success_k, uform_status_cancelled_k):
            raise raised
        return check(status)


cdef Progress as_progress(object callback, object steps):
    if callback is not None and not callable(callback):
        raise refused("progress", callback, "a callable (done, total) or None")
    cdef Progress progress = Progress.__new__(Progress)
    progress.callback = callback
    progress.function = NULL
    progress.steps = as_uint64(steps, "progress_steps")
    if callback is not None:
        progress.function = _call
    elif PyThread_get_thread_ident() == main_thread:
        progress.function = _call  # where signals are heard
        progress.steps = 1
    return progress
