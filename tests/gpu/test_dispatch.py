"""Which kernels a run takes: by the class of its GPUs, by the user's wish, by what was compiled."""

from __future__ import annotations

import pytest

import uform
from tests.helpers.processes import run_python
from uform import GPUClass

COMPILED_FOR_HOPPER = "90a" in uform.show_config()["cuda_architectures"]


def test_kernels_of_the_gpus_own_class(gpu: uform.Executor) -> None:
    hopper = gpu.gpu_class == GPUClass.HOPPER and COMPILED_FOR_HOPPER
    assert gpu.gemm == ("cutlass-sm90" if hopper else "cutlass-sm80")


@pytest.mark.parametrize("wish", ["AMPERE", "ADA"])
def test_a_lowered_class_takes_earlier_kernels(wish: str, gpu: uform.Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UFORM_GPU_CLASS", wish)
    executor = uform.Executor.for_vram([0])
    assert executor.gpu_class == min(GPUClass[wish], gpu.gpu_class)
    assert executor.gemm == "cutlass-sm80"


def test_every_class_computes_the_same(gpu: uform.Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        import json
        import uform
        from tests.gpu.test_training import make, step
        trainer = make(uform.Executor.for_vram([0]), uform.Objective.JOINT)
        print(json.dumps([step(trainer)[0].loss for _ in range(5)]))
        """
    own = run_python(code)
    monkeypatch.setenv("UFORM_GPU_CLASS", "AMPERE")
    assert run_python(code) == pytest.approx(own, rel=1e-2)
