"""The encoder's block and its backward: norms, QKV, rotary positions, attention within a segment, GeGLU."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import grad

from tests.oracle import encoder, rotary
from tests.oracle.parameters import inner_width
from tests.parity.harness import (
    GRADIENTS,
    LAYOUTS,
    VALUES,
    Layout,
    Memory,
    Piece,
    assert_close,
    blas_path,
    run_on_threads,
)

WEIGHTS = ("norm1", "qkv", "out", "norm2", "up", "down")


def make_weights(rng: np.random.Generator, hidden: int, inner: int) -> dict[str, np.ndarray]:
    """Large enough that attention is far from even and GeGLU far from linear."""
    deviation = 1.5 / np.sqrt(hidden)
    shapes = {
        "norm1": (hidden,),
        "qkv": (3 * hidden, hidden),
        "out": (hidden, hidden),
        "norm2": (hidden,),
        "up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    weights = {name: rng.normal(0, deviation, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in ("norm1", "norm2"):
        weights[name] += 1
    return weights


def block(x, weights, layout_pieces):
    """The block over all segments, one after another."""
    outputs, first = [], 0
    for piece in layout_pieces:
        own = x[first : first + piece.columns]
        turn = rotary.angles(piece.positions_grid)
        qkv = anp.dot(encoder.rms_norm(own, weights["norm1"]), weights["qkv"].T)
        own = own + anp.dot(encoder.attend(qkv, turn), weights["out"].T)
        own = own + encoder.feed_forward(encoder.rms_norm(own, weights["norm2"]), weights["up"], weights["down"])
        outputs.append(own)
        first += piece.columns
    return anp.concatenate(outputs)


@pytest.mark.parametrize("pieces", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("hidden", "blas"), [(64, "plain"), (128, "openblas")])
def test_block(pieces: tuple[Piece, ...], hidden: int, blas: str) -> None:
    rng = np.random.default_rng(3)
    inner = inner_width(hidden)
    weights = make_weights(rng, hidden, inner)
    columns = sum(piece.columns for piece in pieces)
    x = rng.normal(size=(columns, hidden)).astype(np.float32)
    upstream = rng.normal(size=(columns, hidden)).astype(np.float32)
    starts = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in weights.items()}

    def case(operations):
        memory = Memory()
        layout = Layout(memory, pieces)
        layout.expand(operations)
        extents = (1, hidden, inner, hidden // 64)
        output = memory.output((layout.capacity, hidden))
        gradient = memory.holding(upstream, capacity=layout.capacity)
        gradients = {f"{name}_gradient": memory.holding(value) for name, value in starts.items()}
        arguments: dict[str, Any] = {
            "extents": extents,
            "input": memory.input(x, capacity=layout.capacity),
            "output": output,
            "gradient": gradient,
            "saved": memory.workspace(operations.sizes("layer_saved_bytes", *extents, layout.capacity)),
            "workspace": memory.workspace(
                operations.sizes("layer_workspace_bytes", *extents, layout.capacity, len(pieces) + 2)
            ),
            **{name: memory.input(value) for name, value in weights.items()},
            **gradients,
        }
        operations.layer("forward", layout.fields, **arguments)
        arguments["workspace"][:] = 0xFF  # nothing in it outlives the block's forward
        operations.layer("backward", layout.fields, **arguments)
        memory.check()
        return {"output": output[:columns], "gradient": gradient[:columns], **gradients}

    result = run_on_threads(case, blas=blas_path() if blas == "openblas" else None)
    exact = {name: value.astype(np.float64) for name, value in weights.items()}
    exact_x, exact_upstream = x.astype(np.float64), upstream.astype(np.float64)
    assert_close(result["output"], block(exact_x, exact, pieces), VALUES, "output")
    x_gradient, weight_gradients = grad(
        lambda variables: anp.sum(block(variables[0], variables[1], pieces) * exact_upstream)
    )((exact_x, exact))
    assert_close(result["gradient"], x_gradient, GRADIENTS, "input")
    for name in WEIGHTS:
        added = result[f"{name}_gradient"].astype(np.float64) - starts[name]
        assert_close(added, weight_gradients[name], GRADIENTS, name)


def test_block_keeps_segments_apart() -> None:
    rng = np.random.default_rng(4)
    hidden, inner = 64, inner_width(64)
    weights = make_weights(rng, hidden, inner)
    pieces = (Piece((6,)), Piece((2, 2), modality=1), Piece((6,)))
    x = rng.normal(size=(sum(piece.columns for piece in pieces), hidden)).astype(np.float32)
    changed = x.copy()
    changed[7:12] += 1  # the second segment

    def case(values):
        def run(operations):
            memory = Memory()
            layout = Layout(memory, pieces)
            layout.expand(operations)
            extents = (1, hidden, inner, 1)
            output = memory.output((layout.capacity, hidden))
            operations.layer(
                "forward",
                layout.fields,
                extents=extents,
                input=memory.input(values, capacity=layout.capacity),
                output=output,
                saved=memory.workspace(operations.sizes("layer_saved_bytes", *extents, layout.capacity)),
                workspace=memory.workspace(
                    operations.sizes("layer_workspace_bytes", *extents, layout.capacity, len(pieces) + 2)
                ),
                **{name: memory.input(value) for name, value in weights.items()},
            )
            memory.check()
            return {"output": output[: layout.count]}

        return run_on_threads(run)["output"]

    before, after = case(x), case(changed)
    assert np.array_equal(before[:7], after[:7])
    assert np.array_equal(before[12:], after[12:])
    assert not np.array_equal(before[7:12], after[7:12])
