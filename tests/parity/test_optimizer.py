"""AdamW over flat buffers: schedule, decay by span, bounds, the clip, and the refusal of what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.oracle.optimizer import AdamW, Schedule, global_norm
from tests.parity.harness import VALUES, Memory, assert_close, operations_module, run_on_threads

PEAK, FLOOR, WARMUP, STEPS = 0.05, 0.005, 3, 9
SHAPES = {"matrix": (131, 257), "gain": (257,), "contrastive.log_inverse_temperature": (3,)}
RANGE = (0.0, float(np.log(100.0)))


def make_spans() -> tuple[np.ndarray, dict[str, slice]]:
    spans = np.zeros(len(SHAPES), operations_module().SPAN)
    places, offset = {}, 0
    for span, (name, shape) in zip(spans, SHAPES.items(), strict=True):
        count = int(np.prod(shape))
        bounded = name.startswith("contrastive")
        span["offset"], span["count"] = offset, count
        span["decay"] = len(shape) == 2
        span["minimum"], span["maximum"] = RANGE if bounded else (-np.inf, np.inf)
        span["rows"], span["columns"] = shape[0], shape[1] if len(shape) == 2 else 0
        span["kind"] = 0 if len(shape) == 2 else 3
        places[name] = slice(offset, offset + count)
        offset += count
    return spans, places


def run(gradients: list[np.ndarray], start: np.ndarray, spans: np.ndarray, terms: Any, max_norm: float) -> Any:
    """The buffers after one update for each gradient."""

    def case(operations):
        memory = Memory()
        count = len(start)
        state = memory.holding(np.zeros(1, operations_module().STATE), operations_module().STATE)
        state["terms"][0, :2] = terms
        buffers = {
            "parameters": memory.holding(start),
            "first_moment": memory.holding(np.zeros(count)),
            "second_moment": memory.holding(np.zeros(count)),
        }
        for gradient in gradients:
            operations.update(
                count=count,
                gradient=memory.holding(gradient),
                spans=memory.input(spans, spans.dtype),
                terms_count=2,
                peak=PEAK,
                floor=FLOOR,
                warmup_steps=WARMUP,
                steps=STEPS,
                beta1=0.9,
                beta2=0.98,
                epsilon=1e-6,
                decay=0.1,
                max_norm=max_norm,
                state=state,
                workspace=memory.workspace(operations.sizes("update_workspace_bytes", count)),
                **buffers,
            )
        memory.check()
        return {**buffers, "state": state}

    return run_on_threads(case)


@pytest.mark.parametrize("max_norm", [0.0, 1.0, 1e6])
def test_update(max_norm: float) -> None:
    rng = np.random.default_rng(15)
    spans, places = make_spans()
    count = sum(int(span["count"]) for span in spans)
    start = rng.normal(size=count).astype(np.float32)
    start[places["contrastive.log_inverse_temperature"]] = [0.01, 2.0, 4.6]
    gradients = [rng.normal(size=count).astype(np.float32) for _ in range(STEPS + 2)]
    for gradient in gradients:
        gradient[places["contrastive.log_inverse_temperature"]] = [3, 0.1, -3]  # pushes against both bounds
    result = run(gradients, start, spans, [0.5, 0.25], max_norm)

    def split(flat):
        return {name: flat[place].astype(np.float64).reshape(SHAPES[name]) for name, place in places.items()}

    optimizer = AdamW(decay=0.1, max_norm=max_norm or np.inf)
    schedule = Schedule(PEAK, FLOOR, WARMUP, STEPS)
    expected = split(start)
    for step, gradient in enumerate(gradients, 1):
        expected = optimizer.update(expected, split(gradient), schedule.rate(step))
    for name, place in places.items():
        assert_close(result["parameters"][place].reshape(SHAPES[name]), expected[name], VALUES, name)
        assert_close(result["first_moment"][place].reshape(SHAPES[name]), optimizer.first[name], VALUES, name)
        assert_close(result["second_moment"][place].reshape(SHAPES[name]), optimizer.second[name], VALUES, name)
    temperatures = result["parameters"][places["contrastive.log_inverse_temperature"]]
    assert temperatures[0] == RANGE[0]
    assert temperatures[2] == np.float32(RANGE[1])
    state = result["state"][0]
    assert state["applied"] == len(gradients)
    assert state["refused"] == 0
    assert state["learning_rate"] == pytest.approx(schedule.rate(len(gradients)), rel=1e-12)
    assert state["gradient_norm"] == pytest.approx(global_norm(split(gradients[-1])), rel=1e-6)


@pytest.mark.parametrize("fault", ["gradient", "term"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_update_NUM_11_refuses_what_is_not_finite(fault: str, value: float) -> None:
    rng = np.random.default_rng(16)
    spans, _ = make_spans()
    count = sum(int(span["count"]) for span in spans)
    start = rng.normal(size=count).astype(np.float32)
    gradient = rng.normal(size=count).astype(np.float32)
    if fault == "gradient":
        gradient[count - 1] = value
    terms = [0.5, value if fault == "term" else 0.25]
    result = run([gradient], start, spans, terms, 1.0)
    assert result["state"][0]["refused"] == 1
    assert result["state"][0]["applied"] == 0
    assert result["parameters"].tobytes() == start.tobytes()
    assert not np.any(result["first_moment"])
    assert not np.any(result["second_moment"])
