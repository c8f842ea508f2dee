# cython: language_level=3, annotation_typing=False
"""The losses as functions of given arrays, through the code that trains."""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from uform._ext.buffers cimport Vector, View, as_array, exports_buffer, makes_array, unsigned_vector
from uform._ext.c_api cimport uform_contrastive_loss, uform_contrastive_loss_t, uform_masked_bytes_loss
from uform._ext.config cimport Contrastive
from uform._ext.contents cimport flags, words
from uform._ext.executor cimport Executor
from uform._ext.relations cimport Relations
from uform._ext.status cimport check

from collections import namedtuple

import numpy as np

from uform._ext.enums import AmbientScope, LateInteractionSide, Modality

PairLoss = namedtuple(
    "PairLoss",
    "loss gradient log_inverse_temperature_gradient bias_gradient row_losses rows",
    module="uform.losses",
)
PairLoss.__doc__ = """A pairwise loss and its gradients.

Attributes:
    loss: the mean over the rows that count, and over the prefixes.
    gradient: float32, an array like the embeddings.
    log_inverse_temperature_gradient: float32, one a temperature group.
    bias_gradient: float32, one a temperature group; 0 outside SIGMOID.
    row_losses: float32, the mean over prefixes of each row that counts.
    rows: uint32, the items that count, ascending.
"""

MaskedLoss = namedtuple("MaskedLoss", "loss gradient", module="uform.losses")
MaskedLoss.__doc__ = """A reconstruction loss and its gradient.

Attributes:
    loss: the mean over the rows.
    gradient: float32, an array like the logits.
"""


def contrastive(
    executor: Executor,
    embeddings: Buffer,
    /,
    *,
    relations: Relations | None,
    contrastive: Contrastive | None = None,
    modalities: Sequence[Modality] | None = None,
    sides: Sequence[LateInteractionSide] | None = None,
    temperature_groups: _Words | None = None,
) -> PairLoss:
    """The contrastive loss of given vectors; one item is one bag.

    Vectors are used as given at the full width: unit length is expected and not enforced, and the gradient does not go
    through a normalisation. A shorter prefix is scaled to unit length, and its gradient goes through that.

    Args:
        executor: where to compute.
        embeddings: float32 `[items, width]`.
        relations: which items attract, repel or ignore which.
        contrastive: the form; `max_edges_per_device` 0 is no limit here.
        modalities: one an item, for the CROSS_MODAL scope.
        sides: one an item, for the CROSS_SIDE scope.
        temperature_groups: one an item.

    Raises:
        TypeError: the embeddings are not float32.
        ValueError: an argument is wrong, or a vector is not finite; the error names the item.
    """
    cdef uform_contrastive_loss_t problem
    cdef Executor devices = _executor(executor)
    cdef Contrastive form
    cdef Vector modality_of = None, side_of = None, group_of = None
    cdef View vectors
    cdef double loss = 0
    cdef size_t counted = 0
    if relations is not None and not isinstance(relations, Relations):
        raise TypeError(f"relations is of type {type(relations).__name__}: expected Relations, or None")
    if contrastive is not None and not isinstance(contrastive, Contrastive):
        raise TypeError(f"contrastive is of type {type(contrastive).__name__}: expected Contrastive, or None")
    form = contrastive if contrastive is not None else Contrastive()
    if form.ambient_scope == AmbientScope.CROSS_MODAL and modalities is None:
        raise ValueError("modalities is None: expected for the ambient scope CROSS_MODAL")
    if form.ambient_scope == AmbientScope.CROSS_SIDE and sides is None:
        raise ValueError("sides is None: expected for the ambient scope CROSS_SIDE")
    given = _matrix(embeddings, "embeddings")
    items, width = given.shape
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
    answer = PairLoss(
        loss=0.0,
        gradient=np.zeros_like(given),
        log_inverse_temperature_gradient=np.zeros(groups, np.float32),
        bias_gradient=np.zeros(groups, np.float32),
        row_losses=np.zeros(items, np.float32),
        rows=np.zeros(items, np.uint32),
    )
    vectors = View.borrow(given)
    written = [View.borrow(array) for array in answer[1:]]
    problem.embeddings = <const float*>vectors.c.buf
    problem.count = items
    problem.width = width
    problem.loss = &loss
    problem.gradient = <float*>(<View>written[0]).c.buf
    problem.log_inverse_temperature_gradient = <float*>(<View>written[1]).c.buf
    problem.bias_gradient = <float*>(<View>written[2]).c.buf
    problem.row_losses = <float*>(<View>written[3]).c.buf
    problem.rows = <uint32_t*>(<View>written[4]).c.buf
    problem.rows_count = &counted
    devices.enter()
    try:
        with nogil:
            check(uform_contrastive_loss(devices.handle, &problem))
    finally:
        devices.leave()
    return answer._replace(loss=loss, row_losses=answer.row_losses[:counted].copy(), rows=answer.rows[:counted].copy())


def masked_bytes(executor: Executor, logits: Buffer, targets: Buffer, /) -> MaskedLoss:
    """The mean cross-entropy of predicted bytes.

    Args:
        executor: where to compute.
        logits: float32 `[rows, 256]`.
        targets: uint8 `[rows]`.

    Raises:
        TypeError: the logits are not float32, or the targets no integers.
        ValueError: shapes differ, or a logit is not finite; the error names the row.
    """
    cdef Executor devices = _executor(executor)
    cdef View scores, written
    cdef Vector bytes_of = unsigned_vector(targets, sizeof(uint8_t), "targets")
    cdef double loss = 0
    given = _matrix(logits, "logits")
    if given.shape[1] != 256:
        raise ValueError(f"logits has the shape {given.shape}: expected 256 columns, one a byte")
    if bytes_of.count != given.shape[0]:
        raise ValueError(f"targets has {bytes_of.count} entries: expected {given.shape[0]}, one a row of logits")
    gradient = np.zeros_like(given)
    scores = View.borrow(given)
    written = View.borrow(gradient)
    devices.enter()
    try:
        with nogil:
            check(uform_masked_bytes_loss(devices.handle, <const float*>scores.c.buf, <const uint8_t*>bytes_of.data,
                                          bytes_of.count, &loss, <float*>written.c.buf))
    finally:
        devices.leave()
    return MaskedLoss(loss, gradient)


cdef Executor _executor(object executor):
    if not isinstance(executor, Executor):
        raise TypeError(f"executor is of type {type(executor).__name__}: expected an Executor")
    (<Executor>executor).open()
    return executor


cdef object _matrix(object source, str field):
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
    return np.ascontiguousarray(array)
