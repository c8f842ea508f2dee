# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Third parties' plugins: registered by hand, or found by the entry points of what is installed."""

from cpython.pycapsule cimport PyCapsule_CheckExact, PyCapsule_GetName, PyCapsule_GetPointer
from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t
from libc.string cimport memcpy

from uform._ext.c_api cimport uform_status_t as api_status_t
from uform._ext.fields cimport as_double, as_integer, as_sequence, shown
from uform._ext.plugin cimport (
    uform_field_t,
    uform_field_type_double_k,
    uform_field_type_int32_k,
    uform_field_type_int64_k,
    uform_modality_find,
    uform_modality_plugin_t,
    uform_modality_register,
    uform_objective_find,
    uform_objective_plugin_t,
    uform_objective_register,
)
from uform._ext.python_objective cimport register_python_objective
from uform._ext.status cimport check

import warnings
from importlib.metadata import entry_points

_GROUPS = ("uform.objectives", "uform.modalities")
_OBJECTIVE = "uform_objective_plugin_t"
_MODALITY = "uform_modality_plugin_t"

# Capsules by the address of their plugin: they and what they point at stay for good.
cdef dict _capsules = {}
cdef set _modalities = set()
# Entry points that were loaded, and what those that did not load raised.
cdef dict _loaded = {}


def register(plugin):
    """Registers an objective or a modality of a third party, which `plugins=` then takes by its name.

    Packages need not call it: a run finds the entry points `uform.objectives` and `uform.modalities` of what is
    installed. It answers what it was given, so that it may decorate a class.

    Args:
        plugin: a class with a `name` and a method `forward_backward(batch)`, which answers the loss and writes its
            gradient into `batch.bags_gradient`; or a PyCapsule that points at a `uform_objective_plugin_t` or a
            `uform_modality_plugin_t` and is named so. The same one once more is no matter; a class defined anew, of the
            same module, qualified name and fields, takes the place of the one before.

    Raises:
        TypeError: it is no plugin.
        ValueError: it was built for another version of the ABI, lacks a function, its name is taken, or its
            fields do not describe its structure.
    """
    if PyCapsule_CheckExact(plugin):
        _register_capsule(plugin)
        return plugin
    if isinstance(plugin, type):
        return register_python_objective(plugin)
    raise TypeError(f"plugin is of type {type(plugin).__name__}: expected a class with forward_backward, or a "
                    f"PyCapsule named {_OBJECTIVE} or {_MODALITY}")


cdef int _register_capsule(object capsule) except -1:
    cdef const char* spelled = PyCapsule_GetName(capsule)
    cdef bytes name = b"" if spelled == NULL else spelled
    cdef const uform_modality_plugin_t* modality
    if name != _OBJECTIVE.encode() and name != _MODALITY.encode():
        raise TypeError(f"plugin is a capsule named {shown(name.decode('utf-8', 'replace'))}: expected {_OBJECTIVE} or "
                        f"{_MODALITY}")
    cdef void* pointer = PyCapsule_GetPointer(capsule, spelled)
    if <size_t>pointer in _capsules:
        return 0
    if name == _OBJECTIVE.encode():
        check(<api_status_t><int>uform_objective_register(<const uform_objective_plugin_t*>pointer))
    else:
        modality = <const uform_modality_plugin_t*>pointer
        check(<api_status_t><int>uform_modality_register(modality))
        _modalities.add(<int>modality.modality)
    _capsules[<size_t>pointer] = capsule
    return 0


cdef object foreign_modalities():
    """The numbers of third parties' modalities."""
    return _modalities


cdef bint _is_registered(str name):
    cdef bytes spelled = name.encode("utf-8", "surrogatepass")  # an entry point's may be none that anything has
    return uform_objective_find(spelled) != NULL or uform_modality_find(spelled) != NULL


cdef list _offers():
    """The entry points of what is installed, of both kinds."""
    return [offer for group in _GROUPS for offer in entry_points(group=group)]


cdef int load_plugin(str name) except -1:
    """Registers what an installed package offers under that name, where nothing of it is registered yet."""
    if _is_registered(name):
        return 0
    cdef list offers = [offer for offer in _offers() if offer.name == name]
    rivals = _rivals_of(offers)
    if rivals is not None:
        raise ValueError(f"plugin {name}: {rivals}")
    for offer in offers[:1]:
        failure = _load(offer)
        if failure is not None:
            raise ValueError(f"plugin {name}: that of {_maker_of(offer)} does not load: "
                             f"{type(failure).__name__}: {failure}") from failure
    return 0


