# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""The losses as functions of given arrays, through the code that trains."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from uform._ext.arena cimport Arena, ArenaBuffer, allocate_rows, allocate_vector, arena_on, shorten
from uform._ext.buffers cimport Vector, View, as_array, exports_buffer, makes_array, unsigned_vector
from uform._ext.c_api cimport (
    uform_contrastive_loss,
    uform_contrastive_loss_t,
    uform_executor_stream,
    uform_late_interaction_loss,
    uform_late_interaction_loss_t,
    uform_masked_bytes_loss,
    uform_masked_bytes_loss_t,
)
from uform._ext.config cimport Contrastive, LateInteraction
from uform._ext.contents cimport flags, words
from uform._ext.dlpack cimport (
    DL_BFLOAT,
    DL_CPU,
    DL_CUDA,
    DL_CUDA_HOST,
    DL_FLOAT,
    DL_UINT,
    Borrowed,
    borrow,
    device_of,
)
from uform._ext.executor cimport Executor
from uform._ext.relations cimport Relations
from uform._ext.status cimport check

import types
from collections import namedtuple

import numpy as np

from uform._ext.enums import AmbientScope, LateInteractionSide, Modality, Scalar

PairLoss = namedtuple(
    "PairLoss",
    "loss gradient log_inverse_temperature_gradient bias_gradient row_losses rows",
    module="uform.losses",
)
PairLoss.__doc__ = """A pairwise loss and its gradients.

Attributes:
    loss: the mean over the rows that count, and over the prefixes.
    gradient: an array like the embeddings or tokens: of NumPy in RAM, an `ArenaBuffer` on their GPU, of their type.
    log_inverse_temperature_gradient: float32, one a temperature group; it lies where the gradient does.
    bias_gradient: float32, one a temperature group; 0 outside SIGMOID; it lies where the gradient does.
    row_losses: float32, the mean over prefixes of each row that counts; it lies where the gradient does.
    rows: uint32, the items that count, ascending; always of NumPy.
"""
PairLoss.__class_getitem__ = classmethod(types.GenericAlias)

MaskedLoss = namedtuple("MaskedLoss", "loss gradient", module="uform.losses")
MaskedLoss.__doc__ = """A reconstruction loss and its gradient.

Attributes:
    loss: the mean over the rows.
    gradient: an array like the logits: of NumPy in RAM, an `ArenaBuffer` on their GPU, of their type.
"""
MaskedLoss.__class_getitem__ = classmethod(types.GenericAlias)


