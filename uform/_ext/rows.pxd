from uform._ext.arena cimport Arena, ArenaBuffer, Room
from uform._ext.c_api cimport uform_items_t, uform_output_t
from uform._ext.executor cimport Executor


cdef class Rows:
    """Where a call writes its embeddings: rows in an arena, given back unless the call succeeds."""
    cdef ArenaBuffer buffer
    cdef Room room
    cdef ArenaBuffer keep(self)
    cdef int release(self) except -1


cdef Rows make_rows(Arena arena, const uform_items_t* items, size_t width, object scalar, uform_output_t* output)
cdef Arena as_arena(object arena, Executor executor)
