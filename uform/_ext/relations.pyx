# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Which items of a call attract, repel or ignore which."""

cimport cython
from libc.stdint cimport uint32_t
from libc.string cimport memcmp

from uform._ext.buffers cimport Vector, float_vector, unsigned_vector
from uform._ext.c_api cimport uform_edges_t, uform_relations_t
from uform._ext.record cimport Fields, refuse_unknown


@cython.final
cdef class Edges(Fields):
    """Edges(*, offsets=None, ids=None, weights=None)\n--\n\n\
One edge set over a step's items, as compressed sparse rows of buffers borrowed until the step is final.

    Item `i` has an edge to each of the items `ids[offsets[i]:offsets[i + 1]]`. Buffers of the types below are read
    as they are; other integers, and sequences of int, are converted at each call, with a range check.

    Two sets are equal where their numbers are, whatever holds them; like lists, they have no hash.

    Attributes:
        offsets: `uint64`, one more than the call's items: the first is 0, none falls, the last is the number of ids.
        ids: `uint32`, places in the call's contents.
        weights: `float32`, one an id, finite and not negative; None weighs every edge 1.

    Raises:
        TypeError: a field is no buffer or sequence, or holds numbers of another kind.
        ValueError: ids or weights are given without what they belong to.
    """

    _fields = ("offsets", "ids", "weights")

    def __cinit__(self, *positional, offsets=None, ids=None, weights=None, **unknown):
        refuse_unknown(Edges, positional, unknown)
        _take(self, offsets, ids, weights, "Edges")

    def __eq__(self, other):
        """By the numbers, whatever holds them."""
        if type(self) is not type(other):
            return NotImplemented
        return _are_equal(self, other)

    # Buffers may change, as the entries of a list may.
    __hash__ = None

    cdef object fill(self, uform_edges_t* c, str field):
        """Borrows or converts the three; what is answered keeps their memory until it goes."""
        c.offsets = NULL
        c.ids = NULL
        c.weights = NULL
        c.offsets_count = c.ids_count = c.weights_count = 0
        if self.offsets is None:
            return None
        cdef Vector offsets = unsigned_vector(self.offsets, sizeof(size_t), f"{field}.offsets")
        cdef Vector ids = unsigned_vector(self.ids, sizeof(uint32_t), f"{field}.ids")
        cdef Vector weights = None
        c.offsets = <const size_t*>offsets.data
        c.offsets_count = offsets.count
        c.ids = <const uint32_t*>ids.data
        c.ids_count = ids.count
        if self.weights is not None:
            weights = float_vector(self.weights, f"{field}.weights")
            c.weights = <const float*>weights.data
            c.weights_count = weights.count
        return offsets, ids, weights


cdef int _take(Edges edges, object offsets, object ids, object weights, str field) except -1:
    """Sets the fields; the errors name them within `field`, which is what the caller spelled."""
    if (offsets is None) != (ids is None):
        missing, given = ("offsets", "ids") if offsets is None else ("ids", "offsets")
        raise ValueError(f"{field}.{missing} is None: expected, since {field}.{given} is given")
    if weights is not None and ids is None:
        raise ValueError(f"{field}.ids is None: expected, since {field}.weights is given")
    edges.offsets = offsets
    edges.ids = ids
    edges.weights = weights
    cdef uform_edges_t checked
    edges.fill(&checked, field)
    return 0


cdef bint _are_equal(Edges left, Edges right) except -1:
    cdef uform_edges_t one, other
    _kept = left.fill(&one, "Edges"), right.fill(&other, "Edges")
    return (
        (one.offsets == NULL) == (other.offsets == NULL)
        and (one.weights == NULL) == (other.weights == NULL)
        and one.offsets_count == other.offsets_count
        and one.ids_count == other.ids_count
        and one.weights_count == other.weights_count
        and _same(one.offsets, other.offsets, one.offsets_count * sizeof(size_t))
        and _same(one.ids, other.ids, one.ids_count * sizeof(uint32_t))
        and _same(one.weights, other.weights, one.weights_count * sizeof(float))
    )


cdef bint _same(const void* one, const void* other, size_t bytes):
    return bytes == 0 or memcmp(one, other, bytes) == 0


@cython.final
cdef class Relations(Fields):
    """Relations(*, attract=None, repel=None, ignore=None)\n--\n\n\
The contrastive targets of one step: ignored, attracted, repelled, then the run's `negatives`.

    Attributes:
        attract: `Edges`, or a tuple of their fields in order: pairs to pull together.
        repel: the same: pairs to push apart.
        ignore: the same, without weights: pairs to leave out.
    """

    _fields = ("attract", "repel", "ignore")

    def __cinit__(self, *positional, attract=None, repel=None, ignore=None, **unknown):
        refuse_unknown(Relations, positional, unknown)
        self.attract = _edges(attract, "Relations.attract")
        self.repel = _edges(repel, "Relations.repel")
        self.ignore = _edges(ignore, "Relations.ignore")
        if self.ignore is not None and self.ignore.weights is not None:
            raise ValueError("Relations.ignore.weights is given: ignored pairs have no weight")

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return (self.attract, self.repel, self.ignore) == (other.attract, other.repel, other.ignore)

    __hash__ = None

    cdef object fill(self, uform_relations_t* c):
        """As `Edges.fill`, for the three sets."""
        return (
            _fill(self.attract, &c.attract, "relations.attract"),
            _fill(self.repel, &c.repel, "relations.repel"),
            _fill(self.ignore, &c.ignore, "relations.ignore"),
        )


cdef object _fill(Edges edges, uform_edges_t* c, str field):
    return (edges if edges is not None else Edges()).fill(c, field)


cdef Edges _edges(object value, str field):
    """A set of edges: itself, a tuple of its fields in order, or None."""
    cdef Edges made
    if value is None or type(value) is Edges:
        return value
    if not isinstance(value, tuple):
        raise TypeError(f"{field} is of type {type(value).__name__}: expected Edges or a tuple (offsets, ids, weights)")
    if len(value) > 3:
        raise ValueError(f"{field} has {len(value)} fields: Edges have 3: offsets, ids, weights")
    made = Edges.__new__(Edges)
    offsets, ids, weights = (*value, None, None, None)[:3]
    _take(made, offsets, ids, weights, field)
    return made


cdef object take_relations(object relations, uform_relations_t* c):
    """A step's relations as `Relations.fill`."""
    if relations is None:
        return None
    if not isinstance(relations, Relations):
        raise TypeError(f"relations is of type {type(relations).__name__}: expected Relations, or None")
    return (<Relations>relations).fill(c)
