# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Rooms for the embeddings that a call answers."""

from uform._ext.arena cimport HOST, Arena, allocate_rows, reserve
from uform._ext.c_api cimport uform_items_bags, uform_items_t, uform_output_t, uform_scalar_row_bytes
from uform._ext.executor cimport Executor
from uform._ext.status cimport check


cdef class Rows:

    cdef ArenaBuffer keep(self):
        """Ends a call that succeeded; answers what it wrote."""
        self.room.release(True)
        return self.buffer

    cdef int release(self) except -1:
        """Ends a call; without `keep` before, its room is given back."""
        return self.room.release(False)


cdef Arena as_arena(object arena, Executor executor):
    """The arena, where an executor's devices can answer into it; None where there is none."""
    if arena is None:
        return None
    if not isinstance(arena, Arena):
        raise TypeError(f"arena is of type {type(arena).__name__}: expected an Arena")
    cdef Arena given = arena
    where = given.device
    if given.index == HOST:
        return given
    if executor.kind == "ram":
        raise ValueError(f"arena lies in {where}, and the executor computes in RAM: expected Arena.for_ram()")
    if given.index not in executor.devices:
        raise ValueError(f"arena lies in {where}, which is none of the executor's GPUs, {list(executor.devices)}: "
                         "expected one on them, or in RAM")
    return given


cdef Rows make_rows(Arena arena, const uform_items_t* items, size_t width, object scalar, uform_output_t* output):
    """Room for one row a bag; in RAM where no arena is given."""
    cdef Rows made = Rows.__new__(Rows)
    cdef size_t bags
    with nogil:
        check(uform_items_bags(items, &bags))
    if arena is None:
        arena = Arena.for_ram()
    check(uform_scalar_row_bytes(scalar.value, width, &output.row_bytes))
    made.buffer = allocate_rows(arena, bags, width, scalar)
    made.room = reserve(made.buffer)
    output.data = made.buffer.data
    output.rows = bags
    output.scalar = scalar.value
    return made
