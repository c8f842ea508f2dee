# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Training runs."""

cimport cython
from libc.stdint cimport int32_t, uint32_t, uint8_t
from libc.string cimport memset

from uform._ext.buffers cimport Vector, View, as_array, as_float32
from uform._ext.c_api cimport (
    uform_executor_kind_ram_k,
    uform_pending_free,
    uform_pending_t,
    uform_pending_wait,
    uform_string_free,
    uform_trainer_counters,
    uform_trainer_counters_t,
    uform_trainer_describe,
    uform_trainer_free,
    uform_trainer_init_ram,
    uform_trainer_init_vram,
    uform_trainer_plan_ram,
    uform_trainer_plan_vram,
    uform_trainer_read,
    uform_trainer_save,
    uform_trainer_step,
    uform_trainer_step_stats_t,
    uform_trainer_submit,
    uform_trainer_t,
    uform_trainer_write,
    uform_executor_kind_vram_k,
    uform_status_t,
)
from uform._ext.choices cimport ChoiceTexts, parse_choices
from uform._ext.contents cimport Items, flags, parse_items, words
from uform._ext.deferred cimport Receiver
from uform._ext.executor cimport Executor
from uform._ext.fields cimport as_enum, as_path, as_str, shown
from uform._ext.mesh cimport Mesh
from uform._ext.options cimport TrainerOptions, as_trainer_options
from uform._ext.progress cimport as_progress
from uform._ext.python_objective cimport begin_holding, end_holding
from uform._ext.relations cimport take_relations
from uform._ext.rows cimport as_arena, make_rows
from uform._ext.stats cimport TrainerStepStats
from uform._ext.status cimport check

import json
import logging
import os

import numpy as np

from uform._ext.deferred import DeferredOn, On
from uform._ext.enums import LateInteractionSide, Objective, Scalar, with_members

_LOG = logging.getLogger("uform")
# Fewer than the outcomes that the core keeps, of which a blocking step takes one.
cdef enum:
    MOST_BEGUN = 60

_READABLE = ("parameter", "gradient", "moment1", "moment2")


