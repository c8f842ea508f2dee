"""Rows of a modality's table for the columns that have a code, and the table's gradient."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parity.harness import (
    CODE_VALUES,
    GRADIENTS,
    LAYOUTS,
    Layout,
    Memory,
    Piece,
    assert_close,
    run_on_threads,
)

HIDDEN = 65
TABLE_ROWS = 260


@pytest.mark.parametrize("pieces", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("modality", [0, 1])
def test_embedding(pieces: tuple[Piece, ...], modality: int) -> None:
    rng = np.random.default_rng(1)
    columns = sum(piece.columns for piece in pieces)
    codes = rng.integers(0, TABLE_ROWS, columns).astype(np.uint16)
    codes[rng.random(columns) < 0.3] = CODE_VALUES
    table = rng.normal(size=(TABLE_ROWS, HIDDEN)).astype(np.float32)
    upstream = rng.normal(size=(columns, HIDDEN)).astype(np.float32)
    start = rng.normal(size=(TABLE_ROWS, HIDDEN)).astype(np.float32)
    before = rng.normal(size=(columns, HIDDEN)).astype(np.float32)

    def case(operations):
        memory = Memory()
        layout = Layout(memory, pieces, codes)
        layout.expand(operations)
        states = memory.holding(before, capacity=layout.capacity)
        table_gradient = memory.holding(start)
        common = {
            "hidden": HIDDEN,
            "modality": modality,
            "table_rows": TABLE_ROWS,
            "table": memory.input(table),
            "workspace": memory.workspace(
                operations.sizes("embedding_workspace_bytes", HIDDEN, TABLE_ROWS, layout.capacity)
            ),
        }
        operations.embedding("forward", layout.fields, states=states, **common)
        operations.embedding(
            "backward",
            layout.fields,
            gradient=memory.input(upstream, capacity=layout.capacity),
            table_gradient=table_gradient,
            **common,
        )
        memory.check()
        return {"states": states[: layout.count], "table_gradient": table_gradient}

    result = run_on_threads(case)
    own = np.repeat([piece.modality == modality for piece in pieces], [piece.columns for piece in pieces])
    own &= codes != CODE_VALUES
    expected = before.copy()
    expected[own] = table[codes[own]]
    assert np.array_equal(result["states"], expected), "columns of others are left alone"
    exact = np.zeros((TABLE_ROWS, HIDDEN))
    np.add.at(exact, codes[own], upstream[own].astype(np.float64))
    assert_close(result["table_gradient"], start + exact, GRADIENTS, "table_gradient")
