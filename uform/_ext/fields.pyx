# cython: language_level=3, annotation_typing=False
"""Python values as C fields: what does not fit is refused with the field's name and the value."""

from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, UINT64_MAX, int32_t, int64_t, uint64_t

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

import enum
import math
import numbers
import operator
import os
import reprlib
from collections.abc import Mapping, Set

_UNORDERED = (Mapping, Set)

# The most characters of a value in a message, and the most bits of an int whose digits are shown.
_SHOWN_CHARACTERS = 80
_SHOWN_BITS = 256

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _SHOWN_CHARACTERS


cdef str shown(object value):
    """A value as messages show it: on one line and short, whatever its size, and even where its own repr() fails."""
    if isinstance(value, int) and not isinstance(value, enum.Enum) and value.bit_length() > _SHOWN_BITS:
        return f"{'a negative' if value < 0 else 'an'} int of {value.bit_length()} bits"
    try:
        text = " ".join(_short.repr(value).split())
    except Exception:
        return f"a {type(value).__name__} that repr() does not show"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS - 3]}..."


cdef object refused(str field, object value, str expected):
    """The error for a value of a wrong type."""
    return TypeError(f"{field} is {shown(value)}: expected {expected}, not {type(value).__name__}")


cdef object _index(object value, str field, str expected):
    """The value as a Python int. A bool is none: a flag in the place of a count is a mistake."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise refused(field, value, expected)
    try:
        return operator.index(value)
    except Exception as error:  # an array of several numbers has __index__, too
        raise refused(field, value, expected) from error


cdef object _within(object value, str field, object least, object most):
    number = _index(value, field, "an int")
    if not least <= number <= most:
        raise ValueError(f"{field} is {shown(number)}: expected an int between {least} and {most}")
    return number


cdef int64_t as_integer(object value, str field, int64_t least, int64_t most) except? -1:
    return _within(value, field, least, most)


cdef int32_t as_int32(object value, str field) except? -1:
    return _within(value, field, INT32_MIN, INT32_MAX)


cdef int64_t as_int64(object value, str field) except? -1:
    return _within(value, field, INT64_MIN, INT64_MAX)


cdef uint64_t as_unsigned(object value, str field, uint64_t most) except? 0:
    return _within(value, field, 0, most)


cdef uint64_t as_uint64(object value, str field) except? 0:
    return _within(value, field, 0, UINT64_MAX)


cdef double as_double(object value, str field) except? -1:
    cdef double number = as_real(value, field)
    if not math.isfinite(number):
        raise ValueError(f"{field} is {shown(value)}: expected a finite float")
    return number


cdef double as_real(object value, str field) except? -1:
    """The value as a double, which may be an infinity or no number."""
    if isinstance(value, float):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise refused(field, value, "a float")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{field} is {shown(value)}: expected a finite float") from None
    except Exception as error:
        raise refused(field, value, "a float") from error


cdef object as_enum(object enumeration, object value, str field):
    """A member, or the int that values one; a member of another enumeration is a mistake."""
    if type(value) is enumeration:
        return value
    if isinstance(value, enum.Enum):
        raise refused(field, value, _one_of(enumeration))
    number = value if type(value) is int else _index(value, field, _one_of(enumeration))
    try:
        return enumeration(number)
    except ValueError:
        known = ", ".join([f"{member.name}={member.value}" for member in enumeration])
        raise ValueError(f"{field} is {shown(number)}: expected one of {known}") from None


cdef str _one_of(object enumeration):
    name = enumeration.__name__
    return f"an {name}" if name.startswith(("A", "E", "I", "O")) else f"a {name}"


cdef str as_str(object value, str field):
    if not isinstance(value, str):
        raise refused(field, value, "a str")
    return str.__str__(value)


cdef bytes as_path(object value, str field):
    """A path as the filesystem spells it."""
    try:
        path = bytes(os.fsencode(value))  # of a subclass, too
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} is {shown(value)}: the filesystem spells no such path: {error.reason}") from None
    except Exception as error:
        raise refused(field, value, "a path") from error
    if not path:
        raise ValueError(f"{field} is empty: expected a path")
    if b"\0" in path:
        raise ValueError(f"{field} is {shown(value)}: a path holds no NUL")
    return path


cdef tuple as_sequence(object source, str field, str expected, Py_ssize_t most=PY_SSIZE_T_MAX):
    """The entries of what has a length and an order, at most so many.

    A set has no order, a mapping has more than entries, and a generator is gone once it was read: each is a mistake.
    """
    cdef str name
    if (type(source) is list or type(source) is tuple) and len(source) <= most:
        return tuple(source)
    name = type(source).__name__
    # In two steps: of `str` among others Cython makes a condition that takes an error for true.
    if isinstance(source, str) or isinstance(source, _UNORDERED) or not hasattr(source, "__len__") \
            or not hasattr(source, "__getitem__"):
        raise TypeError(f"{field} is of type {name}: expected {expected}")
    try:
        count = len(source)
        if count <= most:
            return tuple(source)
    except MemoryError:
        raise MemoryError(f"{field} is of type {name}: there is no memory for its entries") from None
    except Exception as error:
        raise TypeError(f"{field} is of type {name}, which gives no entries: {error}; expected {expected}") from error
    raise ValueError(f"{field} has {count} entries: at most {most} are taken")
