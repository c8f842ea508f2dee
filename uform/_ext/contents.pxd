from uform._ext.buffers cimport Vector
from uform._ext.c_api cimport uform_content_t, uform_items_t


cdef class Items:
    """The items of one call as the C API takes them, and everything that keeps their memory in place."""
    cdef uform_items_t c
    cdef uform_content_t* contents
    cdef Vector modalities
    cdef Vector bags
    cdef list keepers


cdef Items parse_items(object modalities, object contents, object bags, object shapes)
cdef Vector words(object source, size_t count, str field)
cdef Vector flags(object source, size_t count, object enumeration, str field)
