"""The ranges that profilers show, as NVTX hands them to what a process injects: a library of ours that counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import uform
from tests.gpu.record import ROOT
from third_party.finder import find_cuda

STEPS = 3
RUN = """
import sys
import uform

texts, modalities = ["cat", "dog", "owl"], [uform.Modality.TEXT] * 3
batch = uform.BatchShape(max_rows_per_device=4, max_columns_per_row=64)
executor = uform.Executor.for_vram([0, 0])
trainer = uform.Trainer.init_vram(executor, depth=2, hidden=64, batch=batch, objective=uform.Objective.JOINT)
for _ in range(int(sys.argv[1])):
    trainer.step(modalities, texts, relations=uform.Relations(attract=([0, 1, 2, 2], [1, 0])))
trainer.save(sys.argv[2])
uform.Model.init_vram(executor, sys.argv[2]).embed(modalities, texts)
"""
# Of a step of two replicas: by their names in the table of operations.
FORWARD = {"embedding_forward", "norm_forward", "attention_forward", "pool_forward", "pairs_forward"}
BACKWARD = {"embedding_backward", "norm_backward", "attention_backward", "pool_backward", "pairs_backward"}
OTHERS = {"bytes_head", "gather", "reduce_sum", "reduce_terms", "update", "weights_import"}


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    toolkit = find_cuda(wheels=True)
    if toolkit is None or not (toolkit.include / "nvtx3" / "nvToolsExt.h").is_file():
        pytest.skip("NVTX's headers are not installed")
    library = tmp_path_factory.mktemp("ranges") / "libcount_ranges.so"
    source = ROOT / "tests" / "gpu" / "native" / "count_ranges.c"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-isystem", str(toolkit.include)]
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-o", str(library)], check=True)
    return library


def test_operations_are_ranges(counter: Path, gpu: uform.Executor, tmp_path: Path) -> None:
    """Each as often as it is called, nested by opening and closing; without a profiler none is missed."""
    counted = tmp_path / "counted"
    injected = {"NVTX_INJECTION64_PATH": str(counter), "COUNTED_RANGES": str(counted), "UFORM_GRAPHS": "0"}
    package = str(Path(uform.__file__).resolve().parents[1])
    environment = {**os.environ, **injected, "PYTHONPATH": package}
    command = [sys.executable, "-c", RUN, str(STEPS), str(tmp_path / "checkpoint")]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    *lines, popped = counted.read_text().splitlines()
    pushed = {name: int(count) for count, name in (line.split() for line in lines)}
    assert sum(pushed.values()) == int(popped) > 0
    assert pushed.keys() >= FORWARD | BACKWARD | OTHERS
    assert pushed["update"] == 2 * STEPS  # of each replica
    assert pushed["pool_backward"] == 2 * STEPS
    assert pushed["pool_forward"] == 2 * (STEPS + 1)  # and of the model's one pass
    assert pushed["attention_backward"] == 2 * 2 * STEPS  # of each block
    assert pushed["attention_forward"] >= 2 * 2 * (STEPS + 1)
