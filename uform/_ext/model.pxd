from uform._ext.c_api cimport uform_model_t, uform_output_t
from uform._ext.contents cimport Items
from uform._ext.deferred cimport Receiver
from uform._ext.rows cimport Rows


cdef class Model(Receiver):
    cdef uform_model_t* handle
    cdef dict shapes
    cdef size_t hidden
    cdef int check_made(self) except -1
    cdef uform_model_t* enter(self) except NULL
    cdef int leave(self) except -1


cdef class EmbedCall:
    """One call of `embed` whose arguments are read: calling it runs it, once."""
    cdef Model model
    cdef Items items
    cdef Rows rows
    cdef uform_output_t output
