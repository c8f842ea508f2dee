"""The operation behind choices, called with given hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.parity.harness import Memory

Array = npt.NDArray[Any]
BEFORE = 0.25  # in everything that is added to


def choices_head(
    operations: Any,
    states: Sequence[Array],
    vector: Array,
    *,
    log_inverse_temperature: float = 0.0,
    targets: Sequence[Array] | None = None,
    scale: float = 1.0,
    weight: float = 1.0,
    backward: bool = True,
) -> dict[str, Array]:
    """What the operation answers for items whose choices have `states` `[k, hidden]`, in memory with room to spare."""
    memory = Memory()
    counts = [len(state) for state in states]
    items, rows, hidden = len(states), sum(counts), len(vector)
    all_states = np.concatenate([np.zeros((0, hidden)), *states])
    result = {"probabilities": memory.output(rows + 6)}
    fields: dict[str, Any] = {}
    if targets is not None:
        result["loss"] = memory.holding([BEFORE], np.float64)
        fields = {
            "targets": memory.input(np.concatenate([np.zeros(0), *targets]), capacity=rows + 6),
            "scale": memory.input([scale]),
            "weight": memory.input([weight]),
        }
    if targets is not None and backward:
        result["rows_gradient"] = memory.output((rows + 6, hidden))
        result["vector_gradient"] = memory.holding(np.full(hidden, BEFORE))
        result["log_inverse_temperature_gradient"] = memory.holding([BEFORE])
    operations.choices_head(
        hidden=hidden,
        items_capacity=items + 3,
        items_active=items + 1,
        rows_capacity=rows + 6,
        rows_active=rows + 2,
        counts=memory.input([items, rows], np.uint32),
        offsets=memory.input(np.cumsum([0, *counts]), np.uint32, capacity=items + 4),
        rows=memory.input(all_states, capacity=rows + 6),
        vector=memory.input(vector),
        log_inverse_temperature=memory.input([log_inverse_temperature]),
        workspace=memory.workspace(operations.sizes("choices_head_workspace_bytes", hidden, items + 3, rows + 6)),
        **fields,
        **result,
    )
    memory.check()
    for name in ("probabilities", "rows_gradient"):
        if name in result:
            assert np.all(np.isnan(result[name][rows:])), f"{name}: written past the rows"
            result[name] = result[name][:rows]
    return result
