# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Inference over checkpoints."""

cimport cython
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memset

from uform._ext.arena cimport Arena, allocate_rows, allocate_vector, pin, reserve
from uform._ext.buffers cimport View
from uform._ext.c_api cimport (
    uform_executor_kind_ram_k,
    uform_executor_kind_vram_k,
    uform_model_describe,
    uform_model_embed,
    uform_model_embed_tokens,
    uform_model_free,
    uform_model_init_ram,
    uform_model_init_vram,
    uform_model_measure_tokens,
    uform_model_t,
    uform_model_text_choose,
    uform_scalar_row_bytes,
    uform_status_t,
    uform_string_free,
)
from uform._ext.choices cimport choice_offsets, parse_choices
from uform._ext.contents cimport Items, flags, parse_items
from uform._ext.deferred cimport Receiver
from uform._ext.executor cimport Executor
from uform._ext.fields cimport as_enum, as_path
from uform._ext.progress cimport Progress, as_progress
from uform._ext.registry cimport load_all_plugins
from uform._ext.rows cimport as_arena, make_rows
from uform._ext.rows_tape cimport RowsTape
from uform._ext.status cimport check
from uform._ext.tape cimport as_texts

import json
import logging
import os

import numpy as np

from uform._ext.deferred import DeferredOn, On
from uform._ext.enums import LateInteractionSide, Scalar, with_members

_LOG = logging.getLogger("uform")


@cython.final
cdef class Model(Receiver):
    """A checkpoint's encoder on the devices of the executor it was opened on, which its own verbs block on.

    Attributes:
        executor: what it was opened on.
    """

    _calls = {"embed": EmbedCall, "embed_tokens": TokensCall, "text_choose": TextChooseCall}

    def __init__(self, *args, **kwargs) -> None:
        raise TypeError("Model() is not how models are made: use Model.init_ram() or Model.init_vram()")

    def __dealloc__(self):
        with nogil:
            uform_model_free(self.handle)

    @classmethod
    def init_ram(cls, executor: Executor, path: _PathLike, /) -> Model:
        """Opens a checkpoint on a RAM executor.

        Raises:
            OSError: the file cannot be read, is damaged, or is no checkpoint.
            ValueError: the executor is on GPUs, the checkpoint holds a value that no run has, or it needs a modality
                that is not registered. What only training needs is not read: moments, objectives that answer nothing.
            MemoryError: the encoder does not fit.
        """
        return _make(uform_executor_kind_ram_k, executor, path)

    @classmethod
    def init_vram(cls, executor: Executor, path: _PathLike, /) -> Model:
        """Opens a checkpoint on GPUs: `init_ram` on a VRAM executor."""
        return _make(uform_executor_kind_vram_k, executor, path)

    def __reduce__(self):
        raise TypeError("a Model cannot be pickled or copied: it lives on devices; open its checkpoint again")

    def on(self, executor: Executor, /) -> On[Model]:
        """A receiver whose verbs block on `executor`.

        It may be another one on the same devices: verbs come in its order, and take the devices in turns with those of
        the receiver's own.
        """
        return On(self, executor)

    def deferred(self, executor: Executor, /) -> DeferredOn[Model]:
        """A receiver whose verbs submit to `executor` and answer a `Deferred`.

        It may be another one on the same devices, as of `on`.
        """
        return DeferredOn(self, executor)

    def embed(
        self,
        modalities: Sequence[Modality],
        contents: _Texts,
        /,
        *,
        bags: _Words | None = None,
        arena: Arena | None = None,
        outputs_scalar: Scalar = Scalar.FLOAT32,
    ) -> ArenaBuffer:
        """Embeds any number of items.

        Args:
            modalities: one a content.
            contents: texts, arrays or encoded files; or texts alone as a tape.
            bags: a word a content; equal words share one embedding. None bags each by itself.
            arena: where to answer: in RAM, or on one of the executor's GPUs; None makes one in RAM.
            outputs_scalar: the element type of the answer.

        Returns:
            One row of unit length a bag, in the order in which bags first appear.
        """
        return EmbedCall(self, modalities, contents, bags=bags, arena=arena, outputs_scalar=outputs_scalar)()

    def text_choose(self, texts: _Texts, choices: _Texts, /, *, arena: Arena | None = None) -> RowsTape:
        """How probable each choice is for each text, as a checkpoint that trained `Choices` judges.

        An item's choices are encoded with it, so that they depend on one another. A text is cut to leave its choices
        room within a row; choices are never cut.

        Args:
            texts: texts, or a tape of them; any number.
            choices: texts offered to every text, or a list of its own for each.
            arena: where to answer: in RAM, or on one of the executor's GPUs; None makes one in RAM.

        Returns:
            A row a text, as long as its choices, that sums to 1; in float32. It is what `choice_targets` takes.

        Raises:
            ValueError: a choice does not fit, an argument is wrong, or the checkpoint was trained without choices.
        """
        return TextChooseCall(self, texts, choices, arena=arena)()

    def embed_tokens(
        self,
        modalities: Sequence[Modality],
        contents: _Texts,
        /,
        *,
        sides: Sequence[LateInteractionSide] | None = None,
        arena: Arena | None = None,
        outputs_scalar: Scalar = Scalar.FLOAT32,
    ) -> RowsTape:
        """The late-interaction vectors of any number of items, one a column: the marker's, then the content's.

        Args:
            modalities: one a content.
            contents: texts, arrays or encoded files; or texts alone as a tape.
            sides: one a content; of a QUERY the first `max_query_span` columns alone. None takes all as documents.
            arena: where to answer: in RAM, or on one of the executor's GPUs; None makes one in RAM.
            outputs_scalar: the element type of the answer.

        Returns:
            For each item its vectors of unit length, `[columns, width]`.

        Raises:
            ValueError: the checkpoint was trained without late interaction, or an argument is wrong.
        """
        return TokensCall(self, modalities, contents, sides=sides, arena=arena, outputs_scalar=outputs_scalar)()

    def describe(self) -> dict[str, Any]:
        """The configuration that the checkpoint was trained with."""
        cdef uform_model_t* handle = self.enter()
        cdef char* text = NULL
        try:
            with nogil:
                check(uform_model_describe(handle, &text))
            return with_members(json.loads(text))
        finally:
            uform_string_free(text)
            self.leave()

    def __repr__(self) -> str:
        if self.executor is None:
            return "<Model not initialised>"
        return f"<Model hidden={self.hidden} on {self.executor!r}>"

    cdef int check_made(self) except -1:
        if self.executor is None:
            raise ValueError("the model is not initialised: use Model.init_ram() or Model.init_vram()")
        return 0

    cdef uform_model_t* enter(self) except NULL:
        """Begins a call; `leave` ends it."""
        self.check_made()
        self.executor.enter()
        return self.handle

    cdef int leave(self) except -1:
        return self.executor.leave()


