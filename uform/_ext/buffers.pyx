# cython: language_level=3, annotation_typing=False, auto_pickle=False, boundscheck=False, wraparound=False
"""Buffers of numbers and bytes, borrowed without a copy where their type is already the one asked for."""

from cpython.buffer cimport (
    PyBUF_RECORDS_RO,
    PyBuffer_IsContiguous,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.math cimport isinf
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from uform._ext.fields cimport as_enum, as_real, as_sequence, as_unsigned

import sys

import numpy as np

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyFloat_CheckExact(object number)
    bint PyLong_Check(object number)
    bint PyBool_Check(object number)

# What a vector of no numbers points at: a null pointer would say that there is no vector.
cdef uint64_t nothing = 0


cdef class View:

    @staticmethod
    cdef View borrow(object source):
        """Raises what the exporter raises: BufferError for pointers to pointers, TypeError where it is none."""
        refuse_mask(source)
        cdef View view = View.__new__(View)
        PyObject_GetBuffer(source, &view.c, PyBUF_RECORDS_RO)
        view.held = True
        view.source = source
        return view

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.c)

    cdef char kind(self):
        """'u', 'i' or 'f' for numbers in this machine's byte order, else 0."""
        cdef const char* format = self.c.format
        if format == NULL:
            return c"u"
        if format[0] in b"@=<":
            format += 1
        elif format[0] in b">!" and self.c.itemsize == 1:
            format += 1
        if format[0] == 0 or format[1] != 0:
            return 0
        if format[0] in b"BHILQNc":
            return c"u"
        if format[0] in b"bhilqn":
            return c"i"
        if format[0] in b"efd":
            return c"f"
        return 0

    cdef bint is_dense(self):
        return PyBuffer_IsContiguous(&self.c, c"C")

    cdef bint is_aligned(self):
        """Whether every item lies where one of its size may be read."""
        cdef int axis
        cdef uintptr_t places = <uintptr_t>self.c.buf
        if self.c.itemsize <= 1:
            return True
        for axis in range(self.c.ndim if self.c.strides != NULL else 0):
            places |= <uintptr_t>self.c.strides[axis]
        return places % <uintptr_t>self.c.itemsize == 0


cdef class Vector:
    pass


cdef bint exports_buffer(object source):
    return PyObject_CheckBuffer(source)


cdef Vector _vector_of(View view, bint borrowed):
    """Borrowed numbers are read now: whoever holds the buffer may overwrite it while the call is under way, and an
    offset that changes after it was checked leads anywhere."""
    cdef Vector vector = Vector.__new__(Vector)
    cdef bytes own
    vector.count = view.c.len // view.c.itemsize if view.c.itemsize else 0
    vector.data = view.c.buf if vector.count else &nothing
    vector.keeper = view
    if borrowed and vector.count:
        own = PyBytes_FromStringAndSize(<const char*>view.c.buf, view.c.len)
        vector.data = PyBytes_AS_STRING(own)
        vector.keeper = view, own
    return vector


cdef int refuse_mask(object source) except -1:
    """A buffer has no room for the mask of an array: what it hides would be taken for given."""
    # NumPy imports the module when it is first asked for, which two threads, or a signal's handler, cannot do at once.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(source, masked):
        raise TypeError("a masked array, whose mask would be lost: give its .data or .filled()")
    return 0


cdef object as_array(object source, str field, str expected):
    """What an object that is an array but no buffer makes of itself."""
    try:
        refuse_mask(source)
        return np.asarray(source)
    except MemoryError:
        raise
    except Exception as error:
        raise TypeError(f"{field} is of type {type(source).__name__}, which gives no array: {error}; expected "
                        f"{expected}") from error


cdef bint makes_array(object source):
    return hasattr(type(source), "__array__")


