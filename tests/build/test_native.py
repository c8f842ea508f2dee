"""Every C++ program of tests/native, compiled with sanitizers against a sanitized core, runs without a finding, and so
does what Python hands over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.build.library import LIBRARY
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


# The parts of the suite that hand buffers of all kinds from Python to the core.
BUFFER_TESTS = ("bad_input", "borrowed", "contents", "fuzz_step", "losses_arguments")
RUN = """
import json, os, sys
import pytest
# For this process they have done their work; one that a test starts has no business with either.
for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
    os.environ.pop(name)
status = pytest.main(sys.argv[1:])
with open("/proc/self/maps") as maps:
    loaded = {line.split()[-1] for line in maps if "/" in line}
print(json.dumps([int(status), sorted(path for path in loaded if "libuform" in path or "libasan" in path)]))
"""


def _runtime(name: str) -> str:
    """Where the compiler has a sanitizer's runtime."""
    compiler = os.environ.get("CXX", "c++")
    asked = [compiler, f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"{compiler} has no {name} to preload")
    return str(Path(found).resolve())


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
def test_python_hands_over_buffers_clean(programs: dict[str, Path], tmp_path: Path) -> None:
    """The Cython modules on the sanitized core: what Python hands over is read within its bounds and as its type."""
    library = next(iter(programs.values())).parent / LIBRARY
    runtimes = [_runtime(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    files = [str(ROOT / "tests" / "unit" / f"test_{name}.py") for name in BUFFER_TESTS]
    environment = {
        **os.environ,
        **SANITIZER_OPTIONS,
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",  # the interpreter's own leaks are not ours
        "LD_LIBRARY_PATH": str(library.parent),
        "LD_PRELOAD": " ".join(runtimes),
        "PYTHONMALLOC": "malloc",  # else objects share blocks, and nothing is seen between them
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    arguments = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", f"--rootdir={ROOT}", f"--basetemp={tmp_path}", *files]
    finished = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=600,
    )
    assert finished.returncode == 0, finished.stdout[-8000:]
    status, loaded = json.loads(finished.stdout.splitlines()[-1])
    assert status == 0, finished.stdout[-8000:]
    assert str(library.resolve()) in loaded
    assert sum("libuform" in path for path in loaded) == 1
    assert any("libasan" in path for path in loaded)


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