cdef int load_all_plugins() except -1:
    """Registers what is installed, since a checkpoint may need it; what does not load is warned of."""
    cdef dict by_name = {}
    for offer in _offers():
        by_name.setdefault(offer.name, []).append(offer)
    for name, offers in by_name.items():
        if _is_registered(name):
            continue
        rivals = _rivals_of(offers)
        if rivals is not None:
            warnings.warn(f"plugin {name}: {rivals}: neither is loaded", RuntimeWarning, stacklevel=3)
            continue
        offer = offers[0]
        if offer in _loaded:
            continue
        failure = _load(offer)
        if failure is not None:
            warnings.warn(f"plugin {offer.name}: that of {_maker_of(offer)} does not load: "
                          f"{type(failure).__name__}: {failure}", RuntimeWarning, stacklevel=3)
    return 0


cdef str _rivals_of(list offers):
    """What to say of more than one package of the same name, or None where there is one."""
    if len({(offer.group, offer.value) for offer in offers}) < 2:
        return None
    return f"more than one package offers it: {' and '.join(sorted({_maker_of(offer) for offer in offers}))}"


cdef str _maker_of(object offer):
    return offer.value if offer.dist is None else f"{offer.dist.name} ({offer.value})"


cdef object _load(object offer):
    """Answers what went wrong, or None; a package is loaded once."""
    if offer in _loaded:
        return _loaded[offer]
    try:
        register(offer.load())
        if not _is_registered(offer.name):
            raise ValueError(f"the entry point {offer.name} answers a plugin of another name")
    except Exception as error:
        _loaded[offer] = error
        return error
    _loaded[offer] = None
    return None


cdef bytes pack_fields(str name, object values):
    """A plugin's configuration structure with the fields given, and zeros."""
    cdef bytes spelled = name.encode()
    cdef const uform_objective_plugin_t* objective = uform_objective_find(spelled)
    cdef const uform_modality_plugin_t* modality = uform_modality_find(spelled)
    cdef const uform_field_t* fields
    cdef size_t count, place, bytes_count
    if objective != NULL:
        fields, count, bytes_count = objective.fields, objective.fields_count, objective.config_bytes
    elif modality != NULL:
        fields, count, bytes_count = modality.fields, modality.fields_count, modality.config_bytes
    else:
        return b""  # the run refuses the name
    cdef bytearray structure = bytearray(bytes_count)
    cdef dict places = {fields[place].name.decode(): place for place in range(count)}
    for field, value in values.items():
        where = f"plugins[{name!r}][{shown(field)}]"
        if field not in places:
            raise ValueError(f"{where}: the plugin has no such field; it has {', '.join(places) or 'none'}")
        place = places[field]
        _pack_field(structure, &fields[place], value, where)
    return bytes(structure)


cdef int _pack_field(bytearray structure, const uform_field_t* field, object value, str where) except -1:
    cdef char* data = structure
    cdef int32_t narrow
    cdef int64_t wide
    cdef double number
    cdef size_t place
    if field.type == uform_field_type_double_k:
        number = as_double(value, where)
        memcpy(data + field.offset, &number, sizeof(number))
    elif field.type == uform_field_type_int64_k:
        wide = as_integer(value, where, INT64_MIN, INT64_MAX)
        memcpy(data + field.offset, &wide, sizeof(wide))
    elif field.type == uform_field_type_int32_k:
        narrow = as_integer(value, where, INT32_MIN, INT32_MAX)
        memcpy(data + field.offset, &narrow, sizeof(narrow))
    else:
        entries = as_sequence(value, where, "a sequence of int", field.capacity)
        for place, entry in enumerate(entries):
            narrow = as_integer(entry, f"{where}[{place}]", INT32_MIN, INT32_MAX)
            memcpy(data + field.offset + sizeof(narrow) * place, &narrow, sizeof(narrow))
        narrow = len(entries)
        memcpy(data + field.count_offset, &narrow, sizeof(narrow))
    return 0