cdef View _open(object source, str field, str expected):
    """The source as a buffer of one axis, or None where it is a sequence."""
    if not PyObject_CheckBuffer(source):
        if not makes_array(source):
            return None
        source = as_array(source, field, expected)
    cdef View view
    try:
        view = View.borrow(source)
    except (BufferError, ValueError, TypeError) as error:
        raise TypeError(f"{field} gives no buffer: {error}; expected {expected}") from None
    if view.c.ndim != 1:
        raise ValueError(f"{field} has {view.c.ndim} axes: expected 1")
    return view


cdef str _type_name(View view):
    if view.c.format == NULL:
        return "bytes of no type"
    format = view.c.format.decode("utf-8", "replace")
    foreign = sys.byteorder == "little" and format[:1] in (">", "!") or sys.byteorder == "big" and format[:1] == "<"
    return f"items of format '{format}'" + (", in another byte order than this machine's" if foreign else "")


cdef Vector unsigned_vector(object source, int item_bytes, str field):
    """Unsigned integers of 1, 4 or 8 bytes from a buffer of any integers or a sequence of int."""
    cdef str expected = f"a sequence of int or a buffer of uint{8 * item_bytes}"
    cdef View view = _open(source, field, expected)
    if view is None:
        return _unsigned_sequence(as_sequence(source, field, expected), item_bytes, field)
    return _unsigned_buffer(view, item_bytes, field, expected)


cdef Vector enum_vector(object source, object enumeration, str field, object more=()):
    """Members of an enumeration that counts from 0, as bytes: from a buffer of integers or a sequence of members.

    `more` are ints beyond its members that count as well.
    """
    cdef str expected = f"a sequence of {enumeration.__name__} or a buffer of uint8"
    cdef unsigned char highest = len(enumeration) - 1
    cdef View view = _open(source, field, expected)
    if view is None:
        return _enum_sequence(as_sequence(source, field, expected), enumeration, highest, field, more)
    cdef Vector vector = _unsigned_buffer(view, 1, field, expected)
    cdef const unsigned char* values = <const unsigned char*>vector.data
    cdef size_t place
    for place in range(vector.count):
        if values[place] > highest and values[place] not in more:
            as_enum(enumeration, values[place], f"{field}[{place}]")
    return vector


cdef Vector _enum_sequence(tuple members, object enumeration, unsigned char highest, str field, object more):
    cdef View view = View.borrow(np.empty(len(members), np.uint8))
    cdef unsigned char* values = <unsigned char*>view.c.buf
    cdef Py_ssize_t place
    cdef int overflow = 0
    cdef long long number
    for place in range(len(members)):
        member = members[place]
        if type(member) is not enumeration and type(member) is not int:
            member = as_enum(enumeration, member, f"{field}[{place}]")
        number = PyLong_AsLongLongAndOverflow(member, &overflow)
        if overflow != 0 or not 0 <= number <= highest and number not in more:
            as_enum(enumeration, member, f"{field}[{place}]")  # raises
        values[place] = <unsigned char>number
    return _vector_of(view, False)


cdef Vector _unsigned_buffer(View view, int item_bytes, str field, str expected):
    cdef char kind = view.kind()
    if kind != c"u" and kind != c"i":
        raise TypeError(f"{field} holds {_type_name(view)}: expected {expected}")
    if kind == c"u" and view.c.itemsize == item_bytes and view.is_dense() and view.is_aligned():
        return _vector_of(view, True)
    return _convert_integers(as_array(memoryview(view.source), field, expected), item_bytes, field)


cdef object _highest(int item_bytes):
    # As a Python number: in C the shift by all 64 bits means nothing.
    return 2 ** (8 * <object>item_bytes) - 1


cdef Vector _convert_integers(object numbers, int item_bytes, str field):
    highest = _highest(item_bytes)
    if numbers.dtype == np.dtype("S1"):
        numbers = numbers.view(np.uint8)
    wrong = numbers < 0
    if numbers.dtype.itemsize > item_bytes:
        wrong |= numbers > highest
    if wrong.any():
        index = int(wrong.argmax())
        raise ValueError(f"{field}[{index}] is {numbers[index]}: expected an int between 0 and {highest}")
    return _vector_of(View.borrow(np.require(numbers, f"u{item_bytes}", ("C", "A"))), False)


