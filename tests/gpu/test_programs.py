"""Every operation on the GPU against RAM or a naive loop, and its timings: the programs of tests/gpu/native."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.gpu.record import ROOT, figures

SOURCES = sorted((ROOT / "tests" / "gpu" / "native").glob("*.cu"))
CHECKED = [source.stem for source in SOURCES if "native_test::report" in source.read_text()]
TIMED = [source.stem for source in SOURCES if "wants_bench" in source.read_text() or source.stem.startswith("bench")]


def run(program: Path, *options: str) -> list[str]:
    """The lines that a program prints; one that failed is told."""
    finished = subprocess.run(
        [program, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    lines = finished.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAIL")]
    assert finished.returncode == 0, "\n".join(failed or lines[-20:])
    return lines


@pytest.mark.parametrize("name", CHECKED)
def test_operations(name: str, programs: Path) -> None:
    figures[f"{name}, checks"] = run(programs / name)[-1:]


@pytest.mark.alone
@pytest.mark.parametrize("name", TIMED)
def test_timings(name: str, programs: Path) -> None:
    lines = run(programs / name, "--bench", "--unchecked")
    figures[name] = [line for line in lines if line.startswith(("bench ", "memory "))]
