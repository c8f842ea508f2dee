# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
"""Buffers of numbers and bytes, borrowed without a copy where their type is already the one asked for."""

from cpython.buffer cimport (
    PyBUF_RECORDS_RO,
    PyBuffer_IsContiguous,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from libc.stdint cimport uint32_t, uint64_t

import operator

import numpy as np

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyLong_Check(object number)
    bint PyBool_Check(object number)

# What a vector of no numbers points at: a null pointer would say that there is no vector.
cdef uint64_t nothing = 0


# By their bytes, the largest unsigned integers.
_HIGHEST = {size: 2 ** (8 * size) - 1 for size in (1, 4, 8)}


cdef class View:

    @staticmethod
    cdef View borrow(object source):
        """Raises what the exporter raises: BufferError for pointers to pointers, TypeError where it is none."""
        cdef View view = View.__new__(View)
        PyObject_GetBuffer(source, &view.c, PyBUF_RECORDS_RO)
        view.held = True
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


cdef class Vector:
    pass


cdef bint exports_buffer(object source):
    return PyObject_CheckBuffer(source)


cdef Vector _vector_of(View view, bint borrowed):
    cdef Vector vector = Vector.__new__(Vector)
    vector.count = view.c.len // view.c.itemsize if view.c.itemsize else 0
    vector.data = view.c.buf if vector.count else &nothing
    vector.borrowed = borrowed
    vector.keeper = view
    return vector


cdef View _open(object source, str field, str expected):
    """The source as a buffer of one axis, or None where it is a sequence."""
    if not PyObject_CheckBuffer(source):
        if not hasattr(source, "__array__"):
            return None
        source = np.asarray(source)
    cdef View view
    try:
        view = View.borrow(source)
    except (BufferError, ValueError, TypeError) as error:
        raise TypeError(f"{field} gives no buffer: {error}; expected {expected}") from None
    if view.c.ndim != 1:
        raise ValueError(f"{field} has {view.c.ndim} axes: expected 1")
    return view


cdef str _type_name(View view):
    return "bytes of no type" if view.c.format == NULL else f"items of format '{view.c.format.decode()}'"


cdef Vector unsigned_vector(object source, int item_bytes, str field):
    """Unsigned integers of 1, 4 or 8 bytes from a buffer of any integers or a sequence of int."""
    cdef str expected = f"a sequence of int or a buffer of uint{8 * item_bytes}"
    cdef View view = _open(source, field, expected)
    if view is None:
        return _unsigned_sequence(source, item_bytes, field, expected)
    cdef char kind = view.kind()
    if kind != c"u" and kind != c"i":
        raise TypeError(f"{field} holds {_type_name(view)}: expected {expected}")
    if kind == c"u" and view.c.itemsize == item_bytes and view.is_dense():
        return _vector_of(view, True)
    return _convert_integers(np.asarray(memoryview(source) if exports_buffer(source) else source), item_bytes, field)


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
    return _vector_of(View.borrow(np.ascontiguousarray(numbers, dtype=f"u{item_bytes}")), False)


cdef Vector _unsigned_sequence(object source, int item_bytes, str field, str expected):
    if isinstance(source, str):
        raise TypeError(f"{field} is a str: expected {expected}")
    try:
        items = tuple(source)
    except TypeError:
        raise TypeError(f"{field} is of type {type(source).__name__}: expected {expected}") from None
    highest = _highest(item_bytes)
    array = np.empty(len(items), dtype=f"u{item_bytes}")
    cdef View view = View.borrow(array)
    cdef uint64_t limit = highest, number
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
    elif PyBool_Check(item) or not hasattr(type(item), "__index__"):
        raise TypeError(f"{field}[{place}] is {item!r}: expected an int, not {type(item).__name__}")
    number = operator.index(item)
    if not 0 <= number <= limit:
        raise ValueError(f"{field}[{place}] is {number}: expected an int between 0 and {limit}")
    return number


cdef Vector float_vector(object source, str field):
    """float32 numbers from a buffer of floats or a sequence of real numbers."""
    cdef str expected = "a sequence of float or a buffer of float32"
    cdef View view = _open(source, field, expected)
    if view is not None:
        if view.kind() != c"f":
            raise TypeError(f"{field} holds {_type_name(view)}: expected {expected}")
        if view.c.itemsize == 4 and view.is_dense():
            return _vector_of(view, True)
        numbers = np.asarray(memoryview(source) if exports_buffer(source) else source)
    else:
        if isinstance(source, str):
            raise TypeError(f"{field} is a str: expected {expected}")
        try:
            items = list(source)
            numbers = np.array(items, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"{field} is {source!r:.80}: expected {expected}") from None
        if numbers.ndim != 1 or any([isinstance(item, bool) for item in items]):
            raise TypeError(f"{field} is {source!r:.80}: expected {expected}")
    with np.errstate(over="ignore"):  # what is too large becomes inf, which is refused where it is used
        return _vector_of(View.borrow(np.ascontiguousarray(numbers, dtype=np.float32)), False)


cdef View dense_bytes(object source, str field):
    """Bytes end to end: a buffer of uint8 of one axis, copied only where it has strides."""
    cdef View view = _open(source, field, "a buffer of bytes")
    if view is None:
        raise TypeError(f"{field} is of type {type(source).__name__}: expected a buffer of bytes")
    if view.c.itemsize != 1 or view.kind() != c"u":
        raise TypeError(f"{field} holds {_type_name(view)}: expected bytes")
    if not view.is_dense():
        return View.borrow(bytes(memoryview(source)))
    return view
