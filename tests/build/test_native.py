"""Every C++ program of tests/native, compiled with sanitizers against a sanitized core, runs without a finding."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tools.build.native import PROGRAMS, ROOT, build_programs

NAMES = sorted(source.stem for source in ROOT.glob(PROGRAMS))
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:check_initialization_order=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    lines: list[str] = []
    try:
        return build_programs(report=lines.append)
    except Exception:
        print("\n".join(lines))
        raise


@pytest.mark.slow
@pytest.mark.xdist_group("native")
@pytest.mark.parametrize("name", NAMES)
def test_program_runs_clean(name: str, programs: dict[str, Path], tmp_path: Path) -> None:
    finished = subprocess.run(
        [programs[name]],
        cwd=tmp_path,
        env={**os.environ, **SANITIZER_OPTIONS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=600,
    )
    assert finished.returncode == 0, finished.stdout[-8000:]