def contrastive(
    executor: Executor,
    embeddings: Buffer | SupportsDLPack,
    /,
    *,
    relations: Relations | None,
    contrastive: Contrastive | None = None,
    modalities: Sequence[Modality] | None = None,
    sides: Sequence[LateInteractionSide] | None = None,
    temperature_groups: _Words | None = None,
) -> PairLoss[Any]:
    """The contrastive loss of given vectors; one item is one bag.

    Vectors are used as given at the full width: unit length is expected and not enforced, and the gradient does not go
    through a normalisation. A shorter prefix is scaled to unit length, and its gradient goes through that.

    On GPUs the embeddings are any array with `__dlpack__` that lies on one of the executor's, which computes. It is
    read where it lies, after the stream that its library says still writes it; float32 end to end takes no copy. The
    results are complete when the call returns.

    Args:
        executor: where to compute.
        embeddings: float32 `[items, width]`; on GPUs also bfloat16.
        relations: which items attract, repel or ignore which.
        contrastive: the form; `max_edges_per_device` 0 is no limit here. A bias beside another form than SIGMOID is
            refused.
        modalities: one an item, for the CROSS_MODAL scope.
        sides: one an item, for the CROSS_SIDE scope.
        temperature_groups: one an item.

    Raises:
        TypeError: the embeddings are not float32, nor bfloat16 on a GPU.
        ValueError: an argument is wrong, the embeddings lie elsewhere, or a vector is not finite; the error names the
            item.
    """
    cdef uform_contrastive_loss_t problem
    cdef Executor devices = _executor(executor)
    cdef Contrastive form
    cdef Vector modality_of = None, side_of = None, group_of = None
    cdef Matrix vectors
    cdef Results results
    cdef double loss = 0
    cdef size_t counted = 0
    form = _contrastive(relations, contrastive, modalities, sides)
    vectors = _matrix(devices, embeddings, "embeddings")
    items, width = vectors.rows, vectors.width
    memset(&problem, 0, sizeof(problem))
    form.fill(&problem.contrastive)
    _kept = None if relations is None else (<Relations>relations).fill(&problem.relations)
    if modalities is not None:
        modality_of = flags(modalities, items, Modality, "modalities")
        problem.modalities = <const uint8_t*>modality_of.data
    if sides is not None:
        side_of = flags(sides, items, LateInteractionSide, "sides")
        problem.sides = <const uint8_t*>side_of.data
    if temperature_groups is not None:
        group_of = words(temperature_groups, items, "temperature_groups")
        problem.temperature_groups = <const uint32_t*>group_of.data
    groups = max(form.temperature_groups, 1)
    results = _results(devices, vectors, (groups, groups, items))
    rows = np.zeros(items, np.uint32)
    written = View.borrow(rows)
    problem.embeddings = vectors.data
    problem.scalar = vectors.scalar
    problem.strided = vectors.strided
    problem.row_stride = vectors.row_stride
    problem.column_stride = vectors.column_stride
    problem.count = items
    problem.width = width
    problem.loss = &loss
    problem.gradient = results.address(0)
    problem.log_inverse_temperature_gradient = <float*>results.address(1)
    problem.bias_gradient = <float*>results.address(2)
    problem.row_losses = <float*>results.address(3)
    problem.rows = <uint32_t*>(<View>written).c.buf
    problem.rows_count = &counted
    devices.enter()
    try:
        with nogil:
            check(uform_contrastive_loss(devices.handle, &problem))
    finally:
        devices.leave()
    gradient, temperatures, biases, row_losses = results.arrays
    return PairLoss(loss, gradient, temperatures, biases, _first(row_losses, counted), rows[:counted].copy())


def late_interaction(
    executor: Executor,
    tokens: Buffer | SupportsDLPack,
    offsets: Buffer,
    /,
    *,
    sides: Sequence[LateInteractionSide],
    relations: Relations | None,
    late_interaction: LateInteraction | None = None,
    contrastive: Contrastive | None = None,
    modalities: Sequence[Modality] | None = None,
) -> PairLoss[Any]:
    """The late-interaction loss of given token vectors, which is not multiplied by a weight.

    The score of a query and a document is the mean over the query's vectors of the largest dot product with any of the
    document's, times the inverse temperature. Vectors are used as given: unit length is expected and not enforced, and
    the gradient does not go through a normalisation. Where they may lie is as for `contrastive`.

    Args:
        executor: where to compute.
        tokens: float32 `[vectors, width]`, those of one item after those of the one before; on GPUs also bfloat16.
        offsets: where each item's begin, and the last one's end: items + 1, on the host.
        sides: one an item; queries are compared with documents. An item with a side has at least one vector.
        relations: which queries attract, repel or ignore which documents.
        late_interaction: the form; `weight` and `width` are not read, `max_query_span` 0 cuts nothing here. A bias
            beside another form than SIGMOID is refused.
        contrastive: of it only `negatives`, `ambient_scope`, `ambient_repulsion_weight` and `max_edges_per_device` are
            read, of which 0 is no limit here.
        modalities: one an item, for the CROSS_MODAL scope.

    Raises:
        TypeError: the tokens are not float32, nor bfloat16 on a GPU.
        ValueError: an argument is wrong, the tokens lie elsewhere, or a vector is not finite; the error names the item
            or the vector.
    """
    cdef uform_late_interaction_loss_t problem
    cdef Executor devices = _executor(executor)
    cdef Contrastive negatives
    cdef LateInteraction form
    cdef Vector modality_of = None, side_of, places
    cdef Matrix vectors
    cdef Results results
    cdef double loss = 0
    cdef size_t counted = 0
    if late_interaction is not None and not isinstance(late_interaction, LateInteraction):
        raise TypeError(f"late_interaction is of type {type(late_interaction).__name__}: expected LateInteraction, or "
                        "None")
    negatives = _contrastive(relations, contrastive, modalities, sides)
    form = late_interaction if late_interaction is not None else LateInteraction()
    vectors = _matrix(devices, tokens, "tokens")
    places = unsigned_vector(offsets, sizeof(uint64_t), "offsets")
    if places.count == 0:
        raise ValueError("offsets has no entries: expected one more than the items")
    items = places.count - 1
    if (<const uint64_t*>places.data)[items] != <uint64_t>vectors.rows:
        raise ValueError(f"offsets[{items}] is {(<const uint64_t*>places.data)[items]}: expected {vectors.rows}, the "
                         "vectors of tokens")
    memset(&problem, 0, sizeof(problem))
    form.fill(&problem.late_interaction)
    negatives.fill(&problem.contrastive)
    _kept = None if relations is None else (<Relations>relations).fill(&problem.relations)
    side_of = flags(sides, items, LateInteractionSide, "sides")
    problem.sides = <const uint8_t*>side_of.data
    if modalities is not None:
        modality_of = flags(modalities, items, Modality, "modalities")
        problem.modalities = <const uint8_t*>modality_of.data
    results = _results(devices, vectors, (1, 1, items))
    rows = np.zeros(items, np.uint32)
    written = View.borrow(rows)
    problem.tokens = vectors.data
    problem.offsets = <const uint64_t*>places.data
    problem.scalar = vectors.scalar
    problem.strided = vectors.strided
    problem.row_stride = vectors.row_stride
    problem.column_stride = vectors.column_stride
    problem.count = items
    problem.width = vectors.width
    problem.loss = &loss
    problem.gradient = results.address(0)
    problem.log_inverse_temperature_gradient = <float*>results.address(1)
    problem.bias_gradient = <float*>results.address(2)
    problem.row_losses = <float*>results.address(3)
    problem.rows = <uint32_t*>(<View>written).c.buf
    problem.rows_count = &counted
    devices.enter()
    try:
        with nogil:
            check(uform_late_interaction_loss(devices.handle, &problem))
    finally:
        devices.leave()
    gradient, temperature, bias, row_losses = results.arrays
    return PairLoss(loss, gradient, temperature, bias, _first(row_losses, counted), rows[:counted].copy())


