"""Bags pooled from their segments' columns, scaled to unit length."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import grad

from tests.oracle.numeric import unit
from tests.parity.harness import GRADIENTS, LAYOUTS, VALUES, Layout, Memory, Piece, assert_close, run_on_threads


def pool(states, pieces, bags):
    """`[bags, hidden]` of the columns that count, which are the marker and the content."""
    firsts = np.cumsum([0, *(piece.columns for piece in pieces)])
    pooled = []
    for bag in range(bags):
        own = [
            states[first : first + 1 + piece.content]
            for first, piece in zip(firsts, pieces, strict=False)
            if piece.bag == bag
        ]
        pooled.append(unit(anp.mean(anp.concatenate(own), axis=0)))
    return anp.array(pooled)


@pytest.mark.parametrize("pieces", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("hidden", [64, 67])
@pytest.mark.parametrize("accumulate", [0, 1])
def test_pool(pieces: tuple[Piece, ...], hidden: int, accumulate: int) -> None:
    rng = np.random.default_rng(6)
    columns = sum(piece.columns for piece in pieces)
    states = rng.normal(size=(columns, hidden)).astype(np.float32)
    bags = 1 + max(piece.bag for piece in pieces)
    upstream = rng.normal(size=(bags, hidden)).astype(np.float32)
    start = rng.normal(size=(columns, hidden)).astype(np.float32)

    def case(operations):
        memory = Memory()
        layout = Layout(memory, pieces)
        layout.expand(operations)
        pooled = memory.output((layout.bags_capacity, hidden))
        gradient = memory.holding(start, capacity=layout.capacity)
        common: dict[str, Any] = {
            "hidden": hidden,
            "hidden_states": memory.input(states, capacity=layout.capacity),
            "pooled": pooled,
            "lengths": memory.output(layout.bags_capacity),
            "bag_columns": memory.output(layout.bags_capacity, np.uint32),
            "workspace": memory.workspace(operations.sizes("pool_workspace_bytes", hidden, layout.bags_capacity)),
        }
        operations.pool("forward", layout.fields, **common)
        operations.pool(
            "backward",
            layout.fields,
            pooled_gradient=memory.input(upstream, capacity=layout.bags_capacity),
            gradient=gradient,
            accumulate=accumulate,
            **common,
        )
        memory.check()
        return {"pooled": pooled, "gradient": gradient[:columns], "bag_columns": common["bag_columns"][:bags]}

    result = run_on_threads(case)
    exact = states.astype(np.float64)
    assert_close(result["pooled"][:bags], pool(exact, pieces, bags), VALUES, "pooled")
    assert not np.any(result["pooled"][bags:]), "rows past the count are zero"
    expected_columns = np.bincount([p.bag for p in pieces], [1 + p.content for p in pieces], bags)
    assert np.array_equal(result["bag_columns"], expected_columns)
    gradient = grad(lambda v: anp.sum(pool(v, pieces, bags) * upstream.astype(np.float64)))(exact)
    assert_close(result["gradient"], gradient + accumulate * start, GRADIENTS, "gradient")


def test_pool_NUM_07_of_zero_states_is_zero_and_finite() -> None:
    pieces = (Piece((3,)),)

    def case(operations):
        memory = Memory()
        layout = Layout(memory, pieces)
        layout.expand(operations)
        pooled = memory.output((layout.bags_capacity, 64))
        gradient = memory.output((layout.capacity, 64))
        common: dict[str, Any] = {
            "hidden": 64,
            "hidden_states": memory.input(np.zeros((4, 64)), capacity=layout.capacity),
            "pooled": pooled,
            "lengths": memory.output(layout.bags_capacity),
            "bag_columns": memory.output(layout.bags_capacity, np.uint32),
            "workspace": memory.workspace(operations.sizes("pool_workspace_bytes", 64, layout.bags_capacity)),
        }
        upstream = memory.input(np.ones((1, 64)), capacity=layout.bags_capacity)
        operations.pool("forward", layout.fields, **common)
        operations.pool("backward", layout.fields, pooled_gradient=upstream, gradient=gradient, **common)
        memory.check()
        return {"pooled": pooled, "gradient": gradient[:4]}

    result = run_on_threads(case)
    assert not np.any(result["pooled"])
    assert np.all(np.isfinite(result["gradient"]))
