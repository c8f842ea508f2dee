# cython: language_level=3, annotation_typing=False, auto_pickle=False, boundscheck=False, wraparound=False
"""A call's items: texts, arrays and encoded files, read where they are."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free

from uform._ext.buffers cimport (
    Vector,
    View,
    as_array,
    dense_bytes,
    enum_vector,
    exports_buffer,
    makes_array,
    unsigned_vector,
)
from uform._ext.c_api cimport (
    uform_content_t,
    uform_element_float32_k,
    uform_element_int16_k,
    uform_element_uint8_k,
)
from uform._ext.decoders cimport decode
from uform._ext.fields cimport as_sequence
from uform._ext.registry cimport foreign_modalities
from uform._ext.tape cimport Tape, as_tape

import numpy as np

from uform._ext.enums import Modality

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    TEXT = 0
    IMAGE = 1
    VIDEO = 2
    AUDIO = 3

# By modality: the elements that arrays of it have, the axes, and how the errors say so.
_ARRAYS = {
    IMAGE: ((uform_element_uint8_k,), (2, 3), "uint8 [height, width] or [height, width, channels]"),
    VIDEO: ((uform_element_uint8_k,), (4,), "uint8 [frames, height, width, channels]"),
    AUDIO: ((uform_element_int16_k, uform_element_float32_k), (1, 2),
            "int16 or float32 [samples] or [samples, channels]"),
}
# What third parties' modalities may be given; each looks further itself.
_FOREIGN = ((uform_element_uint8_k, uform_element_int16_k, uform_element_float32_k), (1, 2, 3, 4),
            "a text, bytes, or uint8, int16 or float32 with at most 4 axes")


cdef class Items:

    def __dealloc__(self):
        free(self.contents)


cdef Items parse_items(object modalities, object contents, object bags, object shapes):
    """Reads a call's items; the errors name the item.

    `shapes` has the run's derived shape of each modality but text by its name, so that decoders know what is wanted and
    nothing is decoded for a modality that the run leaves out.
    """
    cdef Items items = Items.__new__(Items)
    cdef Tape tape = as_tape(contents, "contents")
    cdef tuple sequence = None
    cdef size_t count
    items.keepers = []
    if tape is None:
        sequence = as_sequence(contents, "contents", "a list of contents, or a tape (data, offsets)")
        count = len(sequence)
    else:
        count = tape.count
    items.modalities = _modalities_of(modalities, count)
    items.c.count = count
    items.c.modalities = <const uint8_t*>items.modalities.data
    items.c.tape_offsets = NULL
    if bags is not None:
        items.bags = words(bags, count, "bags")
        items.c.bags = <const uint32_t*>items.bags.data
    if tape is not None and _all_texts(items.c.modalities, count):
        _take_tape(items, tape)
    else:
        _take_contents(items, tape, sequence, shapes)
    return items


cdef Vector words(object source, size_t count, str field):
    """uint32 words, one a content."""
    return _one_a_content(unsigned_vector(source, sizeof(uint32_t), field), count, field)


cdef Vector flags(object source, size_t count, object enumeration, str field):
    """Members of a small enumeration as bytes, one a content."""
    return _one_a_content(enum_vector(source, enumeration, field), count, field)


cdef Vector _modalities_of(object source, size_t count):
    """One a content; third parties' modalities are ints."""
    return _one_a_content(enum_vector(source, Modality, "modalities", foreign_modalities()), count, "modalities")


cdef Vector _one_a_content(Vector vector, size_t count, str field):
    if vector.count != count:
        raise ValueError(f"{field} has {vector.count} entries: expected {count}, one a content")
    return vector


cdef bint _all_texts(const uint8_t* modalities, size_t count):
    cdef size_t place
    for place in range(count):
        if modalities[place] != TEXT:
            return False
    return True


cdef void _take_tape(Items items, Tape tape):
    items.c.modalities = NULL
    items.c.tape = tape.data
    items.c.tape_offsets = tape.offsets
    items.c.tape_bytes = tape.bytes
    items.keepers.append(tape)


cdef int _take_contents(Items items, Tape tape, tuple sequence, object shapes) except -1:
    cdef size_t place
    # One more than needed: an idle process's call has contents, too, only none.
    items.contents = <uform_content_t*>calloc(items.c.count + 1, sizeof(uform_content_t))
    if items.contents == NULL:
        raise MemoryError(f"no memory for the descriptions of {items.c.count} contents")
    items.c.contents = items.contents
    items.keepers.append(tape)
    items.keepers.append(sequence)
    for place in range(items.c.count):
        content = sequence[place] if tape is None else tape.text(place, "contents")
        if items.c.modalities[place] == TEXT:
            _take_text(items, place, content)
        elif items.c.modalities[place] > AUDIO:
            _take_foreign(items, place, content)
        else:
            _take_array(items, place, content, shapes)
    return 0


