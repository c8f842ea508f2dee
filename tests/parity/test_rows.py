"""Rows of the hidden states by index, and their gradients back."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parity.harness import Memory, run_on_threads


@pytest.mark.parametrize("count", [0, 1, 131])
@pytest.mark.parametrize("accumulate", [0, 1])
def test_rows(count: int, accumulate: int) -> None:
    rng = np.random.default_rng(7)
    hidden, columns, active = 67, 301, 290
    states = rng.normal(size=(columns, hidden)).astype(np.float32)
    indices = rng.permutation(280)[:count]
    upstream = rng.normal(size=(count, hidden)).astype(np.float32)
    start = rng.normal(size=(columns, hidden)).astype(np.float32)

    def case(operations):
        memory = Memory()
        capacity = count + 9
        rows = memory.output((capacity, hidden))
        gradient = memory.holding(start)
        common = {
            "hidden": hidden,
            "capacity": capacity,
            "active": count + 2,
            "count": memory.input([count], np.uint32),
            "indices": memory.input(indices, np.uint32, capacity=capacity),
            "columns_active": active,
        }
        operations.rows("gather", states=memory.input(states), rows=rows, **common)
        operations.rows(
            "scatter",
            rows_gradient=memory.input(upstream, capacity=capacity),
            gradient=gradient,
            accumulate=accumulate,
            **common,
        )
        memory.check()
        return {"rows": rows[:count], "gradient": gradient}

    result = run_on_threads(case)
    assert np.array_equal(result["rows"], states[indices])
    expected = start.copy()
    if not accumulate:
        expected[:active] = 0
    expected[indices] += upstream
    assert np.array_equal(result["gradient"], expected)
