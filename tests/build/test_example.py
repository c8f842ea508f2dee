"""The C program of tests/native trains through the C header alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import uform

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "native" / "example.c"


@pytest.mark.parametrize("standard", ["c99", "c11"])
def test_example_in_C(standard: str, tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler is on PATH")
    package = Path(uform.__file__).resolve().parent
    program = tmp_path / "example"
    flags = [f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{uform.get_include()}", f"-I{ROOT}"]
    library = [f"-L{package / '_ext'}", "-luform", f"-Wl,-rpath,{package / '_ext'}", "-lm"]
    subprocess.run([compiler, *flags, str(EXAMPLE), "-o", str(program), *library], check=True)
    checkpoint = tmp_path / "checkpoint.safetensors"
    finished = subprocess.run([program, checkpoint], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    losses = re.findall(r"^step (\d+): loss (\S+)$", finished.stdout, flags=re.MULTILINE)
    assert [int(step) for step, _ in losses] == [*range(1, 21), 20]
    assert losses[-1] == losses[-2]  # the resumed run's step is the same, to the last digit printed
    assert float(losses[-1][1]) < 0.8 * float(losses[0][1])
    cosines = [float(cosine) for cosine in re.findall(r"^pair \d: cosine (\S+)$", finished.stdout, flags=re.MULTILINE)]
    assert len(cosines) == 4
    assert all(-1.001 <= cosine <= 1.001 for cosine in cosines)
    planned = json.loads(finished.stdout.splitlines()[0])["planned_bytes_per_device"]
    trainer = uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), resume=checkpoint)
    described = trainer.describe()
    assert (described["step"], described["planned_bytes_per_device"]) == (20, planned)
