from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from uform._ext.config import Contrastive
from uform._ext.enums import LateInteractionSide, Modality
from uform._ext.executor import Executor
from uform._ext.relations import Relations
from uform._types import Buffer, _Words

class PairLoss(NamedTuple):
    loss: float
    gradient: numpy.ndarray[Any, numpy.dtype[numpy.float32]]
    log_inverse_temperature_gradient: numpy.ndarray[Any, numpy.dtype[numpy.float32]]
    bias_gradient: numpy.ndarray[Any, numpy.dtype[numpy.float32]]
    row_losses: numpy.ndarray[Any, numpy.dtype[numpy.float32]]
    rows: numpy.ndarray[Any, numpy.dtype[numpy.uint32]]

class MaskedLoss(NamedTuple):
    loss: float
    gradient: numpy.ndarray[Any, numpy.dtype[numpy.float32]]

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
def masked_bytes(executor: Executor, logits: Buffer, targets: Buffer, /) -> MaskedLoss: ...