cdef Model _make(int kind, object executor, object path):
    if not isinstance(executor, Executor):
        raise TypeError(f"executor is of type {type(executor).__name__}: expected an Executor")
    cdef Model made = Model.__new__(Model)
    cdef Executor devices = executor
    cdef bytes spelled = as_path(path, "path")
    cdef const char* file = spelled
    devices.open()
    load_all_plugins()  # the checkpoint tells which of them it needs
    devices.enter()
    try:
        with nogil:
            if kind == uform_executor_kind_ram_k:
                check(uform_model_init_ram(devices.handle, file, &made.handle))
            else:
                check(uform_model_init_vram(devices.handle, file, &made.handle))
    finally:
        devices.leave()
    made.executor = devices
    description = made.describe()
    made.hidden = description["hidden"]
    made.shapes = description["batch"]
    _LOG.info("a model of %d columns on %r, from %s", made.hidden, devices, os.fsdecode(spelled))
    return made


cdef class TokensCall:

    def __init__(
        self,
        Model model not None,
        modalities,
        contents,
        /,
        *,
        sides=None,
        arena=None,
        outputs_scalar=Scalar.FLOAT32,
    ) -> None:
        cdef Items items
        self._release()
        model.check_made()
        scalar = as_enum(Scalar, outputs_scalar, "outputs_scalar")
        place = as_arena(arena, model.executor)
        items = parse_items(modalities, contents, None, model.shapes)
        self.sides = None if sides is None else flags(sides, items.c.count, LateInteractionSide, "sides")
        self.scalar = scalar
        self.room = pin(Arena.for_ram() if place is None else place)
        self.model = model
        self.items = items  # last: it tells that the call is prepared

    cdef const uint8_t* side_of(self):
        if self.sides is None:
            return NULL
        return <const uint8_t*>self.sides.data

    def __call__(self) -> RowsTape:
        if self.items is None:
            raise ValueError("the call was not prepared, or has run")
        try:
            handle = self.model.enter()
            try:
                return self._answer(handle)
            finally:
                self.model.leave()
        finally:
            self._release()

    cdef RowsTape _answer(self, uform_model_t* handle):
        """With room for as many vectors as there are columns, which the model tells when its turn has come."""
        cdef View offsets = View.borrow(np.empty(self.items.c.count + 1, np.uint64))
        cdef const uint8_t* sides = self.side_of()
        cdef Progress told = as_progress(None, 0)
        cdef uform_output_t output
        cdef ArenaBuffer buffer
        cdef uform_status_t status
        cdef size_t width
        with nogil:
            check(uform_model_measure_tokens(handle, &self.items.c, sides, <uint64_t*>offsets.c.buf, &width))
        memset(&output, 0, sizeof(output))
        output.rows = (<uint64_t*>offsets.c.buf)[self.items.c.count]
        output.scalar = self.scalar.value
        check(uform_scalar_row_bytes(output.scalar, width, &output.row_bytes))
        buffer = allocate_rows(self.room.arena, output.rows, width, self.scalar)
        self.room.fill(buffer)
        output.data = buffer.data
        with nogil:
            status = uform_model_embed_tokens(handle, &self.items.c, sides, &output, NULL, told.function, <void*>told)
        told.finish(status)
        self.room.release(True)
        return RowsTape(buffer, np.asarray(offsets.source))

    def _release(self) -> None:
        """Lets go of all that was borrowed."""
        if self.room is not None:
            self.room.release(False)
        self.items = None
        self.sides = None
        self.room = None


