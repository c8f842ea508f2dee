from uform._ext.executor cimport Executor


cdef class Receiver:
    """An object whose verbs are also offered through `on` and `deferred`."""
    cdef readonly Executor executor
