"""Columns expanded from segments: which segment each is of, and where it lies on the axes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracle import rotary
from tests.parity.harness import LAYOUTS, Layout, Memory, Piece, run_on_threads


@pytest.mark.parametrize("pieces", LAYOUTS.values(), ids=LAYOUTS)
def test_columns_expand(pieces: tuple[Piece, ...]) -> None:
    def case(operations):
        memory = Memory()
        layout = Layout(memory, pieces)
        layout.expand(operations)
        memory.check()
        return {"segment_of": layout.segment_of[: layout.count], "positions": layout.positions[: layout.count]}

    result = run_on_threads(case)
    expected_segments = np.repeat(np.arange(len(pieces)), [piece.columns for piece in pieces])
    assert np.array_equal(result["segment_of"], expected_segments)
    expected_positions = []
    for piece in pieces:
        own = rotary.positions(piece.positions_grid)
        expected_positions.append(np.pad(own, ((0, 0), (0, 3 - own.shape[1]))))
    assert np.array_equal(result["positions"], np.concatenate(expected_positions))
