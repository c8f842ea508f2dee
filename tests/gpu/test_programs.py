"""Every operation on the GPU against RAM or a naive loop: the programs of tests/gpu/native, each with its timings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.gpu.record import ROOT, figures

pytestmark = pytest.mark.alone

NAMES = sorted(source.stem for source in (ROOT / "tests" / "gpu" / "native").glob("*.cu"))


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs: UFORM_GPU_PROGRAMS where they were built elsewhere, else built here."""
    built = os.environ.get("UFORM_GPU_PROGRAMS")
    if built:
        return Path(built)
    from tools.build.gpu_programs import build_gpu_programs

    return next(iter(build_gpu_programs().values())).parent


@pytest.mark.parametrize("name", NAMES)
def test_operations(name: str, programs: Path) -> None:
    finished = subprocess.run(
        [programs / name, "--bench"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    lines = finished.stdout.splitlines()
    figures[name] = [line for line in lines if line.startswith("bench ")] + lines[-1:]
    failed = [line for line in lines if line.startswith("FAIL")]
    assert finished.returncode == 0, "\n".join(failed or lines[-20:])
