"""Losses of covered bytes, covered patches and plain logits, with their gradients."""

from __future__ import annotations

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import grad

from tests.oracle import masked
from tests.parity.harness import GRADIENTS, VALUES, Memory, assert_close, blas_path, run_on_threads

SIZES = [(0, 64), (1, 64), (3, 67), (129, 64), (1111, 65)]  # the last takes more than one panel
FIRST = 4
CAPACITY_BEYOND = 6


@pytest.mark.parametrize(("count", "hidden"), SIZES)
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("blas", ["plain", "openblas"])
def test_bytes_head(count: int, hidden: int, backward: bool, blas: str) -> None:
    rng = np.random.default_rng(8)
    rows = rng.normal(size=(FIRST + count, hidden)).astype(np.float32)
    table = (rng.normal(size=(260, hidden)) / np.sqrt(hidden)).astype(np.float32)
    targets = rng.integers(0, 256, count)
    start = rng.normal(size=table.shape).astype(np.float32) * 1e-3
    scale, weight = np.float32(1 / max(count, 1)), np.float32(0.7)

    def case(operations):
        memory = Memory()
        capacity = count + CAPACITY_BEYOND
        loss = memory.holding([0.25], np.float64)
        rows_gradient = memory.output((FIRST + capacity, hidden)) if backward else None
        table_gradient = memory.holding(start) if backward else None
        operations.bytes_head(
            hidden=hidden,
            capacity=capacity,
            active=count + 1,
            first=FIRST - 1 if backward else FIRST,
            before=memory.input([1], np.uint32) if backward else None,
            count=memory.input([count], np.uint32),
            rows=memory.input(rows, capacity=FIRST + capacity),
            table=memory.input(table),
            targets=memory.input(targets, np.uint8, capacity=capacity),
            scale=memory.input([scale]),
            weight=memory.input([weight]),
            loss=loss,
            rows_gradient=rows_gradient,
            table_gradient=table_gradient,
            workspace=memory.workspace(operations.sizes("bytes_head_workspace_bytes", hidden, capacity)),
        )
        memory.check()
        result = {"loss": loss}
        if rows_gradient is not None and table_gradient is not None:
            untouched = np.concatenate([rows_gradient[:FIRST], rows_gradient[FIRST + count :]])
            assert np.all(np.isnan(untouched)), "rows of others are left alone"
            result |= {"rows": rows_gradient[FIRST : FIRST + count], "table": table_gradient}
        return result

    result = run_on_threads(case, blas=blas_path() if blas == "openblas" else None)
    exact = (rows[FIRST:].astype(np.float64), table.astype(np.float64))

    def value(variables):
        return float(scale) * count * masked.masked_bytes(masked.byte_logits(*variables), targets)

    assert_close(result["loss"], [0.25 + float(value(exact))], VALUES, "loss")
    if backward and count:
        rows_gradient, table_gradient = grad(value)(exact)
        assert_close(result["rows"], float(weight) * rows_gradient, GRADIENTS, "rows")
        added = result["table"].astype(np.float64) - start
        assert_close(added, float(weight) * table_gradient, GRADIENTS, "table")
    elif backward:
        assert np.array_equal(result["table"], start)