def masked_bytes(
    executor: Executor, logits: Buffer | SupportsDLPack, targets: Buffer | SupportsDLPack, /
) -> MaskedLoss[Any]:
    """The mean cross-entropy of predicted bytes.

    On GPUs logits and targets are any arrays with `__dlpack__` that lie on one of the executor's, as for `contrastive`.

    Args:
        executor: where to compute.
        logits: float32 `[rows, 256]`; on GPUs also bfloat16.
        targets: uint8 `[rows]`; on GPUs end to end.

    Raises:
        TypeError: the logits are not float32, nor bfloat16 on a GPU, or the targets no integers, nor uint8 on a GPU.
        ValueError: shapes differ, an array lies elsewhere, or a logit is not finite; the error names the row.
    """
    cdef Executor devices = _executor(executor)
    cdef Matrix scores = _matrix(devices, logits, "logits")
    cdef Bytes bytes_of = _bytes(devices, targets, scores, "targets")
    cdef uform_masked_bytes_loss_t problem
    cdef Results results
    cdef double loss = 0
    if scores.width != 256:
        raise ValueError(f"logits has the shape {(scores.rows, scores.width)}: expected 256 columns, one a byte")
    if bytes_of.count != scores.rows:
        raise ValueError(f"targets has {bytes_of.count} entries: expected {scores.rows}, one a row of logits")
    results = _results(devices, scores, ())
    memset(&problem, 0, sizeof(problem))
    problem.logits = scores.data
    problem.scalar = scores.scalar
    problem.strided = scores.strided
    problem.row_stride = scores.row_stride
    problem.column_stride = scores.column_stride
    problem.targets = bytes_of.data
    problem.count = scores.rows
    problem.loss = &loss
    problem.gradient = results.address(0)
    devices.enter()
    try:
        with nogil:
            check(uform_masked_bytes_loss(devices.handle, &problem))
    finally:
        devices.leave()
    return MaskedLoss(loss, results.arrays[0])