cdef Vector _unsigned_sequence(tuple items, int item_bytes, str field):
    cdef View view = View.borrow(np.empty(len(items), dtype=f"u{item_bytes}"))
    cdef uint64_t limit = _highest(item_bytes), number
    cdef Py_ssize_t place
    for place in range(len(items)):
        number = _unsigned(items[place], limit, field, place)
        if item_bytes == 8:
            (<uint64_t*>view.c.buf)[place] = number
        elif item_bytes == 4:
            (<uint32_t*>view.c.buf)[place] = <uint32_t>number
        else:
            (<unsigned char*>view.c.buf)[place] = <unsigned char>number
    return _vector_of(view, False)


cdef uint64_t _unsigned(object item, uint64_t limit, str field, Py_ssize_t place) except? 0:
    cdef int overflow = 0
    cdef long long small
    if PyLong_Check(item) and not PyBool_Check(item):
        small = PyLong_AsLongLongAndOverflow(item, &overflow)
        if overflow == 0 and small >= 0 and <uint64_t>small <= limit:
            return <uint64_t>small
    return as_unsigned(item, f"{field}[{place}]", limit)


cdef Vector float_vector(object source, str field):
    """float32 numbers from a buffer of floats or integers, or a sequence of real numbers."""
    cdef str expected = "a sequence of float or a buffer of float32"
    if isinstance(source, (bytes, bytearray)):  # a text, although its format says numbers
        raise TypeError(f"{field} is of type {type(source).__name__}: expected {expected}")
    cdef View view = _open(source, field, expected)
    if view is None:
        return _float_sequence(as_sequence(source, field, expected), field)
    cdef char kind = view.kind()
    if view.c.format == NULL or view.c.format[0] == c"c" or not (kind == c"f" or kind == c"i" or kind == c"u"):
        raise TypeError(f"{field} holds {_type_name(view)}: expected {expected}")
    if kind == c"f" and view.c.itemsize == 4 and view.is_dense() and view.is_aligned():
        return _vector_of(view, True)
    numbers = as_array(memoryview(view.source), field, expected)
    return _vector_of(View.borrow(as_float32(numbers, field)), False)


cdef object as_float32(object numbers, str field):
    """An array of real numbers as float32; a finite one that it does not hold is refused by its place."""
    with np.errstate(over="ignore"):
        converted = np.require(numbers, np.float32, ("C", "A"))
    lost = np.isinf(converted) & np.isfinite(numbers)
    if lost.any():
        place = np.unravel_index(int(lost.argmax()), lost.shape)
        raise ValueError(f"{field}[{', '.join(map(str, place))}] is {numbers[place]}: expected a float that float32 "
                         "holds")
    return converted


cdef Vector _float_sequence(tuple items, str field):
    cdef View view = View.borrow(np.empty(len(items), np.float32))
    cdef float* values = <float*>view.c.buf
    cdef Py_ssize_t place
    cdef double number
    for place in range(len(items)):
        item = items[place]
        number = item if PyFloat_CheckExact(item) else as_real(item, f"{field}[{place}]")
        values[place] = <float>number
        if isinf(values[place]) and not isinf(number):
            raise ValueError(f"{field}[{place}] is {number}: expected a float that float32 holds")
    return _vector_of(view, False)


cdef View dense_bytes(object source, str field):
    """Bytes end to end: a buffer of uint8 of one axis, copied only where it has strides."""
    cdef View view = _open(source, field, "a buffer of bytes")
    if view is None:
        raise TypeError(f"{field} is of type {type(source).__name__}: expected a buffer of bytes")
    if view.c.itemsize != 1 or view.kind() != c"u":
        raise TypeError(f"{field} holds {_type_name(view)}: expected bytes")
    if not view.is_dense():
        return View.borrow(bytes(memoryview(view.source)))
    return view
