# cython: language_level=3, annotation_typing=False, auto_pickle=False
"""Immutable classes of named fields: `_fields` names them in order, and all of them are keywords of the constructor."""


def _rebuild(made, fields):
    """Makes an instance again from its fields (unpickling)."""
    return made(**fields)


cdef class Fields:
    """Shows, pickles and copies by the fields that are not zero."""

    _fields = ()

    def __repr__(self):
        given = ", ".join(f"{name}={value!r}" for name, value in _given(self).items())
        return f"{type(self).__name__}({given})"

    def __reduce__(self):
        return _rebuild, (type(self), _given(self))


cdef class Record(Fields):
    """Compares and hashes by its fields, as well."""

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self):
        return hash((type(self), _values(self)))


cdef tuple _values(object record):
    return tuple([getattr(record, name) for name in record._fields])


cdef dict _given(object record):
    """The fields that are not zero; arrays always are given, whatever they hold."""
    values = {name: getattr(record, name) for name in record._fields}
    return {name: value for name, value in values.items() if not (value is None or _is_zero(value))}


cdef bint _is_zero(object value):
    return isinstance(value, (int, float)) and value == 0


cdef int refuse_unknown(object made, tuple positional, dict given) except -1:
    """Raises for values without a name, and for keywords that name no field."""
    if positional:
        raise TypeError(f"{made.__name__} takes no positional arguments, not {len(positional)}: name its fields, "
                        f"{', '.join(made._fields)}")
    for name in given:
        raise TypeError(f"{made.__name__} has no field {name!r}: it has {', '.join(made._fields)}")
    return 0
