# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Objectives written in Python: classes with `forward_backward(batch)`, as plugins of the ABI."""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.float cimport FLT_MAX
from libc.stddef cimport size_t
from libc.stdint cimport UINT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from uform._ext.c_api cimport uform_status_t as api_status_t
from uform._ext.fields cimport as_double, as_int64, as_sequence, as_str, shown
from uform._ext.interpreter cimport enter_python, leave_python
from uform._ext.plugin cimport *
from uform._ext.plugin_batch cimport PluginArray, lend
from uform._ext.status cimport check, remember_cause

import gc
import threading
import traceback
from collections.abc import Mapping

import numpy as np

from uform._ext.plugin_batch import Arrays, Pairs, PluginBatch

ctypedef uform_status_t (*fail_t)(uform_host_t*, uform_status_t, const char*) noexcept nogil

cdef enum:
    BAGS_COUNTER = 0
    FIELD_BYTES = 8

_PARAMETER_KEYS = ("shape", "value", "deviation", "minimum", "maximum")

# By name. A class once registered stays: runs refer to it by the plugin that lies in here.
cdef dict _registered = {}


cdef class Registration:
    """One class, and the plugin that stands for it."""
    cdef object made
    cdef str name
    cdef bytes spelled
    cdef list names     # of its fields
    cdef list defaults  # as int or float
    cdef list keepers
    cdef uform_field_t* fields
    cdef uform_objective_plugin_t plugin

    def __dealloc__(self):
        free(self.fields)


cdef class Run:
    """One run's objective."""
    cdef Registration registration
    cdef PyObject* objective  # NULL once its trainer was collected
    cdef object kept          # it, where no trainer holds it
    cdef bint destroyed
    cdef list shapes   # of its parameters: (name, shape), by handle
    cdef uint32_t term
    cdef uint32_t capacity
    cdef size_t count_at
    cdef size_t indices_at
    cdef size_t vectors_at
    cdef size_t gradient_at
    cdef size_t lengths_at
    # of the step that is planned
    cdef uint32_t bags
    cdef dict planned
    cdef double loss  # here while it is uploaded


@cython.no_gc_clear
cdef class Held:
    """One run's objective as its trainer holds it: a cycle through the run, which the core holds, nobody would find.

    It goes with the list that has it, when no call is under way: one would hold the trainer.
    """
    cdef object objective
    cdef Run run

    def __dealloc__(self):
        if self.run is not None:
            self.run.objective = NULL


# What this thread's trainer, which is being made, will hold.
_making = threading.local()


cdef object begin_holding():
    """Answers what `end_holding` is to be given."""
    before = getattr(_making, "held", None)
    _making.held = []
    return before


cdef list end_holding(object before):
    """The objectives made since, of runs that are there: a checkpoint's own run, which is compared with, has gone."""
    made, _making.held = _making.held, before
    return [held for held in made if not (<Held>held).run.destroyed]


cdef object register_python_objective(object made):
    """Checks a class and registers it; once more is no matter, another of the name is refused.

    A class that was defined anew, as in a notebook's cell, takes the place of the one before: runs that have begun keep
    that one's objects.
    """
    cdef Registration registration = Registration.__new__(Registration)
    given = getattr(made, "name", None)
    if not isinstance(given, str):
        raise TypeError(f"{made.__name__} has the name {shown(given)}: an objective's class has a `name`, a str")
    cdef str name = as_str(given, "name")
    known = _registered.get(name)
    if known is not None and (<Registration>known).made is made:
        return made
    if not callable(getattr(made, "forward_backward", None)):
        raise TypeError(f"plugin {name}: its method forward_backward is missing")
    registration.made = made
    registration.name = name
    registration.spelled = _spelled(name, f"{made.__name__} has the name")
    registration.keepers = [made, registration.spelled]
    _take_fields(registration, getattr(made, "fields", {}))
    if known is not None and _is_defined_anew(made, (<Registration>known).made):
        _replace(known, registration)
        return made
    _fill_plugin(registration)
    check(<api_status_t><int>uform_objective_register(&registration.plugin))
    _registered[name] = registration
    return made


cdef bint _is_defined_anew(object made, object before):
    return (made.__module__, made.__qualname__) == (before.__module__, before.__qualname__)


