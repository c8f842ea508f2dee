"""Under compute-sanitizer: no access out of bounds, no race in shared memory.

Whole steps, captured ones among them, and programs for the kernels that such small steps do not reach.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import uform
from tests.gpu.record import ROOT

FOUND = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
PROBLEMS = 9


@pytest.mark.skipif(FOUND is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("gpu_class", ["", "AMPERE"])
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_small_steps(tool: str, gpu_class: str, gpu: uform.Executor) -> None:
    watched = [FOUND or "", "--tool", tool, "--error-exitcode", str(PROBLEMS), sys.executable, "-m"]
    script = ["tests.gpu.small_steps", *(["--few"] if tool == "racecheck" else [])]
    environment = os.environ | ({"UFORM_GPU_CLASS": gpu_class} if gpu_class else {})
    finished = subprocess.run(
        [*watched, *script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400
    )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
    assert "done" in finished.stdout


@pytest.mark.skipif(FOUND is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("test_vram_attention", "--few"),
        ("test_vram_choices", "--small"),
        ("test_vram_embedding", "--small"),
        ("test_vram_heads", "--small"),
        ("test_vram_pairs", "--few"),
    ],
)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_small_problems(tool: str, name: str, size: str, programs: Path) -> None:
    watched = [FOUND or "", "--tool", tool, "--error-exitcode", str(PROBLEMS), str(programs / name), size]
    finished = subprocess.run(watched, capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
    assert " passed, 0 failed" in finished.stdout