cdef class EmbedCall:

    def __init__(
        self,
        Model model not None,
        modalities,
        contents,
        /,
        *,
        bags=None,
        arena=None,
        outputs_scalar=Scalar.FLOAT32,
    ) -> None:
        cdef Items items
        self._release()
        model.check_made()
        scalar = as_enum(Scalar, outputs_scalar, "outputs_scalar")
        place = as_arena(arena, model.executor)
        items = parse_items(modalities, contents, bags, model.shapes)
        self.rows = make_rows(place, &items.c, model.hidden, scalar, &self.output)
        self.model = model
        self.items = items  # last: it tells that the call is prepared

    def __call__(self) -> ArenaBuffer:
        cdef uform_model_t* handle
        cdef uform_status_t status
        cdef Progress told = as_progress(None, 0)
        if self.items is None:
            raise ValueError("the call was not prepared, or has run")
        try:
            handle = self.model.enter()
            try:
                with nogil:
                    status = uform_model_embed(handle, &self.items.c, &self.output, NULL, told.function, <void*>told)
                told.finish(status)
            finally:
                self.model.leave()
            return self.rows.keep()
        finally:
            self._release()

    def _release(self) -> None:
        """Lets go of all that was borrowed."""
        if self.rows is not None:
            self.rows.release()
        self.items = None
        self.rows = None


cdef class TextChooseCall:

    def __init__(self, Model model not None, texts, choices, /, *, arena=None) -> None:
        self._release()
        model.check_made()
        if choices is None:
            raise TypeError("choices is None: expected a list of texts, or a list of such lists")
        place = as_arena(arena, model.executor)
        self.texts = as_texts(texts, "texts")
        self.items.count = self.texts.count
        self.items.tape = self.texts.data
        self.items.tape_offsets = self.texts.offsets
        self.items.tape_bytes = self.texts.bytes
        self.choices = parse_choices(choices, None, self.texts.count)
        self.offsets = choice_offsets(self.choices, self.texts.count)
        self.probabilities = allocate_vector(Arena.for_ram() if place is None else place, self._count())
        self.room = reserve(self.probabilities)
        self.model = model  # last: it tells that the call is prepared

    def __call__(self) -> RowsTape:
        cdef uform_model_t* handle
        cdef size_t count
        cdef uform_status_t status
        cdef Progress told = as_progress(None, 0)
        if self.model is None:
            raise ValueError("the call was not prepared, or has run")
        count = self._count()
        try:
            handle = self.model.enter()
            try:
                with nogil:
                    status = uform_model_text_choose(handle, &self.items, &self.choices.c,
                                                     <float*>self.probabilities.data, count, NULL, told.function,
                                                     <void*>told)
                told.finish(status)
            finally:
                self.model.leave()
            answer = RowsTape(self.probabilities, self.offsets)
            self.room.release(True)
            return answer
        finally:
            self._release()

    def _count(self) -> int:
        return int(self.offsets[-1])

    def _release(self) -> None:
        """Lets go of all that was borrowed."""
        if self.room is not None:
            self.room.release(False)
        memset(&self.items, 0, sizeof(self.items))
        self.model = None
        self.texts = None
        self.choices = None
        self.offsets = None
        self.probabilities = None
        self.room = None
