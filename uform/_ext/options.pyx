# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""The keywords of `Trainer.init_ram` and `init_vram` as one C structure."""

from libc.stdlib cimport calloc, free

from uform._ext.buffers cimport View, exports_buffer
from uform._ext.c_api cimport uform_plugin_option_t
from uform._ext.config cimport BatchShape, Choices, Contrastive, LateInteraction, Masking, Optimizer, Schedule
from uform._ext.fields cimport as_enum, as_int32, as_path, as_str, as_uint64, shown
from uform._ext.progress cimport as_progress
from uform._ext.registry cimport load_all_plugins, load_plugin, pack_fields

import re
from collections.abc import Mapping

from uform._ext.enums import Objective


cdef enum:
    LONGEST_NAME = 64


cdef class TrainerOptions:

    def __cinit__(self):
        self.keepers = []

    def __dealloc__(self):
        free(self.plugins)


cdef object _instance(dict given, str field, type expected):
    value = given[field]
    if value is not None and not isinstance(value, expected):
        raise TypeError(f"{field} is of type {type(value).__name__}: expected {expected.__name__} or None")
    return value


cdef TrainerOptions as_trainer_options(dict given):
    """Checks every keyword, by name."""
    cdef TrainerOptions options = TrainerOptions.__new__(TrainerOptions)
    cdef bytes resume
    if given["resume"] is not None:
        resume = as_path(given["resume"], "resume")
        options.keepers.append(resume)
        options.c.resume = resume
        load_all_plugins()  # the checkpoint tells which of them it needs
    options.c.depth = as_int32(given["depth"], "depth")
    options.c.hidden = as_int32(given["hidden"], "hidden")
    options.c.objective = as_enum(Objective, given["objective"], "objective").value
    options.c.seed = as_uint64(given["seed"], "seed")
    _take_structures(options, given)
    _take_plugins(options, given["plugins"])
    options.progress = as_progress(given["progress"], given["progress_steps"])
    options.c.progress = options.progress.function
    options.c.progress_state = <void*>options.progress
    options.c.progress_steps = options.progress.steps
    return options


cdef int _take_structures(TrainerOptions options, dict given) except -1:
    cdef BatchShape batch = _instance(given, "batch", BatchShape)
    cdef Masking masking = _instance(given, "masking", Masking)
    cdef Contrastive contrastive = _instance(given, "contrastive", Contrastive)
    cdef LateInteraction late_interaction = _instance(given, "late_interaction", LateInteraction)
    cdef Choices choices = _instance(given, "choices", Choices)
    cdef Schedule schedule = _instance(given, "schedule", Schedule)
    cdef Optimizer optimizer = _instance(given, "optimizer", Optimizer)
    if batch is not None:
        batch.fill(&options.c.batch)
    if masking is not None:
        masking.fill(&options.c.masking)
    if contrastive is not None:
        contrastive.fill(&options.c.contrastive)
    if late_interaction is not None:
        late_interaction.fill(&options.late_interaction)
        options.c.late_interaction = &options.late_interaction
    if choices is not None:
        choices.fill(&options.choices)
        options.c.choices = &options.choices
    if schedule is not None:
        schedule.fill(&options.c.schedule)
    if optimizer is not None:
        optimizer.fill(&options.c.optimizer)
    return 0


cdef int _take_plugins(TrainerOptions options, object plugins) except -1:
    """Plugins by name, each with its fields, the bytes of its configuration structure, or None for one of zeros."""
    if plugins is None:
        return 0
    if not isinstance(plugins, Mapping):
        raise TypeError(f"plugins is of type {type(plugins).__name__}: expected a mapping from names to configurations")
    cdef list given = [(name, plugins[name]) for name in plugins]
    cdef size_t place
    options.plugins = <uform_plugin_option_t*>calloc(len(given) + 1, sizeof(uform_plugin_option_t))
    if options.plugins == NULL:
        raise MemoryError(f"no memory for {len(given)} plugins")
    for place, (name, config) in enumerate(given):
        _take_plugin(options, &options.plugins[place], name, config)
    options.c.plugins = options.plugins
    options.c.plugins_count = len(given)
    return 0


cdef int _take_plugin(TrainerOptions options, uform_plugin_option_t* option, object key, object config) except -1:
    cdef bytes spelled
    cdef bytes structure
    if not isinstance(key, str) or "\0" in key:
        raise TypeError(f"plugins has the key {shown(key)}: expected a plugin's name, a str")
    cdef str name = as_str(key, "plugins")
    try:
        spelled = name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"plugins has the key {shown(name)}: no text, {error.reason}") from None
    if len(spelled) > LONGEST_NAME:
        raise ValueError(f"plugins has the key {shown(name)}: a plugin's name has at most {LONGEST_NAME} letters")
    options.keepers.append(spelled)
    option.name = spelled
    load_plugin(name)
    if config is None:
        return 0
    if not isinstance(config, Mapping) and not exports_buffer(config):
        raise TypeError(f"plugins[{name!r}] is of type {type(config).__name__}: expected a mapping from the plugin's "
                        "fields to values, a buffer that holds its configuration structure, or None")
    structure = pack_fields(name, config) if isinstance(config, Mapping) else _bytes_of(config, name)
    options.keepers.append(structure)
    option.config = <const char*>structure
    option.config_bytes = len(structure)
    return 0


cdef bytes _bytes_of(object config, str name):
    """A copy, whatever the buffer says of its type (a ctypes structure says a lot), but for objects: numbers they are
    not."""
    cdef View view
    cdef str where = f"plugins[{name!r}] is of type {type(config).__name__}, which"
    try:
        view = View.borrow(config)
    except (BufferError, TypeError, ValueError) as error:
        raise TypeError(f"{where} gives no plain buffer: {error}") from None
    if not view.is_dense():
        raise TypeError(f"{where} gives no plain buffer: it has strides")
    # Of a structure the format has the fields' names, each between colons.
    if view.c.format != NULL and "O" in re.sub(":[^:]*:", "", view.c.format.decode("utf-8", "replace")):
        raise TypeError(f"{where} holds objects: expected numbers")
    return (<const char*>view.c.buf)[:view.c.len]
