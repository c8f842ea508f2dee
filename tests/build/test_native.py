"""The C++ programs of tests/native, compiled with sanitizers against a sanitized core, run without a finding."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools.build.native import PROGRAMS, ROOT, build_programs

NAMES = sorted(source.stem for source in ROOT.glob(PROGRAMS))
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:check_initialization_order=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


# What several threads share; everything else would take minutes under ThreadSanitizer.
THREADED = ("test_arena", "test_queue", "test_threads", "test_trainer_threads")


def build(**options: Any) -> dict[str, Path]:
    lines: list[str] = []
    try:
        return build_programs(report=lines.append, **options)
    except Exception:
        print("\n".join(lines))
        raise


def run_clean(program: Path, folder: Path) -> None:
    finished = subprocess.run(
        [program],
        cwd=folder,
        env={**os.environ, **SANITIZER_OPTIONS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=600,
    )
    assert finished.returncode == 0, finished.stdout[-8000:]


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    return build()


@pytest.fixture(scope="module")
def threaded() -> dict[str, Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UFORM_SANITIZE", "thread")
        return build(names=THREADED)


@pytest.mark.slow
@pytest.mark.xdist_group("native")
@pytest.mark.parametrize("name", NAMES)
def test_program_runs_clean(name: str, programs: dict[str, Path], tmp_path: Path) -> None:
    run_clean(programs[name], tmp_path)


@pytest.mark.slow
@pytest.mark.xdist_group("native")
@pytest.mark.parametrize("name", THREADED)
def test_program_has_no_race(name: str, threaded: dict[str, Path], tmp_path: Path) -> None:
    run_clean(threaded[name], tmp_path)