@cython.final
@cython.no_gc_clear
cdef class Trainer(Receiver):
    """A training run on the devices of the executor it was created on, which its own verbs block on.

    Its verbs may be called from several threads, and are served one after another.

    Attributes:
        executor: what it was created on.
        mesh: the world it steps with; None for the executor's devices alone.
    """

    _calls = {"step": StepCall, "save": SaveCall}

    def __init__(self, *args, **kwargs) -> None:
        raise TypeError("Trainer() is not how trainers are made: use Trainer.init_vram() or Trainer.init_ram()")

    def __dealloc__(self):
        with nogil:
            uform_trainer_free(self.handle)

    @classmethod
    def init_vram(
        cls,
        executor: Executor,
        /,
        *,
        mesh: Mesh | None = None,
        resume: _PathLike | None = None,
        depth: int = 0,
        hidden: int = 0,
        batch: BatchShape | None = None,
        objective: Objective = Objective.MASKED,
        masking: Masking | None = None,
        contrastive: Contrastive | None = None,
        late_interaction: LateInteraction | None = None,
        choices: Choices | None = None,
        schedule: Schedule | None = None,
        seed: int = 0,
        progress: _Progress | None = None,
        progress_steps: int = 0,
        optimizer: Optimizer | None = None,
        plugins: Mapping[str, Mapping[str, Any] | Buffer | None] | None = None,
    ) -> Trainer:
        """Builds one replica per device and starts or resumes the run.

        Args:
            executor: GPUs.
            mesh: the world, bootstrapped on the same executor.
            resume: a checkpoint to continue; zeros take its values. What its run derived is derived anew where what
                it derives from is given: other `steps` bring their twentieth as the warmup, unless that was given too.
                Sizes of the network, the set of objectives, and whatever its parameters began with must be the same.
            depth: blocks of the encoder; 0 derives 12.
            hidden: columns of its states, a multiple of 64; 0 derives 512.
            batch: what one device's step carries at most.
            objective: which losses a step relaxes.
            masking: of the masked objective. A field other than 0 that nothing in the run reads is refused, of this
                structure and of those that follow; one of zeros says nothing, and is taken.
            contrastive: of the contrastive objective; late interaction reads its negatives and their bounds, too.
            late_interaction: None leaves late interaction out.
            choices: None leaves choices out, unless the batch has room for them.
            schedule: of the learning rate.
            seed: of every random number; 0 is a seed as well.
            progress: called with (done, total); False cancels.
            progress_steps: calls it once in so many steps; 0 is 1.
            optimizer: of the update.
            plugins: third parties' plugins by name, registered or installed, each with a mapping from its fields to
                values, a buffer that holds its configuration structure, or None.

        Raises:
            ValueError: a field is out of its range, read by nothing in the run, or other than the checkpoint's; the
                executor is on RAM; or the checkpoint holds a value that no run has.
            OSError: the checkpoint cannot be read, is damaged, or is none.
            MemoryError: the run does not fit.
        """
        return _make(uform_executor_kind_vram_k, executor, mesh, dict(
            resume=resume, depth=depth, hidden=hidden, batch=batch, objective=objective, masking=masking,
            contrastive=contrastive, late_interaction=late_interaction, choices=choices, schedule=schedule, seed=seed,
            progress=progress, progress_steps=progress_steps, optimizer=optimizer, plugins=plugins))

    @classmethod
    def init_ram(
        cls,
        executor: Executor,
        /,
        *,
        mesh: Mesh | None = None,
        resume: _PathLike | None = None,
        depth: int = 0,
        hidden: int = 0,
        batch: BatchShape | None = None,
        objective: Objective = Objective.MASKED,
        masking: Masking | None = None,
        contrastive: Contrastive | None = None,
        late_interaction: LateInteraction | None = None,
        choices: Choices | None = None,
        schedule: Schedule | None = None,
        seed: int = 0,
        progress: _Progress | None = None,
        progress_steps: int = 0,
        optimizer: Optimizer | None = None,
        plugins: Mapping[str, Mapping[str, Any] | Buffer | None] | None = None,
    ) -> Trainer:
        """Builds one replica per virtual device and starts or resumes the run: `init_vram` on a RAM executor."""
        return _make(uform_executor_kind_ram_k, executor, mesh, dict(
            resume=resume, depth=depth, hidden=hidden, batch=batch, objective=objective, masking=masking,
            contrastive=contrastive, late_interaction=late_interaction, choices=choices, schedule=schedule, seed=seed,
            progress=progress, progress_steps=progress_steps, optimizer=optimizer, plugins=plugins))

    @classmethod
    def plan_vram(
        cls,
        executor: Executor,
        /,
        *,
        mesh: Mesh | None = None,
        resume: _PathLike | None = None,
        depth: int = 0,
        hidden: int = 0,
        batch: BatchShape | None = None,
        objective: Objective = Objective.MASKED,
        masking: Masking | None = None,
        contrastive: Contrastive | None = None,
        late_interaction: LateInteraction | None = None,
        choices: Choices | None = None,
        schedule: Schedule | None = None,
        seed: int = 0,
        progress: _Progress | None = None,
        progress_steps: int = 0,
        optimizer: Optimizer | None = None,
        plugins: Mapping[str, Mapping[str, Any] | Buffer | None] | None = None,
    ) -> dict[str, Any]:
        """The bytes that `init_vram` would take of the same arguments, before anything is allocated.

        It reads no item and calls no `progress`. What the CUDA context, its modules and NCCL keep comes on top.

        Args:
            executor: GPUs.
            mesh: as of `init_vram`, and so is each that follows.
            resume: a checkpoint, whose configuration alone is read.
            depth: blocks of the encoder.
            hidden: columns of its states.
            batch: what one device's step carries at most.
            objective: which losses a step relaxes.
            masking: of the masked objective.
            contrastive: of the contrastive objective.
            late_interaction: None leaves late interaction out.
            choices: None leaves choices out, unless the batch has room for them.
            schedule: of the learning rate.
            seed: of every random number.
            progress: not called.
            progress_steps: not read.
            optimizer: of the update.
            plugins: third parties' plugins by name, each with its configuration, or None.

        Returns:
            `devices`; `parameter_count`; `planned_bytes_per_device`, which maps purposes and "total" to bytes as
            `describe()` does; and `planned_host_bytes`, likewise the host's memory that all devices' transfers pass
            through.

        Raises:
            ValueError: a field is out of its range, differs from the checkpoint's, or the executor is on RAM.
            DeviceError: the executor is on RAM, in a build without the VRAM backend, whose memory nothing plans there.
            OSError: the checkpoint cannot be read, is damaged, or is none.
            MemoryError: the sizes pass the address space.
        """
        return _plan(uform_executor_kind_vram_k, executor, mesh, dict(
            resume=resume, depth=depth, hidden=hidden, batch=batch, objective=objective, masking=masking,
            contrastive=contrastive, late_interaction=late_interaction, choices=choices, schedule=schedule, seed=seed,
            progress=progress, progress_steps=progress_steps, optimizer=optimizer, plugins=plugins))

    @classmethod
    def plan_ram(
        cls,
        executor: Executor,
        /,
        *,
        mesh: Mesh | None = None,
        resume: _PathLike | None = None,
        depth: int = 0,
        hidden: int = 0,
        batch: BatchShape | None = None,
        objective: Objective = Objective.MASKED,
        masking: Masking | None = None,
        contrastive: Contrastive | None = None,
        late_interaction: LateInteraction | None = None,
        choices: Choices | None = None,
        schedule: Schedule | None = None,
        seed: int = 0,
        progress: _Progress | None = None,
        progress_steps: int = 0,
        optimizer: Optimizer | None = None,
        plugins: Mapping[str, Mapping[str, Any] | Buffer | None] | None = None,
    ) -> dict[str, Any]:
        """The bytes that `init_ram` would take of the same arguments: `plan_vram` on a RAM executor."""
        return _plan(uform_executor_kind_ram_k, executor, mesh, dict(
            resume=resume, depth=depth, hidden=hidden, batch=batch, objective=objective, masking=masking,
            contrastive=contrastive, late_interaction=late_interaction, choices=choices, schedule=schedule, seed=seed,
            progress=progress, progress_steps=progress_steps, optimizer=optimizer, plugins=plugins))

    def __reduce__(self):
        raise TypeError("a Trainer cannot be pickled or copied: it lives on devices; save() writes what resume reads")

    def on(self, executor: Executor, /) -> On[Trainer]:
        """A receiver whose verbs block on `executor`.

        It may be another one on the same devices: verbs come in its order, and take the devices in turns with those of
        the receiver's own.
        """
        return On(self, executor)

    def deferred(self, executor: Executor, /) -> DeferredOn[Trainer]:
        """A receiver whose verbs submit to `executor` and answer a `Deferred`.

        It may be another one on the same devices, as of `on`.
        """
        return DeferredOn(self, executor)

    def step(
        self,
        modalities: Sequence[Modality],
        contents: _Texts,
        /,
        *,
        bags: _Words | None = None,
        temperature_groups: _Words | None = None,
        sides: Sequence[LateInteractionSide] | None = None,
        choices: _Texts | None = None,
        choice_targets: Sequence[Buffer] | _Tape | None = None,
        relations: Relations | None = None,
        arena: Arena | None = None,
        outputs_scalar: Scalar = Scalar.FLOAT32,
        stats: TrainerStepStats | None = None,
    ) -> ArenaBuffer | None:
        """Applies one optimizer step over this process's items and every peer's.

        Args:
            modalities: one a content.
            contents: texts, arrays or encoded files; or texts alone as a tape.
            bags: a word a content; equal words share one embedding. None bags each by itself.
            temperature_groups: one a content, of the contrastive objective; a bag takes its first item's. A run without
                that objective refuses all but 0.
            sides: one a content, of late interaction and of the scope CROSS_SIDE; without them all but NONE is refused.
            choices: texts offered to every text, or a list of its own for each content, empty where it is no text. They
                are encoded behind the text, which is cut where its row has no room for both; a choice is never cut.
            choice_targets: how likely each choice should be: one row a content, which sums to 1; an item whose row is
                empty, or all zeros, makes no choice. What `Model.text_choose` answers will do as it is.
            relations: which items attract, repel or ignore which; a run that reads none refuses edges.
            arena: where to answer the embeddings that the loss scored: in RAM, or on one of the executor's GPUs.
            outputs_scalar: their element type, read with an arena.
            stats: overwritten with what the step reports.

        Returns:
            One row a bag, as bags first appear, from the weights before the update; None without an arena.

        Raises:
            ValueError: an argument is wrong; the error names field, item and value, and nothing has run.
            FloatingPointError: a loss or the gradient is not finite; no weight was changed.
            MemoryError: the arena has no room for the rows.
            DeviceError: a GPU failed; where weights may have begun to change, the run neither steps nor saves again.
        """
        return StepCall(
            self, modalities, contents, bags=bags, temperature_groups=temperature_groups, sides=sides, choices=choices,
            choice_targets=choice_targets, relations=relations, arena=arena, outputs_scalar=outputs_scalar, stats=stats,
        )()

    def save(self, path: _PathLike, /, *, progress: _Progress | None = None, progress_steps: int = 0) -> None:
        """Writes the weights and the step as a checkpoint.

        It is written beside `path`, which it then replaces at once: a crash leaves the old file whole. A killed process
        leaves a hidden file there, which the next save of the same path on the same host removes.

        Args:
            path: the file.
            progress: called with (done, total) tensors; False cancels, and the old file stays.
            progress_steps: calls it once in so many tensors; 0 is 1.

        Raises:
            OSError: the file cannot be written; the old one stays.
            FloatingPointError: a weight or moment is not finite, which no run could resume; the old file stays.
            DeviceError: a GPU failed, now or in a call that may have begun to change weights; the old file stays.
        """
        return SaveCall(self, path, progress=progress, progress_steps=progress_steps)()

    def describe(self) -> dict[str, Any]:
        """The run's derived configuration, its parameters' names and shapes, and the bytes planned a device."""
        cdef uform_trainer_t* handle = self.enter()
        cdef char* text = NULL
        try:
            with nogil:
                check(uform_trainer_describe(handle, &text))
            return with_members(json.loads(text))
        finally:
            uform_string_free(text)
            self.leave()

    def read(self, name: str, what: str = "parameter") -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
        """Copies a parameter, or what training keeps beside it.

        Args:
            name: as `describe()["parameters"]` has it.
            what: "parameter", "gradient" (the last step's), "moment1" or "moment2".

        Returns:
            float32, shaped as `describe()` says.
        """
        shape = self._shape_of(name)
        if as_str(what, "what") not in _READABLE:
            raise ValueError(f"what is {shown(what)}: expected one of {', '.join(_READABLE)}")
        array = np.empty(shape, np.float32)
        cdef View view = View.borrow(array.reshape(-1))
        cdef bytes spelled = name.encode()
        cdef const char* parameter = spelled
        cdef int32_t kind = _READABLE.index(what)
        cdef uform_trainer_t* handle = self.enter()
        try:
            with nogil:
                check(uform_trainer_read(handle, parameter, kind, <float*>view.c.buf, view.c.shape[0]))
        finally:
            self.leave()
        return array

    def write(self, name: str, array: Buffer) -> None:
        """Overwrites a parameter on every device.

        An infinity and a NaN are written as they are where the parameter has no bounds, as what a run that went wrong
        may hold: a step whose loss or gradient they make so raises FloatingPointError, and no run saves them.

        Args:
            name: as `describe()["parameters"]` has it.
            array: real numbers of the parameter's shape, which are written as float32.

        Raises:
            TypeError: the array holds no real numbers: booleans, complex numbers, texts, objects.
            ValueError: there is no such parameter, the shape is another, float32 does not hold a finite number, or a
                value is a NaN or lies beyond the bounds, where every update keeps some (an inverse temperature's, say).
            DeviceError: a GPU failed, which ends the run.
        """
        shape = self._shape_of(name)
        values = as_array(array, "array", "an array of real numbers")
        if values.dtype.kind not in "fiu":
            raise TypeError(f"array is of type {type(array).__name__} and dtype {values.dtype}: expected real numbers")
        if values.shape != shape:
            raise ValueError(f"array has the shape {values.shape}: {name} has {shape}")
        cdef View view = View.borrow(as_float32(values, "array").reshape(-1))
        cdef bytes spelled = name.encode()
        cdef const char* parameter = spelled
        cdef uform_trainer_t* handle = self.enter()
        try:
            with nogil:
                check(uform_trainer_write(handle, parameter, <const float*>view.c.buf, view.c.shape[0]))
        finally:
            self.leave()

    def _counters(self) -> dict[str, float]:
        """What the run and its executor have done so far, once all steps are final: for tests and benchmarks."""
        cdef uform_trainer_counters_t counted
        cdef uform_trainer_t* handle = self.enter()
        try:
            with nogil:
                check(uform_trainer_counters(handle, &counted))
        finally:
            self.leave()
        return counted

    def close(self) -> None:
        """Frees the run's memory now rather than with the last reference; verbs raise ValueError from here on.

        As any verb, it comes after all that was submitted before: what is not wanted any more is cancelled first.
        """
        cdef uform_trainer_t* handle
        if self.handle == NULL:
            return
        self.executor.enter()
        handle, self.handle = self.handle, NULL
        try:
            with nogil:
                uform_trainer_free(handle)
        finally:
            self.leave()

    def __repr__(self) -> str:
        if self.executor is None:
            return "<Trainer not initialised>"
        return f"<Trainer {'closed' if self.handle == NULL else f'hidden={self.hidden}'} on {self.executor!r}>"

    def _shape_of(self, name: str) -> tuple[int, ...]:
        self.check_made()
        shape = self.parameters.get(as_str(name, "name"))
        if shape is None:
            raise ValueError(f"name is {shown(name)}: the run has no such parameter")
        return shape

    cdef int check_made(self) except -1:
        if self.executor is None:
            raise ValueError("the trainer is not initialised: use Trainer.init_vram() or Trainer.init_ram()")
        return 0

    cdef int check_open(self) except -1:
        self.check_made()
        if self.handle == NULL:
            raise ValueError("the trainer is closed")
        return 0

    cdef uform_trainer_t* enter(self) except NULL:
        """Begins a call; `leave` ends it."""
        self.check_made()
        self.executor.enter()
        if self.handle == NULL:
            self.leave()
            raise ValueError("the trainer is closed")
        return self.handle

    cdef int leave(self) except -1:
        return self.executor.leave()