@pytest.mark.parametrize(("count", "hidden"), SIZES)
@pytest.mark.parametrize("element", ["uint8", "int16", "float32"])
@pytest.mark.parametrize("backward", [True, False])
def test_patches_head(count: int, hidden: int, element: str, backward: bool) -> None:
    rng = np.random.default_rng(9)
    width, patches = 27, 1300
    code, multiplier, offset = {
        "uint8": (0, 1 / 127.5, -1.0),
        "int16": (1, 1 / 32768, 0.0),
        "float32": (2, 1.0, 0.5),
    }[element]
    rows = rng.normal(size=(FIRST + count, hidden)).astype(np.float32)
    head = (rng.normal(size=(width, hidden)) / np.sqrt(hidden)).astype(np.float32)
    kind = np.dtype(element)
    if kind.kind == "f":
        values = rng.normal(size=(patches, width)).astype(kind)
    else:
        limits = np.iinfo(kind)
        values = rng.integers(limits.min, limits.max + 1, (patches, width)).astype(kind)
    values[5] = values[5, 0]  # a patch of one value, whose variance is 0
    covered = rng.permutation(patches)[:count]
    if count:
        covered[0] = 5
    start = rng.normal(size=head.shape).astype(np.float32) * 1e-3
    scale, weight = np.float32(1 / max(count, 1)), np.float32(1.3)

    def case(operations):
        memory = Memory()
        capacity = count + CAPACITY_BEYOND
        loss = memory.holding([0.25], np.float64)
        rows_gradient = memory.output((FIRST + capacity, hidden)) if backward else None
        head_gradient = memory.holding(start) if backward else None
        operations.patches_head(
            hidden=hidden,
            width=width,
            element=code,
            multiplier=multiplier,
            offset=offset,
            capacity=capacity,
            active=count + 1,
            first=FIRST - 1 if backward else FIRST,
            before=memory.input([1], np.uint32) if backward else None,
            count=memory.input([count], np.uint32),
            rows=memory.input(rows, capacity=FIRST + capacity),
            values=memory.input(values, kind),
            covered_patches=memory.input(covered, np.uint32, capacity=capacity),
            head=memory.input(head),
            head_gradient=head_gradient,
            scale=memory.input([scale]),
            weight=memory.input([weight]),
            loss=loss,
            rows_gradient=rows_gradient,
            workspace=memory.workspace(operations.sizes("patches_head_workspace_bytes", hidden, width, capacity)),
        )
        memory.check()
        result = {"loss": loss}
        if rows_gradient is not None and head_gradient is not None:
            untouched = np.concatenate([rows_gradient[:FIRST], rows_gradient[FIRST + count :]])
            assert np.all(np.isnan(untouched)), "rows of others are left alone"
            result |= {"rows": rows_gradient[FIRST : FIRST + count], "head": head_gradient}
        return result

    result = run_on_threads(case)
    exact = (rows[FIRST:].astype(np.float64), head.astype(np.float64))
    scaled = values[covered].astype(np.float64) * np.float32(multiplier) + offset

    def value(variables):
        return float(scale) * count * masked.masked_patches(masked.patch_predictions(*variables), scaled)

    assert_close(result["loss"], [0.25 + float(value(exact))], VALUES, "loss")
    if backward and count:
        rows_gradient, head_gradient = grad(value)(exact)
        assert_close(result["rows"], float(weight) * rows_gradient, GRADIENTS, "rows")
        added = result["head"].astype(np.float64) - start
        assert_close(added, float(weight) * head_gradient, GRADIENTS, "head")


@pytest.mark.parametrize("count", [0, 1, 128, 515])
@pytest.mark.parametrize("gradient", ["none", "apart", "over the logits"])
@pytest.mark.parametrize("magnitude", [1.0, 50.0])
def test_cross_entropy(count: int, gradient: str, magnitude: float) -> None:
    rng = np.random.default_rng(10)
    logits = (magnitude * rng.normal(size=(count, 256))).astype(np.float32)
    targets = rng.integers(0, 256, count)
    scale = 1 / max(count, 1)

    def case(operations):
        memory = Memory()
        loss = memory.holding([0.0], np.float64)
        over = gradient == "over the logits"
        given = memory.holding(logits) if over else memory.input(logits)
        answer = {"none": None, "apart": memory.output(logits.shape), "over the logits": given}[gradient]
        operations.cross_entropy(
            classes=256,
            count=count,
            logits=given,
            targets=memory.input(targets, np.uint8),
            scale=scale,
            loss=loss,
            gradient=answer,
            workspace=memory.workspace(operations.sizes("cross_entropy_workspace_bytes", 256, count)),
        )
        memory.check()
        return {"loss": loss} if answer is None else {"loss": loss, "gradient": answer}

    result = run_on_threads(case)
    exact = logits.astype(np.float64)
    assert_close(result["loss"], [float(masked.masked_bytes(exact, targets))], VALUES, "loss")
    if gradient != "none" and count:
        expected = grad(lambda v: anp.sum(masked.masked_bytes(v, targets)))(exact)
        assert_close(result["gradient"], expected, GRADIENTS, "gradient")


def test_cross_entropy_MSK_07_of_even_logits_is_log_256() -> None:
    def case(operations):
        loss = np.zeros(1)
        operations.cross_entropy(
            classes=256,
            count=7,
            logits=np.zeros((7, 256), np.float32),
            targets=np.arange(7, dtype=np.uint8),
            scale=1 / 7,
            loss=loss,
            gradient=None,
            workspace=Memory().workspace(operations.sizes("cross_entropy_workspace_bytes", 256, 7)),
        )
        return {"loss": loss}

    assert run_on_threads(case)["loss"][0] == pytest.approx(np.log(256), rel=1e-6)
