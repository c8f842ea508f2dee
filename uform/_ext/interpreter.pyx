# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""The way from the core, or from other libraries, back into Python, which closes when the interpreter ends.

The interpreter ends a daemon thread where it waits for the GIL, which the frames of C++ below a callback do not
survive. So its end first keeps threads from asking for the GIL there, and waits for those that have.
"""

import atexit
import os
import threading
import time

cdef extern from "Python.h":
    bint Py_IsInitialized() noexcept nogil
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef extern from *:
    """
    static int inside = 0, ending = 0;

    static int try_to_enter(void) {
        __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&ending, __ATOMIC_SEQ_CST))
            return 1;
        __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
        return 0;
    }
    static void leave(void) { __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST); }
    static void begin_ending(void) { __atomic_store_n(&ending, 1, __ATOMIC_SEQ_CST); }
    static int threads_inside(void) { return __atomic_load_n(&inside, __ATOMIC_SEQ_CST); }
    static void forget_threads(void) { __atomic_store_n(&inside, 0, __ATOMIC_SEQ_CST); }
    """
    int try_to_enter() noexcept nogil
    void leave() noexcept nogil
    void begin_ending()
    int threads_inside()
    void forget_threads()

cdef unsigned long main_thread = threading.main_thread().ident


def _end() -> None:
    begin_ending()
    while threads_inside():
        time.sleep(0.001)


def _begin_child() -> None:
    """Of fork: only the thread that forked goes on, as the main one."""
    global main_thread
    forget_threads()
    main_thread = PyThread_get_thread_ident()


atexit.register(_end)
os.register_at_fork(after_in_child=_begin_child)


cdef bint enter_python() noexcept nogil:
    """Whether a callback may take the GIL; then `leave_python` follows once it has given it back."""
    # The main thread ends the interpreter, and may call verbs in doing so.
    return Py_IsInitialized() and (on_main_thread() or try_to_enter())


cdef void leave_python() noexcept nogil:
    if not on_main_thread():
        leave()


cdef bint on_main_thread() noexcept nogil:
    return PyThread_get_thread_ident() == main_thread