cdef int _check_place(object executor, object mesh) except -1:
    if not isinstance(executor, Executor):
        raise TypeError(f"executor is of type {type(executor).__name__}: expected an Executor")
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"mesh is of type {type(mesh).__name__}: expected a Mesh, or None")
    if mesh is not None and mesh.executor is not executor:
        raise ValueError("mesh was bootstrapped on another executor than the trainer's")
    return 0


cdef dict _plan(int kind, object executor, object mesh, dict given):
    _check_place(executor, mesh)
    cdef TrainerOptions options = as_trainer_options(given)
    cdef Executor devices = executor
    cdef char* text = NULL
    devices.open()
    try:
        with nogil:
            if kind == uform_executor_kind_ram_k:
                check(uform_trainer_plan_ram(devices.handle, &options.c, &text))
            else:
                check(uform_trainer_plan_vram(devices.handle, &options.c, &text))
        return json.loads(text)
    finally:
        uform_string_free(text)


cdef Trainer _make(int kind, object executor, object mesh, dict given):
    _check_place(executor, mesh)
    cdef Trainer made = Trainer.__new__(Trainer)
    cdef TrainerOptions options = as_trainer_options(given)
    cdef Executor devices = executor
    cdef uform_status_t status
    devices.open()
    devices.enter()
    before = None
    try:
        before = begin_holding()
        with nogil:
            if kind == uform_executor_kind_ram_k:
                status = uform_trainer_init_ram(devices.handle, &options.c, &made.handle)
            else:
                status = uform_trainer_init_vram(devices.handle, &options.c, &made.handle)
        options.progress.finish(status)
    finally:
        devices.leave()
        made.objectives = end_holding(before)
    made.executor = devices
    made.mesh = mesh
    description = made.describe()
    made.hidden = description["hidden"]
    made.shapes = description["batch"]
    made.parameters = {entry["name"]: tuple(entry["shape"]) for entry in description["parameters"]}
    made.makes_choices = "choices" in description
    _LOG.info("a run of %d parameters and %d bytes a device on %r, %s", description["parameter_count"],
              description["planned_bytes_per_device"]["total"], devices,
              "from its beginning" if given["resume"] is None else f"resumed at step {description['step']}")
    return made