cdef Contrastive _contrastive(object relations, object contrastive, object modalities, object sides):
    """The form, where what it reads is there."""
    cdef Contrastive form
    if relations is not None and not isinstance(relations, Relations):
        raise TypeError(f"relations is of type {type(relations).__name__}: expected Relations, or None")
    if contrastive is not None and not isinstance(contrastive, Contrastive):
        raise TypeError(f"contrastive is of type {type(contrastive).__name__}: expected Contrastive, or None")
    form = contrastive if contrastive is not None else Contrastive()
    if form.ambient_scope == AmbientScope.CROSS_MODAL and modalities is None:
        raise ValueError("modalities is None: expected for the ambient scope CROSS_MODAL")
    if form.ambient_scope == AmbientScope.CROSS_SIDE and sides is None:
        raise ValueError("sides is None: expected for the ambient scope CROSS_SIDE")
    return form


cdef Executor _executor(object executor):
    if not isinstance(executor, Executor):
        raise TypeError(f"executor is of type {type(executor).__name__}: expected an Executor")
    (<Executor>executor).open()
    return executor


cdef enum:
    RAM = -1


cdef class Matrix:
    """Values to read where they lie, end to end or with strides."""
    cdef const void* data
    cdef Py_ssize_t rows
    cdef Py_ssize_t width
    cdef bint strided
    cdef int64_t row_stride
    cdef int64_t column_stride
    cdef int32_t scalar
    cdef int32_t device
    cdef object keeper


cdef class Bytes:
    """Bytes to read where they lie, end to end."""
    cdef const uint8_t* data
    cdef size_t count
    cdef object keeper


cdef Matrix _matrix(Executor executor, object source, str field):
    cdef Matrix made
    cdef View view
    if executor.kind == "vram":
        return _device_matrix(executor, source, field)
    _refuse_gpu(source, field)
    array = _host_matrix(source, field)
    view = View.borrow(array)
    made = Matrix.__new__(Matrix)
    made.data = view.c.buf
    made.rows, made.width = array.shape
    made.scalar = Scalar.FLOAT32
    made.device = RAM
    made.keeper = view
    return made


cdef Matrix _device_matrix(Executor executor, object source, str field):
    cdef Borrowed taken = _take(executor, source, field)
    cdef Matrix made = Matrix.__new__(Matrix)
    if taken.tensor.dtype.lanes == 1 and (taken.tensor.dtype.code, taken.tensor.dtype.bits) == (DL_FLOAT, 32):
        made.scalar = Scalar.FLOAT32
    elif taken.tensor.dtype.lanes == 1 and (taken.tensor.dtype.code, taken.tensor.dtype.bits) == (DL_BFLOAT, 16):
        made.scalar = Scalar.BFLOAT16
    else:
        raise TypeError(f"{field} has the dtype {taken.type_name()}: expected float32 or bfloat16")
    _check_axes(taken, 2, field)
    if taken.tensor.shape[1] == 0:
        raise ValueError(f"{field} has the shape {(taken.tensor.shape[0], 0)}: expected at least one column")
    made.data = taken.data()
    made.rows, made.width = taken.tensor.shape[0], taken.tensor.shape[1]
    made.strided, made.row_stride, made.column_stride = True, taken.stride(0), taken.stride(1)
    made.device = taken.tensor.device.device_id
    made.keeper = taken
    return made


cdef Bytes _bytes(Executor executor, object source, Matrix beside, str field):
    """One byte a row, where the rows of `beside` lie."""
    cdef Bytes made = Bytes.__new__(Bytes)
    cdef Vector vector
    cdef Borrowed taken
    if executor.kind != "vram":
        _refuse_gpu(source, field)
        vector = unsigned_vector(source, sizeof(uint8_t), field)
        made.data, made.count, made.keeper = <const uint8_t*>vector.data, vector.count, vector
        return made
    taken = _take(executor, source, field)
    if (taken.tensor.dtype.code, taken.tensor.dtype.bits, taken.tensor.dtype.lanes) != (DL_UINT, 8, 1):
        raise TypeError(f"{field} has the dtype {taken.type_name()}: expected uint8")
    _check_axes(taken, 1, field)
    if taken.tensor.shape[0] > 1 and taken.stride(0) != 1:
        raise ValueError(f"{field} has the stride {taken.stride(0)}: expected its bytes end to end")
    if taken.tensor.device.device_id != beside.device:
        raise ValueError(f"{field} lies in vram:{taken.tensor.device.device_id}, and logits in vram:{beside.device}")
    made.data, made.count, made.keeper = <const uint8_t*>taken.data(), taken.tensor.shape[0], taken
    return made


