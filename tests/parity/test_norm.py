"""RMSNorm with a gain after the last block."""

from __future__ import annotations

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import grad

from tests.oracle import encoder
from tests.parity.harness import GRADIENTS, LAYOUTS, VALUES, Layout, Memory, Piece, assert_close, run_on_threads


@pytest.mark.parametrize("pieces", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("hidden", [64, 67])
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e3])
def test_norm(pieces: tuple[Piece, ...], hidden: int, scale: float) -> None:
    rng = np.random.default_rng(5)
    columns = sum(piece.columns for piece in pieces)
    x = (scale * rng.normal(size=(columns, hidden))).astype(np.float32)
    gain = rng.normal(1, 0.3, hidden).astype(np.float32)
    upstream = rng.normal(size=(columns, hidden)).astype(np.float32)
    start = rng.normal(size=hidden).astype(np.float32)

    def case(operations):
        memory = Memory()
        layout = Layout(memory, pieces)
        layout.expand(operations)
        output = memory.output((layout.capacity, hidden))
        gradient = memory.holding(upstream, capacity=layout.capacity)
        gain_gradient = memory.holding(start)
        common = {
            "hidden": hidden,
            "gain": memory.input(gain),
            "input": memory.input(x, capacity=layout.capacity),
            "inverse_rms": memory.output(layout.capacity),
            "workspace": memory.workspace(operations.sizes("norm_workspace_bytes", hidden, layout.capacity)),
        }
        operations.norm("forward", layout.fields, output=output, **common)
        operations.norm("backward", layout.fields, gradient=gradient, gain_gradient=gain_gradient, **common)
        memory.check()
        return {"output": output[:columns], "gradient": gradient[:columns], "gain": gain_gradient}

    result = run_on_threads(case)
    exact = (x.astype(np.float64), gain.astype(np.float64))
    assert_close(result["output"], encoder.rms_norm(*exact), VALUES, "output")
    x_gradient, gain_gradient = grad(lambda v: anp.sum(encoder.rms_norm(*v) * upstream.astype(np.float64)))(exact)
    assert_close(result["gradient"], x_gradient, GRADIENTS, "input")
    assert_close(result["gain"], start + gain_gradient, GRADIENTS, "gain")
