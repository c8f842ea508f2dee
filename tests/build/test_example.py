"""The C program of tests/native trains through the C header alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import uform

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "native" / "example.c"


def test_example_in_C(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler is on PATH")
    package = Path(uform.__file__).resolve().parent
    program = tmp_path / "example"
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{uform.get_include()}", f"-I{ROOT}"]
    library = [f"-L{package / '_ext'}", "-luform", f"-Wl,-rpath,{package / '_ext'}", "-lm"]
    subprocess.run([compiler, *flags, str(EXAMPLE), "-o", str(program), *library], check=True)
    checkpoint = tmp_path / "checkpoint.safetensors"
    finished = subprocess.run([program, checkpoint], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert checkpoint.is_file()
