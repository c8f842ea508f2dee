from uform._ext.buffers cimport Vector
from uform._ext.c_api cimport uform_choice_texts_t
from uform._ext.tape cimport Tape


cdef class ChoiceTexts:
    """The choices of one call as the C API takes them, and what keeps their memory in place."""
    cdef uform_choice_texts_t c
    cdef Tape texts
    cdef Vector item_offsets
    cdef Vector targets
    cdef Vector target_offsets


cdef ChoiceTexts parse_choices(object choices, object targets, size_t items)
cdef object choice_offsets(ChoiceTexts choices, size_t texts)
