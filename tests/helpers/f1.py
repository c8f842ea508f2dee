"""F1 of the cases: four anchors and four candidates in the plane, whose losses are known to six digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import uform
from tests.helpers.calls import relate
from tests.helpers.runs import ram
from tests.oracle.relations import ItemEdges
from uform import AmbientScope, Contrastive, Negatives, PairLossForm

PAIRED: ItemEdges = tuple((row, row + 4, 1.0) for row in range(4))
OTHERS: ItemEdges = tuple((row, 4 + other, 1.0) for row in range(4) for other in range(4) if other != row)
ROWS = [0.063370, 1.099458, 0.763087, 0.202666]
MEAN = 0.532145
DIGITS = 1.5e-6  # of six given ones, and float32

# The two that the numbers were computed for, under which F1 reads the same.
SOFTMAX_FORMS = [PairLossForm.BALANCED, PairLossForm.RANKED]
FORMS = [*SOFTMAX_FORMS, PairLossForm.SIGMOID]


def vectors() -> npt.NDArray[np.float32]:
    """Anchors at 0, 30, 60, 90 degrees, then their candidates at 10, 50, 50, 100."""
    turns = np.radians([0, 30, 60, 90, 10, 50, 50, 100])
    return np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


def loss(
    *,
    attract: ItemEdges = PAIRED,
    repel: ItemEdges = (),
    ignore: ItemEdges = (),
    embeddings: npt.NDArray[np.float32] | None = None,
    **fields: Any,
) -> uform.losses.PairLoss:
    """The contrastive loss of F1; fields override its temperature and scope."""
    given = vectors() if embeddings is None else embeddings
    scope = AmbientScope.EVERY if fields.get("negatives") == Negatives.NAMED else AmbientScope.TARGETS
    settings: dict[str, Any] = {"inverse_temperature": 10.0, "ambient_scope": scope, **fields}
    return uform.losses.contrastive(
        ram(),
        given,
        relations=relate(len(given), attract=attract, repel=repel, ignore=ignore) or uform.Relations(),
        contrastive=Contrastive(**settings),
    )
