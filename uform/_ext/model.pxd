from libc.stdint cimport uint8_t

from uform._ext.arena cimport ArenaBuffer, Room
from uform._ext.buffers cimport Vector
from uform._ext.c_api cimport uform_items_t, uform_model_t, uform_output_t
from uform._ext.choices cimport ChoiceTexts
from uform._ext.contents cimport Items
from uform._ext.deferred cimport Receiver
from uform._ext.rows cimport Rows
from uform._ext.rows_tape cimport RowsTape
from uform._ext.tape cimport Tape


cdef class Model(Receiver):
    cdef uform_model_t* handle
    cdef dict shapes
    cdef size_t hidden
    cdef int check_made(self) except -1
    cdef uform_model_t* enter(self) except NULL
    cdef int leave(self) except -1


cdef class TokensCall:
    """One call of `embed_tokens` whose arguments are read: calling it runs it, once."""
    cdef Model model
    cdef Items items
    cdef Vector sides
    cdef object scalar
    cdef Room room
    cdef RowsTape _answer(self, uform_model_t* handle)
    cdef const uint8_t* side_of(self)


cdef class EmbedCall:
    """One call of `embed` whose arguments are read: calling it runs it, once."""
    cdef Model model
    cdef Items items
    cdef Rows rows
    cdef uform_output_t output


cdef class TextChooseCall:
    """One call of `text_choose` whose arguments are read: calling it runs it, once."""
    cdef Model model
    cdef Tape texts
    cdef ChoiceTexts choices
    cdef object offsets
    cdef ArenaBuffer probabilities
    cdef Room room
    cdef uform_items_t items
