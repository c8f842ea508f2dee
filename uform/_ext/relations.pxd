from uform._ext.c_api cimport uform_edges_t, uform_relations_t
from uform._ext.record cimport Fields


cdef class Edges(Fields):
    cdef readonly object offsets
    cdef readonly object ids
    cdef readonly object weights
    cdef object fill(self, uform_edges_t* c, str field)


cdef class Relations(Fields):
    cdef readonly Edges attract
    cdef readonly Edges repel
    cdef readonly Edges ignore
    cdef object fill(self, uform_relations_t* c)


cdef object take_relations(object relations, uform_relations_t* c)