cdef int _check_axes(Borrowed taken, int axes, str field) except -1:
    if taken.tensor.ndim != axes:
        raise ValueError(f"{field} has {taken.tensor.ndim} axes: expected {axes}")
    return 0


cdef int _refuse_gpu(object source, str field) except -1:
    device = device_of(source)
    if device is not None and device[0] not in (DL_CPU, DL_CUDA_HOST):
        raise ValueError(f"{field} lies on {_device_name(device)}, and the executor computes in RAM: expected an array "
                         "in RAM")
    return 0


cdef Borrowed _take(Executor executor, object source, str field):
    """An array on one of the executor's GPUs, on whose stream it may then be read."""
    device = device_of(source)
    owned = executor.devices
    if device is None:
        raise TypeError(f"{field} is of type {type(source).__name__}: expected an array with __dlpack__ on one of the "
                        f"executor's GPUs, {list(owned)}")
    if device[0] != DL_CUDA or device[1] not in owned:
        raise ValueError(f"{field} lies on {_device_name(device)}: expected an array on one of the executor's GPUs, "
                         f"{list(owned)}")
    return borrow(source, <uintptr_t>uform_executor_stream(executor.handle, owned.index(device[1])))


cdef str _device_name(tuple device):
    if device[0] in (DL_CPU, DL_CUDA_HOST):
        return "ram"
    return f"vram:{device[1]}" if device[0] == DL_CUDA else f"DLPack's device {device}"


cdef class Results:
    """Arrays for what a loss answers: a gradient like the matrix, then vectors of float32."""
    cdef list arrays
    cdef list views

    cdef void* address(self, Py_ssize_t place):
        array = self.arrays[place]
        if isinstance(array, ArenaBuffer):
            return (<ArenaBuffer>array).data
        return (<View>self.views[place]).c.buf


cdef Results _results(Executor executor, Matrix like, tuple counts):
    cdef Results made = Results.__new__(Results)
    cdef Arena arena
    if like.device == RAM:
        shapes = [(like.rows, like.width), *counts]
        made.arrays = [np.zeros(shape, np.float32) for shape in shapes]
        made.views = [View.borrow(array) for array in made.arrays]
        return made
    scalar = Scalar(like.scalar)
    item_bytes = 4 if scalar == Scalar.FLOAT32 else 2
    sizes = [like.rows * like.width * item_bytes, *[count * sizeof(float) for count in counts]]
    # All in one block: what one call answers lives and goes together.
    arena = arena_on(executor, like.device, sum([_padded(size) for size in sizes]))
    made.arrays = [allocate_rows(arena, like.rows, like.width, scalar)]
    made.arrays += [allocate_vector(arena, count) for count in counts]
    return made


cdef object _padded(object bytes):
    """What an allocation of so many bytes takes of an arena on a GPU at most."""
    alignment = 256
    return (max(bytes, 1) + alignment - 1) // alignment * alignment


cdef object _first(object vector, size_t count):
    if not isinstance(vector, ArenaBuffer):
        return vector[:count].copy()
    shorten(vector, count)
    return vector


cdef object _host_matrix(object source, str field):
    """float32 rows end to end: the source itself, or a copy where it has strides."""
    if not exports_buffer(source) and not makes_array(source):
        raise TypeError(f"{field} is of type {type(source).__name__}: expected a float32 array")
    array = as_array(source, field, "a float32 array")
    if array.dtype != np.float32:
        raise TypeError(f"{field} has the dtype {array.dtype}: expected float32")
    if array.ndim != 2:
        raise ValueError(f"{field} has {array.ndim} axes: expected 2")
    if array.shape[1] == 0:
        raise ValueError(f"{field} has the shape {array.shape}: expected at least one column")
    finite = np.isfinite(array)
    if not finite.all():
        row, column = np.unravel_index(int(finite.argmin()), finite.shape)
        raise ValueError(f"{field}[{row}] is not finite: it has {array[row, column]} in column {column}")
    return np.require(array, requirements=("C", "A"))