cdef int _replace(Registration known, Registration by) except -1:
    """The plugin stays where it lies, as runs refer to it; so what its structure says must stay as well."""
    cdef size_t place
    cdef bint same = known.names == by.names
    for place in range(len(known.names) if same else 0):
        same = same and known.fields[place].type == by.fields[place].type
    if not same:
        raise ValueError(f"plugin {known.name}: its class had the fields {shown(known.names)} when it was registered, "
                         f"and now has {shown(by.names)}: runs may refer to those, so take another name, or another "
                         "process")
    known.made = by.made
    known.defaults = by.defaults
    return 0


cdef int _take_fields(Registration registration, object given) except -1:
    cdef bytes spelled
    cdef size_t place
    if not isinstance(given, Mapping):
        raise TypeError(f"plugin {registration.name}: fields is of type {type(given).__name__}: expected a mapping "
                        "from names to numbers")
    registration.names = [as_str(name, f"plugin {registration.name}: fields has a key that") for name in given]
    registration.defaults = []
    registration.fields = <uform_field_t*>calloc(len(registration.names) + 1, sizeof(uform_field_t))
    if registration.fields == NULL:
        raise MemoryError(f"plugin {registration.name}: no memory for its fields")
    for place, name in enumerate(registration.names):
        value = given[name]
        where = f"plugin {registration.name}: fields[{name!r}]"
        spelled = _spelled(name, f"plugin {registration.name}: fields has the key")
        registration.keepers.append(spelled)
        whole = isinstance(value, int) and not isinstance(value, bool)
        registration.defaults.append(as_int64(value, where) if whole else as_double(value, where))
        registration.fields[place].name = spelled
        registration.fields[place].type = uform_field_type_int64_k if whole else uform_field_type_double_k
        registration.fields[place].offset = FIELD_BYTES * place
    return 0


cdef bytes _spelled(str name, str where):
    """A name as the core takes it: some letters, none of them NUL or a lone surrogate."""
    try:
        spelled = name.encode()
    except UnicodeEncodeError:
        spelled = b""
    if not spelled or b"\0" in spelled:
        raise ValueError(f"{where} {shown(name)}: expected letters, without NUL and lone surrogates")
    return spelled


cdef void _fill_plugin(Registration registration):
    cdef uform_objective_plugin_t* plugin = &registration.plugin
    memset(plugin, 0, sizeof(uform_objective_plugin_t))
    plugin.abi_version = UFORM_PLUGIN_ABI_VERSION
    plugin.bytes = sizeof(uform_objective_plugin_t)
    plugin.name = registration.spelled
    plugin.taps = uform_tap_world_bags_k
    plugin.capturable = 0
    plugin.fields = registration.fields
    plugin.fields_count = len(registration.names)
    plugin.config_bytes = FIELD_BYTES * plugin.fields_count
    plugin.derive = _derive
    plugin.create = _create
    plugin.destroy = _destroy
    plugin.covered_capacity = _covered_capacity
    plugin.plan = _plan
    plugin.forward_backward = _forward_backward


cdef uform_status_t _refuse_at_end(fail_t fail, uform_host_t* host) noexcept nogil:
    return fail(host, uform_status_cancelled_k, "the interpreter ends")


cdef uform_status_t _refuse(fail_t fail, uform_host_t* host, str where, object error) noexcept:
    """Leaves the message of an exception, which the call that comes to an end by it is raised from.

    Nothing that the exception does to its message, or what its frames held as they let go of it, hides the failure.
    """
    cdef bytes message
    cdef uform_status_t status = uform_status_internal_k
    try:
        remember_cause(error)
        status = _status_of(error)
        if error.__traceback__ is not None:
            traceback.clear_frames(error.__traceback__)
    except BaseException:
        pass
    name = type.__dict__["__name__"].__get__(type(error))  # a metaclass may answer anything
    try:
        told = str(error)
    except BaseException:
        told = "it has no message that can be shown"
    message = f"{where} raised {name}: {told}".encode("utf-8", "replace").replace(b"\0", b"")
    return fail(host, status, message)


cdef uform_status_t _status_of(object error):
    if isinstance(error, MemoryError):
        return uform_status_out_of_memory_k
    if isinstance(error, FloatingPointError):
        return uform_status_not_finite_k
    if isinstance(error, TypeError):
        return uform_status_invalid_type_k
    if isinstance(error, ValueError):
        return uform_status_invalid_argument_k
    return uform_status_internal_k