cdef int _take_text(Items items, size_t place, object text) except -1:
    cdef uform_content_t* content = &items.contents[place]
    cdef Py_ssize_t size
    cdef View view
    if PyUnicode_Check(text):
        try:
            content.data = PyUnicode_AsUTF8AndSize(text, &size)
        except UnicodeEncodeError as error:
            raise ValueError(f"contents[{place}] is no text: {error}") from None
        content.bytes = size
    elif PyBytes_CheckExact(text):
        content.data = PyBytes_AS_STRING(text)
        content.bytes = PyBytes_GET_SIZE(text)
    else:
        view = _text_bytes(text, place)
        content.data = view.c.buf
        content.bytes = view.c.len
        items.keepers.append(view)
    return 0


cdef View _text_bytes(object text, size_t place):
    if not exports_buffer(text) and not makes_array(text):
        raise TypeError(f"contents[{place}] is of type {type(text).__name__}: expected a text, as str or a "
                        "buffer of bytes")
    return dense_bytes(text, f"contents[{place}]")


cdef int _take_array(Items items, size_t place, object source, object shapes) except -1:
    cdef int modality = items.c.modalities[place]
    shape = _shape_of(shapes, modality, place)
    cdef View view = _array(source, place, modality)
    if view.c.ndim == 1 and view.c.itemsize == 1 and view.kind() == c"u":
        source = decode(modality, place, memoryview(view.source), shape)
        view = _array(source, place, modality)
    if not view.is_aligned():
        view = View.borrow(np.require(memoryview(view.source), requirements="A"))
    _describe(&items.contents[place], view, place, _ARRAYS[modality])
    items.keepers.append(view)
    return 0


cdef int _take_foreign(Items items, size_t place, object source) except -1:
    """A third party's content: a text or bytes as bytes, any other array as it is."""
    if isinstance(source, (str, bytes)):
        return _take_text(items, place, source)
    cdef View view = _borrow(source, place, _FOREIGN[2])
    _describe(&items.contents[place], view, place, _FOREIGN)
    items.keepers.append(view)
    return 0


cdef object _shape_of(object shapes, int modality, size_t place):
    member = Modality(modality)
    shape = shapes.get(member.name.lower())
    if shape is None:
        raise ValueError(f"modalities[{place}] is {member.name}: the run's batch shape leaves that modality out")
    return shape


cdef View _array(object source, size_t place, int modality):
    return _borrow(source, place, _ARRAYS[modality][2])


cdef View _borrow(object source, size_t place, str expected):
    if not exports_buffer(source):
        if not makes_array(source):
            raise TypeError(f"contents[{place}] is of type {type(source).__name__}: expected {expected}, or the "
                            "encoded bytes")
        source = as_array(source, f"contents[{place}]", expected)
    try:
        return View.borrow(source)
    except (BufferError, ValueError, TypeError) as error:
        raise TypeError(f"contents[{place}] gives no buffer: {error}; expected {expected}") from None


cdef int _describe(uform_content_t* content, View view, size_t place, tuple known) except -1:
    elements, axes, expected = known
    cdef int element = _element_of(view)
    cdef int axis
    if element not in elements or view.c.ndim not in axes:
        format = "bytes" if view.c.format == NULL else view.c.format.decode()
        extents = [view.c.shape[axis] for axis in range(view.c.ndim)]
        raise ValueError(f"contents[{place}] has format '{format}' and extents {extents}: expected {expected}")
    content.data = view.c.buf
    content.bytes = view.c.len
    content.rank = view.c.ndim
    content.element = element
    for axis in range(view.c.ndim):
        content.extents[axis] = view.c.shape[axis]
        content.strides[axis] = view.c.strides[axis]
    return 0


cdef int _element_of(View view):
    cdef char kind = view.kind()
    if kind == c"u" and view.c.itemsize == 1:
        return uform_element_uint8_k
    if kind == c"i" and view.c.itemsize == 2:
        return uform_element_int16_k
    if kind == c"f" and view.c.itemsize == 4:
        return uform_element_float32_k
    return -1
