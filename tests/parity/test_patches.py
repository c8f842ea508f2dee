"""The linear map of raw values into columns, of every element type."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parity.harness import (
    CODE_VALUES,
    GRADIENTS,
    VALUES,
    Layout,
    Memory,
    Piece,
    assert_close,
    blas_path,
    run_on_threads,
)

ELEMENTS = {"uint8": (0, 1 / 127.5, -1.0), "int16": (1, 1 / 32768, 0.0), "float32": (2, 1.0, 0.25)}


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(("hidden", "width", "grid"), [(64, 1, (1, 1)), (65, 27, (3, 5)), (96, 48, (17, 19))])
@pytest.mark.parametrize("blas", ["plain", "openblas"])
def test_patches(element: str, hidden: int, width: int, grid: tuple[int, int], blas: str) -> None:
    rng = np.random.default_rng(2)
    code, multiplier, offset = ELEMENTS[element]
    pieces = (Piece((4,), bag=0), Piece(grid, modality=1, bag=1), Piece(grid, modality=1, bag=0))
    count = 2 * pieces[1].content
    kind = np.dtype(element)
    if kind.kind == "f":
        values = rng.normal(size=(count, width)).astype(kind)
    else:
        limits = np.iinfo(kind)
        values = rng.integers(limits.min, limits.max + 1, (count, width)).astype(kind)
    firsts = np.cumsum([0, *(piece.columns for piece in pieces)])
    place = np.concatenate([firsts[1] + 1 + np.arange(count // 2), firsts[2] + 1 + np.arange(count // 2)])
    codes = np.zeros(firsts[-1], np.uint16)
    codes[place] = CODE_VALUES
    codes[place[rng.random(count) < 0.4]] = 1
    shown = codes[place] == CODE_VALUES
    weight = rng.normal(size=(hidden, width)).astype(np.float32)
    before = rng.normal(size=(firsts[-1], hidden)).astype(np.float32)
    upstream = rng.normal(size=(firsts[-1], hidden)).astype(np.float32)
    start = rng.normal(size=(hidden, width)).astype(np.float32)

    def case(operations):
        memory = Memory()
        layout = Layout(memory, pieces, codes)
        layout.expand(operations)
        states = memory.holding(before, capacity=layout.capacity)
        weight_gradient = memory.holding(start)
        capacity = count + 7
        common = {
            "hidden": hidden,
            "width": width,
            "element": code,
            "multiplier": multiplier,
            "offset": offset,
            "capacity": capacity,
            "active": count + 3,
            "count": memory.input([count], np.uint32),
            "values": memory.input(values, kind, capacity=capacity),
            "patch_columns": memory.input(place, np.uint32, capacity=capacity),
            "weight": memory.input(weight),
            "workspace": memory.workspace(operations.sizes("patches_workspace_bytes", hidden, width, capacity)),
        }
        operations.patches("forward", layout.fields, states=states, **common)
        gradient = memory.input(upstream, capacity=layout.capacity)
        operations.patches("backward", layout.fields, gradient=gradient, weight_gradient=weight_gradient, **common)
        memory.check()
        return {"states": states[: layout.count], "weight_gradient": weight_gradient}

    result = run_on_threads(case, blas=blas_path() if blas == "openblas" else None)
    exact = values.astype(np.float64) * multiplier + offset
    expected = before.astype(np.float64)
    expected[place[shown]] = exact[shown] @ weight.astype(np.float64).T
    assert_close(result["states"], expected, VALUES, "states")
    gradient = upstream[place[shown]].astype(np.float64).T @ exact[shown]
    assert_close(result["weight_gradient"], start + gradient, GRADIENTS, "weight_gradient")