cdef uform_status_t _derive(void* config, const uform_run_t* run, const uform_declare_t* declare) noexcept nogil:
    if not enter_python():
        return _refuse_at_end(declare.fail, declare.host)
    with gil:
        _derive_run(<char*>config, declare)
    leave_python()
    return uform_status_success_k


cdef void _derive_run(char* config, const uform_declare_t* declare) noexcept:
    """Zeros take their defaults."""
    cdef Registration registration = _registered[declare.plugin.decode()]
    cdef size_t place
    for place in range(registration.plugin.fields_count):
        if registration.fields[place].type == uform_field_type_int64_k:
            if (<int64_t*>(config + FIELD_BYTES * place))[0] == 0:
                (<int64_t*>(config + FIELD_BYTES * place))[0] = registration.defaults[place]
        elif (<double*>(config + FIELD_BYTES * place))[0] == 0:
            (<double*>(config + FIELD_BYTES * place))[0] = registration.defaults[place]


cdef dict _read_fields(const char* config, Registration registration):
    cdef size_t place
    cdef dict values = {}
    for place in range(registration.plugin.fields_count):
        if registration.fields[place].type == uform_field_type_int64_k:
            values[registration.names[place]] = (<const int64_t*>(config + FIELD_BYTES * place))[0]
        else:
            values[registration.names[place]] = (<const double*>(config + FIELD_BYTES * place))[0]
    return values


cdef uform_status_t _create(const void* config, const uform_run_t* run, const uform_declare_t* declare,
                            void** made) noexcept nogil:
    cdef uform_status_t status
    if not enter_python():
        return _refuse_at_end(declare.fail, declare.host)
    with gil:
        status = _create_run(<const char*>config, run, declare, made)
    leave_python()
    return status


cdef uform_status_t _create_run(const char* config, const uform_run_t* run, const uform_declare_t* declare,
                                void** made) noexcept:
    cdef Run own = Run.__new__(Run)
    own.registration = _registered[declare.plugin.decode()]
    own.capacity = run.devices * run.bags_capacity
    try:
        objective = own.registration.made(**_read_fields(config, own.registration))
        _hold(own, objective, run.training)
        asked = _parameters_of(own, objective, run.hidden)
    except BaseException as error:
        own.destroyed = True
        return _refuse(declare.fail, declare.host, own.registration.made.__name__, error)
    cdef uform_status_t status = _declare_all(own, run, declare, asked)
    if status == uform_status_success_k:
        Py_INCREF(own)
        made[0] = <void*>own
    own.destroyed = status != uform_status_success_k
    return status


cdef int _hold(Run own, object objective, bint training) except -1:
    cdef Held held
    own.objective = <PyObject*>objective
    making = getattr(_making, "held", None)
    if making is None or not training:
        own.kept = objective
        return 0
    held = Held.__new__(Held)
    held.objective = objective
    held.run = own
    making.append(held)
    return 0


cdef list _parameters_of(Run own, object objective, uint32_t hidden):
    """What it asks for, checked: (name, shape, numbers in the order of a request)."""
    given = getattr(objective, "parameters", {})
    if callable(given):
        given = given(hidden)
    if not isinstance(given, Mapping):
        raise TypeError(f"parameters is of type {type(given).__name__}: expected a mapping from names to dicts")
    asked = []
    for name, request in given.items():
        where = f"parameters[{shown(name)}]"
        if not isinstance(request, Mapping):
            raise TypeError(f"{where} is of type {type(request).__name__}: expected a dict with a shape")
        for key in request:
            if key not in _PARAMETER_KEYS:
                raise ValueError(f"{where} has the key {shown(key)}: it has {', '.join(_PARAMETER_KEYS)}")
        name = as_str(name, "parameters has a key that")
        _spelled(name, "parameters has the key")
        given_shape = f"{where}['shape']"
        extents = as_sequence(request.get("shape", ()), given_shape, "one extent or two")
        shape = tuple([as_int64(extent, given_shape) for extent in extents])
        if not 1 <= len(shape) <= 2 or not all([0 < extent < 2**31 for extent in shape]):
            raise ValueError(f"{where} has the shape {shown(request.get('shape'))}: expected one extent or two, each "
                             "between 1 and 2147483647")
        asked.append((name, shape, _numbers_of(where, request)))
    own.shapes = [(name, shape) for name, shape, _ in asked]
    return asked


