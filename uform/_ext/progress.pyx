# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Progress callbacks across the C API."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t

from uform._ext.c_api cimport uform_status_cancelled_k, uform_status_success_k, uform_status_t
from uform._ext.fields cimport as_uint64, refused
from uform._ext.interpreter cimport enter_python, leave_python, on_main_thread
from uform._ext.status cimport check

import numpy as np


cdef int _call(uint64_t done, uint64_t total, void* state) noexcept nogil:
    """0 cancels."""
    cdef int answer
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
        if progress.callback is None:
            return 1
        answer = progress.callback(done, total)
        return not isinstance(answer, (bool, np.bool_)) or bool(answer)
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
    elif on_main_thread():
        progress.function = _call  # where signals are heard
        progress.steps = 1
    return progress
