"""What the devices of one process exchange: sums into every buffer, blocks of every rank to every rank."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parity.harness import GRADIENTS, Memory, assert_close, backend


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 17, 40_003])
def test_reduce_sum(devices: int, count: int) -> None:
    rng = np.random.default_rng(11)
    values = rng.normal(size=(devices, count)).astype(np.float32)

    def run(threads: int) -> list[np.ndarray]:
        memory = Memory()
        buffers = [memory.holding(own) for own in values]
        backend(threads, devices).reduce_sum(buffers)
        memory.check()
        return buffers

    alone, shared = run(1), run(3)
    for one, other in zip(alone, shared, strict=True):
        assert one.tobytes() == other.tobytes() == alone[0].tobytes(), "every device holds the same bits"
    assert_close(alone[0], values.astype(np.float64).sum(axis=0), GRADIENTS)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_reduce_terms(devices: int) -> None:
    values = np.random.default_rng(12).normal(size=(devices, 32))
    memory = Memory()
    buffers = [memory.holding(own, np.float64) for own in values]
    backend(1, devices).reduce_terms(buffers)
    memory.check()
    for buffer in buffers:
        assert_close(buffer, values.sum(axis=0), 1e-14)


@pytest.mark.parametrize("devices", [1, 2, 5])
def test_gather(devices: int) -> None:
    rng = np.random.default_rng(13)
    blocks = rng.normal(size=(devices, 7, 33)).astype(np.float32)
    memory = Memory()
    targets = [memory.output(blocks.shape) for _ in range(devices)]
    backend(3, devices).gather([memory.input(block) for block in blocks], targets)
    memory.check()
    for target in targets:
        assert np.array_equal(target, blocks)


def test_memory_goes_there_and_back() -> None:
    values = np.random.default_rng(14).normal(size=1001)
    back, zeros, aligned = backend().copy_through(values)
    assert aligned
    assert np.array_equal(back, values)
    assert not np.any(zeros)


def test_table() -> None:
    operations = backend()
    assert operations.name == "ram"
    assert operations.gemm == "plain"
    assert operations.sizes("state_bytes", 64) == 64 * 4
    assert operations.sizes("weights_bytes", 0, 3, 5) == 0, "the plain weights are the backend's own form"
