# cython: language_level=3, annotation_typing=False, auto_pickle=False, boundscheck=False, wraparound=False
"""Texts end to end, borrowed from who holds them so: `(data, offsets)`, a buffer with `.offsets`, an Arrow array."""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from uform._ext.buffers cimport Vector, View, dense_bytes, exports_buffer, makes_array, unsigned_vector
from uform._ext.fields cimport as_sequence

import itertools

import numpy as np

# The C data interface of Arrow: two structures whose layout is its specification's.
cdef struct ArrowSchema:
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void (*release)(ArrowSchema* schema) noexcept
    void* private_data

cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray* array) noexcept
    void* private_data

cdef uint8_t no_bytes = 0


cdef class Tape:

    cdef int check(self, size_t place, str field) except -1:
        """Refuses offsets of one text that fall or pass the tape."""
        cdef uint64_t begin = self.offsets[place], end = self.offsets[place + 1]
        if begin > end:
            raise ValueError(f"{field}.offsets[{place + 1}] is {end}: expected at least {begin}, the one before it")
        if end > self.bytes:
            raise ValueError(f"{field}.offsets[{place + 1}] is {end}: the tape has {self.bytes} bytes")
        return 0

    cdef Tape checked(self, str field):
        """Itself, once all its offsets are checked."""
        cdef size_t place
        for place in range(self.count):
            self.check(place, field)
        return self

    cdef object text(self, size_t place, str field):
        """The bytes of one text, without a copy; its offsets are checked first."""
        cdef uint64_t begin = self.offsets[place], end = self.offsets[place + 1]
        self.check(place, field)
        return PyMemoryView_FromMemory(<char*>self.data + begin, end - begin, PyBUF_READ)


cdef Tape as_tape(object texts, str field):
    """The texts as a tape, or None where they are a sequence."""
    if isinstance(texts, tuple):
        if len(texts) != 2:
            raise ValueError(f"{field} is a tuple of {len(texts)}: a tuple is a tape (data, offsets); a sequence of "
                             "texts is a list")
        try:
            return _tape_of(texts[0], texts[1], field)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}; a tuple is a tape (data, offsets): a sequence of texts is a list") from None
    if hasattr(texts, "combine_chunks"):  # a column of a pyarrow table is made of arrays
        texts = texts.combine_chunks()
    if hasattr(texts, "__arrow_c_array__"):
        return _tape_of_arrow(texts, field)
    if exports_buffer(texts) and hasattr(texts, "offsets"):
        return _tape_of(texts, texts.offsets, field)
    if isinstance(texts, (str, bytes, bytearray, memoryview)) or _is_flat(texts):
        raise TypeError(f"{field} is one {type(texts).__name__}: expected a list of texts, or a tape (data, offsets)")
    return None


cdef Tape as_texts(object texts, str field):
    """Texts as a tape whose offsets are checked: a sequence's are copied end to end."""
    cdef Tape tape = as_tape(texts, field)
    if tape is not None:
        return tape.checked(field)
    entries = as_sequence(texts, field, "a list of texts, or a tape (data, offsets)")
    return joined([encoded(text, f"{field}[{place}]") for place, text in enumerate(entries)])


cdef bint _is_flat(object texts):
    """Whether it is a buffer of numbers along one axis, whose entries are no texts."""
    cdef View view
    if not exports_buffer(texts):
        return False
    try:
        view = View.borrow(texts)
    except (BufferError, ValueError, TypeError):
        return False
    return view.c.ndim == 1 and view.kind() != 0


cdef Tape _tape_of(object data, object offsets, str field):
    if isinstance(offsets, (bytes, bytearray)):  # a buffer of small integers to others
        raise TypeError(f"{field}.offsets is of type {type(offsets).__name__}: expected numbers")
    cdef View bytes_of = dense_bytes(data, f"{field}.data")
    cdef Vector places = unsigned_vector(offsets, sizeof(uint64_t), f"{field}.offsets")
    if places.count == 0:
        raise ValueError(f"{field}.offsets has no entries: expected one more than the texts")
    cdef Tape tape = Tape.__new__(Tape)
    tape.data = <const uint8_t*>bytes_of.c.buf if bytes_of.c.len else &no_bytes
    tape.bytes = bytes_of.c.len
    tape.offsets = <const uint64_t*>places.data
    tape.count = places.count - 1
    tape.keeper = bytes_of, places
    return tape


cdef Tape _tape_of_arrow(object texts, str field):
    """Data is borrowed; so are offsets of 64 bits, those of 32 are widened."""
    schema_capsule, array_capsule = texts.__arrow_c_array__()
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(schema_capsule, "arrow_schema")
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(array_capsule, "arrow_array")
    cdef bytes format = schema.format
    if format not in (b"u", b"z", b"U", b"Z") or schema.dictionary != NULL:
        raise TypeError(f"{field} is an Arrow array of format '{format.decode()}': expected string, binary or their "
                        "large variants")
    _refuse_nulls(array, field)
    cdef Tape tape = Tape.__new__(Tape)
    cdef Vector places
    tape.count = array.length
    tape.data = <const uint8_t*>array.buffers[2] if array.buffers[2] != NULL else &no_bytes
    tape.keeper = array_capsule
    if array.length == 0 or array.buffers[1] == NULL:
        places = unsigned_vector(np.zeros(array.length + 1, np.uint64), sizeof(uint64_t), field)
        tape.offsets = <const uint64_t*>places.data
        tape.keeper = array_capsule, places
    elif format in (b"U", b"Z"):
        tape.offsets = <const uint64_t*>array.buffers[1] + array.offset
    else:
        places = _widen(<const int32_t*>array.buffers[1] + array.offset, array.length + 1)
        tape.offsets = <const uint64_t*>places.data
        tape.keeper = array_capsule, places
    tape.bytes = tape.offsets[tape.count]
    return tape


cdef Vector _widen(const int32_t* offsets, Py_ssize_t count):
    numbers = np.empty(count, np.uint64)
    cdef uint64_t[::1] wide = numbers
    cdef Py_ssize_t place
    for place in range(count):
        wide[place] = offsets[place]
    return unsigned_vector(numbers, sizeof(uint64_t), "offsets")


cdef int _refuse_nulls(ArrowArray* array, str field) except -1:
    cdef const uint8_t* valid = <const uint8_t*>array.buffers[0]
    cdef int64_t place, bit
    if array.null_count == 0 or valid == NULL:
        return 0
    for place in range(array.length):
        bit = array.offset + place
        if not valid[bit >> 3] >> (bit & 7) & 1:
            raise ValueError(f"{field}[{place}] is null: expected a text")
    return 0


cdef object encoded(object text, str field):
    """A text's bytes: UTF-8 of a str, a buffer's as they are."""
    cdef View view
    if not isinstance(text, str):
        if not exports_buffer(text) and not makes_array(text):
            raise TypeError(f"{field} is of type {type(text).__name__}: expected a text, as str or a buffer of bytes")
        view = dense_bytes(text, field)
        return PyBytes_FromStringAndSize(<const char*>view.c.buf, view.c.len)
    try:
        return str.encode(text)  # a subclass may encode to anything
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} is no text: {error}") from None


cdef Tape joined(list texts):
    """A tape of bytes objects, copied end to end."""
    offsets = np.fromiter(itertools.accumulate(map(len, texts), initial=0), np.uint64, len(texts) + 1)
    return _tape_of(b"".join(texts), offsets, "texts")
