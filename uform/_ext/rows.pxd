from uform._ext.arena cimport Arena, ArenaBuffer, Pin
from uform._ext.c_api cimport uform_items_t, uform_output_t


cdef class Rows:
    """Where a call writes its embeddings: rows in an arena, pinned until the call is over."""
    cdef ArenaBuffer buffer
    cdef Pin pin
    cdef void release(self)


cdef Rows make_rows(Arena arena, const uform_items_t* items, size_t width, object scalar, uform_output_t* output)
cdef Arena as_arena(object arena)