cdef ChoiceTexts _choices_of(Trainer trainer, object choices, object targets, size_t count):
    cdef ChoiceTexts taken = parse_choices(choices, targets, count)
    if taken is not None and not trainer.makes_choices:
        raise ValueError(f"choices is of type {type(choices).__name__}: expected None, since the run makes none; a "
                         "Trainer takes Choices as `choices`")
    return taken


cdef class StepCall:

    def __init__(
        self,
        Trainer trainer not None,
        modalities,
        contents,
        /,
        *,
        bags=None,
        temperature_groups=None,
        sides=None,
        choices=None,
        choice_targets=None,
        relations=None,
        arena=None,
        outputs_scalar=Scalar.FLOAT32,
        stats=None,
    ) -> None:
        cdef Items items
        cdef Vector groups = None, taken = None
        self._release()
        trainer.check_open()
        if stats is not None and not isinstance(stats, TrainerStepStats):
            raise TypeError(f"stats is of type {type(stats).__name__}: expected TrainerStepStats, or None")
        scalar = as_enum(Scalar, outputs_scalar, "outputs_scalar")
        place = as_arena(arena, trainer.executor)
        items = parse_items(modalities, contents, bags, trainer.shapes)
        self.c.items = items.c
        if temperature_groups is not None:
            groups = words(temperature_groups, items.c.count, "temperature_groups")
            self.c.temperature_groups = <const uint32_t*>groups.data
        if sides is not None:
            taken = flags(sides, items.c.count, LateInteractionSide, "sides")
            self.c.sides = <const uint8_t*>taken.data
        self.choices = _choices_of(trainer, choices, choice_targets, items.c.count)
        if self.choices is not None:
            self.c.choices = &self.choices.c
        edges = take_relations(relations, &self.c.relations)
        self.keepers = groups, taken, edges
        if place is not None:
            self.rows = make_rows(place, &items.c, trainer.hidden, scalar, &self.c.output)
        self.trainer = trainer
        self.stats = stats
        self.items = items  # last: it tells that the call is prepared

    def __dealloc__(self):
        with nogil:
            uform_pending_free(self.pending)

    def __call__(self) -> ArenaBuffer | None:
        cdef uform_trainer_step_stats_t reported
        cdef uform_trainer_step_stats_t* reports = &reported if self.stats is not None else NULL
        cdef uform_trainer_t* handle
        self._check_ready()
        try:
            handle = self.trainer.enter()
            try:
                with nogil:
                    check(uform_trainer_step(handle, &self.c, reports))
                if reports != NULL:
                    self.stats.take(reports)
            finally:
                self.trainer.leave()
            return None if self.rows is None else self.rows.keep()
        finally:
            self._release()

    def begin(self) -> None:
        """Puts the step on its way; where several executors have put too many on theirs, makes it whole."""
        cdef uform_trainer_t* handle
        self._check_ready()
        if self.trainer.begun >= MOST_BEGUN:
            self.answer = self()
            self.ended = True
            return
        try:
            handle = self.trainer.enter()
            try:
                with nogil:
                    check(uform_trainer_submit(handle, &self.c, &self.pending))
                self.trainer.begun += 1
            finally:
                self.trainer.leave()
        except BaseException:
            self._release()
            raise

    def finish(self) -> ArenaBuffer | None:
        """Waits for the step that has begun; other calls may go on meanwhile."""
        cdef uform_trainer_step_stats_t reported
        cdef uform_trainer_step_stats_t* reports = &reported if self.stats is not None else NULL
        if self.ended:
            answer, self.answer, self.ended = self.answer, None, False
            return answer
        if self.pending == NULL:
            raise ValueError("the step has not begun")
        try:
            with nogil:
                check(uform_pending_wait(self.pending, reports))
            if reports != NULL:
                self.stats.take(reports)
            return None if self.rows is None else self.rows.keep()
        finally:
            self._release()

    def _check_ready(self) -> None:
        if self.items is None or self.pending != NULL:
            raise ValueError("the call was not prepared, or has run")

    def _release(self) -> None:
        """Lets go of all that was borrowed: the step is final."""
        cdef uform_pending_t* pending = self.pending
        self.pending = NULL
        if pending != NULL:
            with nogil:
                uform_pending_free(pending)
            self.trainer.begun -= 1
        if self.rows is not None:
            self.rows.release()
        memset(&self.c, 0, sizeof(self.c))
        self.items = None
        self.choices = None
        self.keepers = None
        self.rows = None
        self.stats = None


cdef class SaveCall:

    def __init__(self, Trainer trainer not None, path, /, *, progress=None, progress_steps=0) -> None:
        trainer.check_open()
        # Absolute: a call that is deferred writes where its path led when it was made.
        self.path = os.path.join(os.getcwdb(), as_path(path, "path"))
        self.progress = as_progress(progress, progress_steps)
        self.trainer = trainer

    def __call__(self) -> None:
        cdef const char* path
        cdef uform_status_t status
        if self.trainer is None:
            raise ValueError("the call was not prepared")
        path = self.path
        cdef uform_trainer_t* handle = self.trainer.enter()
        try:
            with nogil:
                status = uform_trainer_save(handle, path, self.progress.function, <void*>self.progress,
                                            self.progress.steps)
            self.progress.finish(status)
        finally:
            self.trainer.leave()
        _LOG.info("saved %s", os.fsdecode(self.path))
