# cython: language_level=3, annotation_typing=False
"""Python values as C fields: what does not fit is refused with the field's name and the value."""

from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t

import math
import numbers
import operator
import os

_UINT64_MAX = 2**64 - 1


cdef object _index(object value, str field):
    """The value as a Python int. A bool is none: a flag in the place of a count is a mistake."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{field} is {value!r}: expected an int, not {type(value).__name__}")
    return operator.index(value)


cdef int64_t as_integer(object value, str field, int64_t least, int64_t most) except? -1:
    number = _index(value, field)
    if not least <= number <= most:
        raise ValueError(f"{field} is {number}: expected an int between {least} and {most}")
    return number


cdef int32_t as_int32(object value, str field) except? -1:
    return <int32_t>as_integer(value, field, INT32_MIN, INT32_MAX)


cdef int64_t as_int64(object value, str field) except? -1:
    return as_integer(value, field, INT64_MIN, INT64_MAX)


cdef uint64_t as_uint64(object value, str field) except? 0:
    number = _index(value, field)
    if not 0 <= number <= _UINT64_MAX:
        raise ValueError(f"{field} is {number}: expected an int between 0 and {_UINT64_MAX}")
    return number


cdef double as_double(object value, str field) except? -1:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{field} is {value!r}: expected a float, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{field} is {value}: expected a finite float")
    return number


cdef object as_enum(object enum, object value, str field):
    """A member, or the int that values one; a member of another enumeration is a mistake."""
    if type(value) is enum:
        return value
    if type(value) is not int:
        raise TypeError(f"{field} is {value!r}: expected a {enum.__name__}, not {type(value).__name__}")
    try:
        return enum(value)
    except ValueError:
        known = ", ".join(f"{member.name}={member.value}" for member in enum)
        raise ValueError(f"{field} is {value}: expected one of {known}") from None


cdef bytes as_path(object value, str field):
    """A path as the filesystem spells it."""
    try:
        path = os.fsencode(value)
    except TypeError:
        raise TypeError(f"{field} is {value!r}: expected a path, not {type(value).__name__}") from None
    if not path:
        raise ValueError(f"{field} is empty: expected a path")
    if b"\0" in path:
        raise ValueError(f"{field} is {value!r}: a path holds no NUL")
    return path