cdef list _numbers_of(str where, object request):
    """Its first value, the deviation, and the bounds, of which one alone leaves the other side open."""
    cdef double value, deviation, least, most
    value, deviation = [as_double(request.get(key, 0.0), f"{where}[{key!r}]") for key in ("value", "deviation")]
    if not -FLT_MAX <= value <= FLT_MAX:
        raise ValueError(f"{where}['value'] is {value}: expected a number that float32 holds")
    if not 0 <= deviation <= FLT_MAX:
        raise ValueError(f"{where}['deviation'] is {deviation}: expected none below 0")
    if "minimum" not in request and "maximum" not in request:
        return [value, deviation, 0.0, 0.0]  # which the core takes for none
    least = as_double(request.get("minimum", -FLT_MAX), f"{where}['minimum']")
    most = as_double(request.get("maximum", FLT_MAX), f"{where}['maximum']")
    if not -FLT_MAX <= least < most <= FLT_MAX:
        raise ValueError(f"{where} has the bounds {least} and {most}: expected the minimum below the maximum, both of "
                         "them numbers that float32 holds")
    if deviation == 0 and not least <= value <= most:  # what is drawn is put within them
        raise ValueError(f"{where} begins at {value} between {least} and {most}: expected a value within its bounds")
    return [value, deviation, least, most]


cdef uform_status_t _declare_all(Run own, const uform_run_t* run, const uform_declare_t* declare, list asked) noexcept:
    cdef uform_parameter_request_t request
    cdef uform_status_t status = uform_status_success_k
    cdef uint32_t handle
    cdef bytes spelled
    cdef size_t vectors = sizeof(float) * run.hidden * <size_t>own.capacity
    for name, shape, numbers in asked:
        spelled = name.encode()
        memset(&request, 0, sizeof(request))
        request.name = spelled
        request.rows = shape[0]
        request.columns = shape[1] if len(shape) == 2 else 0
        request.kind = uform_parameter_kind_plain_k
        request.value, request.deviation, request.minimum, request.maximum = numbers
        if status == uform_status_success_k:
            status = declare.parameter(declare.host, &request, &handle)
    if not run.training:
        return status
    if status == uform_status_success_k:
        status = declare.term(declare.host, own.registration.spelled, 1, &own.term)
    if status == uform_status_success_k:
        status = declare.staging(declare.host, sizeof(uint32_t), &own.count_at)
    if status == uform_status_success_k:
        status = declare.staging(declare.host, sizeof(uint32_t) * <size_t>own.capacity, &own.indices_at)
    if status == uform_status_success_k:
        status = declare.workspace(declare.host, vectors, &own.vectors_at)
    if status == uform_status_success_k:
        status = declare.workspace(declare.host, vectors, &own.gradient_at)
    if status == uform_status_success_k:
        status = declare.workspace(declare.host, sizeof(float) * <size_t>own.capacity, &own.lengths_at)
    return status


cdef void _destroy(void* opaque) noexcept nogil:
    # A run that outlives the interpreter has nothing to give back.
    if enter_python():
        with gil:
            (<Run>opaque).destroyed = True
            Py_DECREF(<object>opaque)
        leave_python()


cdef size_t _covered_capacity(void* opaque) noexcept nogil:
    return 0


cdef uform_status_t _plan(void* opaque, const uform_plan_t* plan, uint32_t stage) noexcept nogil:
    cdef uform_status_t status
    if not enter_python():
        return _refuse_at_end(plan.fail, plan.host)
    with gil:
        status = _plan_run(opaque, plan, stage)
    leave_python()
    return status


cdef uform_status_t _plan_run(void* opaque, const uform_plan_t* plan, uint32_t stage) noexcept:
    # A function without the GIL that held objects would ask for it once more to let go of them, after it has left.
    try:
        return _plan_stage(<Run>opaque, plan, stage)
    except BaseException as error:
        return _refuse(plan.fail, plan.host, "plan", error)


