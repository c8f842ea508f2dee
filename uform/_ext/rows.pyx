# cython: language_level=3, annotation_typing=False
"""Rooms for the embeddings that a call answers."""

from uform._ext.arena cimport Arena, allocate_rows, pin
from uform._ext.c_api cimport uform_items_bags, uform_items_t, uform_output_t
from uform._ext.status cimport check


cdef class Rows:

    cdef void release(self):
        self.pin.release()


cdef Arena as_arena(object arena):
    if not isinstance(arena, Arena):
        raise TypeError(f"arena is of type {type(arena).__name__}: expected an Arena")
    if (<Arena>arena).device != "ram":
        raise ValueError(f"arena lies in {arena.device}: expected one in RAM")
    return arena


cdef Rows make_rows(Arena arena, const uform_items_t* items, size_t width, object scalar, uform_output_t* output):
    """Room for one row a bag; an arena of its own where none is given."""
    cdef Rows made = Rows.__new__(Rows)
    cdef size_t bags
    with nogil:
        check(uform_items_bags(items, &bags))
    if arena is None:
        arena = Arena.for_ram()
    made.buffer = allocate_rows(arena, bags, width, scalar)
    made.pin = pin(arena)
    output.data = made.buffer.data
    output.rows = bags
    output.row_bytes = made.buffer.row_bytes
    output.scalar = scalar.value
    return made
