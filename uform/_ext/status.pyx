# cython: language_level=3, annotation_typing=False
"""From a status of the C API to an exception of Python."""

from uform._ext.c_api cimport (
    uform_last_error,
    uform_last_error_number,
    uform_last_error_path,
    uform_status_success_k,
    uform_status_t,
)

import os
from threading import get_ident

# By thread: what a callback raised in the call that is about to fail for it.
cdef dict _causes = {}


class DeviceError(RuntimeError):
    """A device is missing, unfit or at fault."""

    __module__ = "uform"


class MeshError(RuntimeError):
    """A peer of the run is lost, or cannot be reached."""

    __module__ = "uform"


class Cancelled(Exception):
    """The progress callback answered False; nothing was left half done."""

    __module__ = "uform"


# In the order of uform_status_t, which begins with success.
_EXCEPTIONS = (
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
    OSError,
    DeviceError,
    MeshError,
    Cancelled,
    FloatingPointError,
    RuntimeError,
)


cdef int check(uform_status_t status) except -1 nogil:
    """Raises what a call answered, with this thread's message; takes the GIL only where there is something to raise."""
    if status == uform_status_success_k:
        return 0
    with gil:
        if uform_last_error_number() != 0:
            raise _refusal_of_file(uform_last_error_number(), uform_last_error(), uform_last_error_path())
        message = uform_last_error().decode("utf-8", "replace")
        cause = _causes.pop(get_ident(), None)
        if cause is not None and not isinstance(cause, Exception):
            raise cause  # an interruption stays one
        failure = _EXCEPTIONS[status if 0 < status < len(_EXCEPTIONS) else 0](message)
        if cause is None:
            raise failure
        raise failure from cause


cdef object _refusal_of_file(int number, bytes message, bytes path):
    """FileNotFoundError, PermissionError and so on: what the system's own number makes of OSError."""
    spoken = message.removeprefix(b"'" + path + b"': ").decode("utf-8", "replace")
    return OSError(number, spoken, os.fsdecode(path))


cdef void remember_cause(object error):
    """Has the next failure that this thread raises tell where it comes from."""
    _causes[get_ident()] = error
