cdef class Receiver:
    """An object whose verbs are also offered through `on` and `deferred`."""
    cdef readonly object executor
