"""Every operation on the GPU against RAM or a naive loop: the programs of tests/gpu/native, each with its timings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.gpu.record import ROOT, figures

pytestmark = pytest.mark.alone

NAMES = sorted(source.stem for source in (ROOT / "tests" / "gpu" / "native").glob("*.cu"))


@pytest.mark.parametrize("name", NAMES)
def test_operations(name: str, programs: Path) -> None:
    finished = subprocess.run(
        [programs / name, "--bench"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    lines = finished.stdout.splitlines()
    figures[name] = [line for line in lines if line.startswith("bench ")] + lines[-1:]
    failed = [line for line in lines if line.startswith("FAIL")]
    assert finished.returncode == 0, "\n".join(failed or lines[-20:])
