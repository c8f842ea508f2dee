from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, overload

import numpy
from typing_extensions import TypeVar

from uform._ext.arena import ArenaBuffer
from uform._ext.config import Contrastive, LateInteraction
from uform._ext.enums import LateInteractionSide, Modality
from uform._ext.executor import Executor
from uform._ext.relations import Relations
from uform._types import Buffer, SupportsDLPack, _Words

# Arrays of NumPy in RAM, buffers on a GPU; where an arena's buffer lies its type does not tell.
_ArrayT = TypeVar("_ArrayT", default=numpy.ndarray[Any, numpy.dtype[numpy.float32]])

class PairLoss(NamedTuple, Generic[_ArrayT]):
    loss: float
    gradient: _ArrayT
    log_inverse_temperature_gradient: _ArrayT
    bias_gradient: _ArrayT
    row_losses: _ArrayT
    rows: numpy.ndarray[Any, numpy.dtype[numpy.uint32]]

class MaskedLoss(NamedTuple, Generic[_ArrayT]):
    loss: float
    gradient: _ArrayT

@overload
def contrastive(
    executor: Executor,
    embeddings: ArenaBuffer,
    /,
    *,
    relations: Relations | None,
    contrastive: Contrastive | None = None,
    modalities: Sequence[Modality] | None = None,
    sides: Sequence[LateInteractionSide] | None = None,
    temperature_groups: _Words | None = None,
) -> Any: ...
@overload
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
) -> PairLoss: ...
@overload
def contrastive(
    executor: Executor,
    embeddings: SupportsDLPack,
    /,
    *,
    relations: Relations | None,
    contrastive: Contrastive | None = None,
    modalities: Sequence[Modality] | None = None,
    sides: Sequence[LateInteractionSide] | None = None,
    temperature_groups: _Words | None = None,
) -> PairLoss[ArenaBuffer]: ...
@overload
def late_interaction(
    executor: Executor,
    tokens: ArenaBuffer,
    offsets: Buffer,
    /,
    *,
    sides: Sequence[LateInteractionSide],
    relations: Relations | None,
    late_interaction: LateInteraction | None = None,
    contrastive: Contrastive | None = None,
    modalities: Sequence[Modality] | None = None,
) -> Any: ...
@overload
def late_interaction(
    executor: Executor,
    tokens: Buffer,
    offsets: Buffer,
    /,
    *,
    sides: Sequence[LateInteractionSide],
    relations: Relations | None,
    late_interaction: LateInteraction | None = None,
    contrastive: Contrastive | None = None,
    modalities: Sequence[Modality] | None = None,
) -> PairLoss: ...
@overload
def late_interaction(
    executor: Executor,
    tokens: SupportsDLPack,
    offsets: Buffer,
    /,
    *,
    sides: Sequence[LateInteractionSide],
    relations: Relations | None,
    late_interaction: LateInteraction | None = None,
    contrastive: Contrastive | None = None,
    modalities: Sequence[Modality] | None = None,
) -> PairLoss[ArenaBuffer]: ...
@overload
def masked_bytes(executor: Executor, logits: ArenaBuffer, targets: Buffer | SupportsDLPack, /) -> Any: ...
@overload
def masked_bytes(executor: Executor, logits: Buffer, targets: Buffer, /) -> MaskedLoss: ...
@overload
def masked_bytes(executor: Executor, logits: SupportsDLPack, targets: SupportsDLPack, /) -> MaskedLoss[ArenaBuffer]: ...

class Matrix: ...
class Bytes: ...
class Results: ...
