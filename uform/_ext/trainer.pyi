from collections.abc import Mapping, Sequence
from typing import Any, Never, final

import numpy

from uform._ext.arena import Arena, ArenaBuffer
from uform._ext.config import (
    BatchShape,
    Choices,
    Contrastive,
    LateInteraction,
    Masking,
    Optimizer,
    Schedule,
)
from uform._ext.deferred import DeferredOn, On, Receiver
from uform._ext.enums import LateInteractionSide, Modality, Objective, Scalar
from uform._ext.executor import Executor
from uform._ext.mesh import Mesh
from uform._ext.relations import Relations
from uform._ext.stats import TrainerStepStats
from uform._types import Buffer, _PathLike, _Progress, _Tape, _Texts, _Words

@final
class Trainer(Receiver):
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def mesh(self) -> Mesh | None: ...
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
        objective: Objective = ...,
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
    ) -> Trainer: ...
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
        objective: Objective = ...,
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
    ) -> Trainer: ...
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
        objective: Objective = ...,
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
    ) -> dict[str, Any]: ...
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
        objective: Objective = ...,
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
    ) -> dict[str, Any]: ...
    def on(self, executor: Executor, /) -> On[Trainer]: ...
    def deferred(self, executor: Executor, /) -> DeferredOn[Trainer]: ...
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
        outputs_scalar: Scalar = ...,
        stats: TrainerStepStats | None = None,
    ) -> ArenaBuffer | None: ...
    def save(self, path: _PathLike, /, *, progress: _Progress | None = None, progress_steps: int = 0) -> None: ...
    def describe(self) -> dict[str, Any]: ...
    def read(self, name: str, what: str = "parameter") -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]: ...
    def write(self, name: str, array: Buffer) -> None: ...
    def _counters(self) -> dict[str, float]: ...
    def close(self) -> None: ...
    def _shape_of(self, name: str) -> tuple[int, ...]: ...

class StepCall:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> ArenaBuffer | None: ...
    def begin(self) -> None: ...
    def finish(self) -> ArenaBuffer | None: ...
    def _check_ready(self) -> None: ...
    def _release(self) -> None: ...

class SaveCall:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> None: ...