cdef uform_status_t _plan_stage(Run own, const uform_plan_t* plan, uint32_t stage) except *:
    """Numbers this call's bags that were kept, and the pairs among them."""
    cdef uform_pair_rows_t pairs
    cdef uform_status_t status
    cdef double everywhere
    cdef size_t bag
    cdef uint32_t place = 0
    if stage == 0:
        for bag in range(plan.bags_count):
            place += plan.bags[bag].device != UINT32_MAX
        own.bags = place
        return plan.count(plan.host, BAGS_COUNTER, place)
    memset(&pairs, 0, sizeof(pairs))
    status = plan.pairs(plan.host, 1, &pairs)
    if status != uform_status_success_k:
        return status
    everywhere = plan.counted(plan.host, BAGS_COUNTER)
    own.planned = _bags_of(own, plan)
    own.planned.update(_pairs_of(own, plan, &pairs))
    own.planned["share"] = own.bags / everywhere if everywhere else 0.0
    own.planned["call"] = plan.call
    return uform_status_success_k


cdef dict _bags_of(Run own, const uform_plan_t* plan):
    cdef uint32_t* count = <uint32_t*>(plan.devices[0].staging + own.count_at)
    cdef uint32_t* indices = <uint32_t*>(plan.devices[0].staging + own.indices_at)
    cdef const uform_world_bag_t* world = plan.world(plan.host)
    cdef size_t bag
    cdef uint32_t place = 0, slot
    columns = np.empty((4, own.bags), np.int64)
    cdef int64_t[:, ::1] taken = columns
    for bag in range(plan.bags_count):
        slot = plan.bags[bag].slot
        if plan.bags[bag].device == UINT32_MAX:
            continue
        indices[place] = slot
        taken[0, place] = bag
        taken[1, place] = plan.bags[bag].group
        taken[2, place] = world[slot].modalities
        taken[3, place] = world[slot].sides
        place += 1
    count[0] = place
    return dict(zip(("numbers", "groups", "modalities", "sides"), columns, strict=True))


cdef dict _pairs_of(Run own, const uform_plan_t* plan, const uform_pair_rows_t* pairs):
    cdef uint32_t total = pairs.offsets[pairs.units] if pairs.units else 0
    cdef uint32_t row, pair
    index, weights, classes = np.empty((total, 2), np.int64), np.empty(total, np.float32), np.empty(total, np.uint8)
    place_of = np.full(plan.bags_count, -1, np.int64)
    place_of[own.planned["numbers"]] = np.arange(own.bags)
    cdef int64_t[:, ::1] ends = index
    cdef float[::1] strengths = weights
    cdef uint8_t[::1] kinds = classes
    for row in range(pairs.units):
        for pair in range(pairs.offsets[row], pairs.offsets[row + 1]):
            ends[pair, 0], ends[pair, 1] = row, pairs.candidates[pair]
            strengths[pair] = pairs.weights[pair]
            kinds[pair] = pairs.classes[pair]
    index = place_of[index]
    kept = (index >= 0).all(axis=1)
    found = {}
    for name, kind in (("attract", uform_pair_class_attracted_k), ("repel", uform_pair_class_repelled_k),
                       ("ignore", uform_pair_class_ignored_k)):
        chosen = kept & (classes == kind)
        found[name] = Pairs(index[chosen], weights[chosen])
    return found


cdef uform_status_t _forward_backward(void* opaque, const uform_pass_t* step) noexcept nogil:
    """Once a step, on the process's first device, over the bags of all of them."""
    cdef uform_status_t status
    if step.device != 0:
        return uform_status_success_k
    if not enter_python():
        return _refuse_at_end(step.fail, step.host)
    status = _score(opaque, step)
    leave_python()
    return status


cdef uform_status_t _score(void* opaque, const uform_pass_t* step) noexcept nogil:
    cdef uform_status_t status
    cdef uform_prefix_t bags
    cdef const uform_operations_t* operations = step.operations
    cdef double* loss
    with gil:
        bags = _gather_of(<Run>opaque, step)
        loss = &(<Run>opaque).loss
    if bags.active == 0:
        return uform_status_success_k
    status = operations.prefix_forward(step.stream, &bags)
    if status == uform_status_success_k:
        status = operations.memory_zero(step.stream, <void*>bags.vectors_gradient,
                                        sizeof(float) * bags.width * <size_t>bags.active)
    # Python sees complete values, and what it put on any stream is done before they are read.
    if status == uform_status_success_k:
        status = operations.stream_synchronize(step.stream)
    if status != uform_status_success_k:
        return status
    with gil:
        status = _call(<Run>opaque, step, &bags)
    if status == uform_status_success_k:
        status = operations.device_synchronize(step.stream)
    if status == uform_status_success_k:
        status = operations.prefix_backward(step.stream, &bags)
    if status == uform_status_success_k:
        with gil:
            status = operations.memory_upload(step.stream, step.terms[(<Run>opaque).term], loss, sizeof(double))
    return status


