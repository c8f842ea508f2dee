"""Embeddings in a GPU's arena as arrays of CuPy and JAX, which read them where they lie; PyTorch's: `test_arenas`."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from importlib.util import find_spec

import numpy as np
import pytest

import uform
from tests.gpu.record import ROOT
from tests.gpu.test_arenas import address, embed, make, model  # noqa: F401 - a fixture
from uform import Scalar

SCALARS = [Scalar.FLOAT32, Scalar.FLOAT16, Scalar.INT8, Scalar.BIT]  # NumPy has no bfloat16 to compare with


@pytest.mark.parametrize("scalar", SCALARS)
def test_cupy(model: uform.Model, scalar: Scalar) -> None:  # noqa: F811
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own while it is imported
        cupy = pytest.importorskip("cupy")
    buffer = embed(model, uform.Arena.for_vram(), scalar)
    for seen in (cupy.from_dlpack(buffer), cupy.asarray(buffer)):
        assert seen.data.ptr == address(buffer)
        np.testing.assert_array_equal(cupy.asnumpy(seen), buffer.numpy())


def compare_with_jax() -> None:
    """What the process of `test_jax` does: JAX takes part in every later fork of its process."""
    import jax

    trainer = make(uform.Executor.for_vram([0]))
    trainer.save(sys.argv[1])
    opened = uform.Model.init_vram(trainer.executor, sys.argv[1])
    for scalar in SCALARS:
        buffer = embed(opened, uform.Arena.for_vram(), scalar)
        seen = jax.dlpack.from_dlpack(buffer)
        assert seen.unsafe_buffer_pointer() == address(buffer), scalar
        np.testing.assert_array_equal(np.asarray(seen), buffer.numpy())


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_jax(gpu: uform.Executor, tmp_path: object) -> None:
    script = "from tests.gpu.test_foreign_arrays import compare_with_jax; compare_with_jax()"
    finished = subprocess.run(
        [sys.executable, "-c", script, f"{tmp_path}/checkpoint"],
        cwd=ROOT,
        env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # else it takes most of the GPU for itself
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
