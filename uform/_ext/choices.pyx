# cython: language_level=3, annotation_typing=False, auto_pickle=False
"""A call's choices and their targets: texts that items are offered, and how likely each should be."""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from uform._ext.arena cimport ArenaBuffer
from uform._ext.buffers cimport Vector, View, exports_buffer, float_vector, unsigned_vector
from uform._ext.fields cimport as_sequence
from uform._ext.rows_tape cimport RowsTape
from uform._ext.tape cimport as_tape, encoded, joined

import itertools

import numpy as np


cdef class ChoiceTexts:
    pass


cdef ChoiceTexts parse_choices(object choices, object targets, size_t items):
    """Reads choices and targets; None where neither is given.

    A flat sequence or a tape is offered to every text; in a nested one entry `i` holds the choices of item `i`.
    """
    if choices is None:
        if targets is not None:
            raise ValueError("choice_targets are given without choices")
        return None
    cdef ChoiceTexts parsed = ChoiceTexts.__new__(ChoiceTexts)
    parsed.texts = as_tape(choices, "choices")
    if parsed.texts is None:
        _take_sequence(parsed, choices, items)
    else:
        parsed.texts.checked("choices")
    parsed.c.tape = parsed.texts.data
    parsed.c.tape_offsets = parsed.texts.offsets
    parsed.c.tape_bytes = parsed.texts.bytes
    parsed.c.count = parsed.texts.count
    if targets is not None:
        _take_targets(parsed, targets, items)
    return parsed


cdef bint _is_text(object entry):
    return isinstance(entry, str) or exports_buffer(entry)


cdef int _take_sequence(ChoiceTexts parsed, object choices, size_t items) except -1:
    entries = as_sequence(choices, "choices", "a list of texts, or a list of such lists")
    if all([_is_text(entry) for entry in entries]):
        parsed.texts = joined([encoded(entry, f"choices[{place}]") for place, entry in enumerate(entries)])
        return 0
    if len(entries) != items:
        raise ValueError(f"choices has {len(entries)} entries: expected {items}, the choices of each content")
    texts = []
    counts = []
    for place, entry in enumerate(entries):
        own = _own_choices(entry, place)
        texts.extend([encoded(text, f"choices[{place}][{choice}]") for choice, text in enumerate(own)])
        counts.append(len(own))
    parsed.texts = joined(texts)
    parsed.item_offsets = _offsets_of(counts)
    parsed.c.item_offsets = <const uint64_t*>parsed.item_offsets.data
    return 0


cdef tuple _own_choices(object entry, Py_ssize_t place):
    if _is_text(entry):
        raise TypeError(f"choices[{place}] is a text among lists: expected the choices of item {place}")
    return as_sequence(entry, f"choices[{place}]", "a list of texts")


cdef Vector _offsets_of(list counts):
    offsets = np.fromiter(itertools.accumulate(counts, initial=0), np.uint64, len(counts) + 1)
    return unsigned_vector(offsets, sizeof(uint64_t), "offsets")


cdef int _take_targets(ChoiceTexts parsed, object targets, size_t items) except -1:
    """Targets are a tape (values, offsets), as a RowsTape is by itself, or one row a content."""
    if isinstance(targets, RowsTape):
        targets = targets, targets.offsets
    if isinstance(targets, tuple):
        if len(targets) != 2:
            raise ValueError(f"choice_targets is a tuple of {len(targets)}: expected a tape (values, offsets)")
        parsed.targets = float_vector(_on_host(targets[0]), "choice_targets.values")
        parsed.target_offsets = unsigned_vector(targets[1], sizeof(uint64_t), "choice_targets.offsets")
        if parsed.target_offsets.count != items + 1:
            raise ValueError(f"choice_targets.offsets has {parsed.target_offsets.count} entries: expected {items + 1}, "
                             "one more than the contents")
    else:
        _take_target_rows(parsed, targets, items)
    parsed.c.targets = <const float*>parsed.targets.data
    parsed.c.targets_count = parsed.targets.count
    parsed.c.target_offsets = <const uint64_t*>parsed.target_offsets.data
    return 0


cdef object _on_host(object values):
    """Answers of a model in a GPU's memory are copied, as the host plans with them."""
    return values.numpy() if isinstance(values, (ArenaBuffer, RowsTape)) else values


cdef int _take_target_rows(ChoiceTexts parsed, object targets, size_t items) except -1:
    rows = as_sequence(targets, "choice_targets", "a list of rows, or a tape (values, offsets)")
    if len(rows) != items:
        raise ValueError(f"choice_targets has {len(rows)} rows: expected {items}, one a content")
    cdef list vectors = [float_vector(row, f"choice_targets[{place}]") for place, row in enumerate(rows)]
    cdef list counts = [(<Vector>vector).count for vector in vectors]
    cdef View values = View.borrow(np.empty(sum(counts), np.float32))
    cdef float* to = <float*>values.c.buf
    cdef Vector row_of
    for row_of in vectors:
        memcpy(to, row_of.data, row_of.count * sizeof(float))
        to += row_of.count
    parsed.targets = float_vector(values.source, "choice_targets")
    parsed.target_offsets = _offsets_of(counts)
    return 0


cdef object choice_offsets(ChoiceTexts choices, size_t texts):
    """Where each text's choices begin among those of all texts: uint64, texts + 1."""
    if choices.item_offsets is None:
        return np.arange(texts + 1, dtype=np.uint64) * np.uint64(choices.texts.count)
    return np.array(<const uint64_t[:texts + 1]><const uint64_t*>choices.item_offsets.data)