cdef uform_prefix_t _gather_of(Run own, const uform_pass_t* step) noexcept:
    """This call's bags out of the world's, and their gradients back."""
    cdef uform_prefix_t bags
    memset(&bags, 0, sizeof(bags))
    bags.stride = bags.width = step.run.hidden
    bags.capacity = own.capacity
    bags.active = own.bags
    bags.count = <const uint32_t*>(step.staging + own.count_at)
    bags.indices = <const uint32_t*>(step.staging + own.indices_at)
    bags.source = step.world_bags
    bags.vectors = <float*>(step.workspace + own.vectors_at)
    bags.lengths = <float*>(step.workspace + own.lengths_at)
    bags.vectors_gradient = <const float*>(step.workspace + own.gradient_at)
    bags.source_gradient = step.world_bags_gradient
    return bags


cdef uform_status_t _call(Run own, const uform_pass_t* step, const uform_prefix_t* bags) noexcept:
    cdef int32_t device = -1
    cdef uform_status_t status
    cdef list arrays = []
    if not step.operations.host_memory:
        status = step.operations.memory_device(step.stream, bags.vectors, &device)
        if status != uform_status_success_k:
            return status
    refusal = None
    try:
        if own.objective == NULL:
            raise RuntimeError("its trainer was let go of")
        objective = <object>own.objective
        batch = _batch_of(own, step, bags, device, arrays)
        own.loss = _as_loss(objective.forward_backward(batch))
    except BaseException as error:
        refusal = error
    batch = own.planned = None
    if refusal is not None:
        status = _refuse(step.fail, step.host, "forward_backward", refusal)
        refusal = None
    else:
        status = uform_status_success_k
    if _still_held(arrays) and status == uform_status_success_k:
        return step.fail(step.host, uform_status_invalid_argument_k,
                         "forward_backward kept arrays of its batch, which are lent for the call alone: copy what is "
                         "wanted longer")
    return status


cdef object _batch_of(Run own, const uform_pass_t* step, const uform_prefix_t* bags, int32_t device, list arrays):
    cdef size_t handle
    batch = PluginBatch()
    for name, value in own.planned.items():
        setattr(batch, name, value)
    shape = (bags.active, bags.width)
    batch.device = "ram" if device < 0 else f"vram:{device}"
    batch.bags = _lent(<void*>bags.vectors, shape, device, False, arrays)
    batch.bags_gradient = _lent(<void*>bags.vectors_gradient, shape, device, True, arrays)
    parameters, gradients = {}, {}
    for handle, (name, shape) in enumerate(own.shapes):
        parameters[name] = _lent(<void*>step.weights[handle], shape, device, False, arrays)
        gradients[name] = _lent(<void*>step.gradients[handle], shape, device, True, arrays)
    batch.parameters = Arrays(parameters, "parameters")
    batch.parameter_gradients = Arrays(gradients, "parameter_gradients")
    return batch


cdef PluginArray _lent(void* data, tuple shape, int32_t device, bint writable, list arrays):
    cdef PluginArray made = lend(data, shape, device, writable)
    arrays.append(made)
    return made


cdef double _as_loss(object loss) except? -1:
    """A number, or an array of one: it may be infinite or none, which the step then refuses."""
    try:
        if isinstance(loss, (str, bytes, bytearray, bool)):  # which float() would take
            raise TypeError("it is no number")
        return float(loss)
    except Exception as error:
        raise TypeError(f"it answered {shown(loss)}: expected the loss, a float") from error


cdef bint _still_held(list arrays):
    cdef Py_ssize_t held = sum([(<PluginArray>array).take_back() for array in arrays])
    if held:  # by a cycle, perhaps
        gc.collect()
        held = sum([(<PluginArray>array).take_back() for array in arrays])
    return held != 0
