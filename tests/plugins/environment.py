"""Fresh environments that one package is installed in, beside what runs the tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import uform

HERE = Path(__file__).resolve().parent


def make_environment(folder: Path, package: str) -> Path:
    """Installs a package of this folder with its own setup.py; answers the environment's interpreter.

    What the tests run with is seen from there through a .pth file: nothing is fetched.
    """
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    beside = [
        str(Path(uform.__file__).resolve().parents[1]),
        *(path for path in sys.path if path.endswith("-packages")),
    ]
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text("\n".join(beside) + "\n")
    source = folder / package
    shutil.copytree(HERE / package, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    command = [python, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "."]
    _run([str(part) for part in command], source)
    return python


def run_script(python: Path, script: str, *arguments: str) -> dict[str, Any]:
    """What a script of this folder prints."""
    answered = _run([str(python), str(HERE / script), *arguments], HERE)
    printed: dict[str, Any] = json.loads(answered)
    return printed


def _run(command: list[str], folder: Path) -> str:
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=600, check=False)
    if finished.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{finished.stdout}\n{finished.stderr}")
    return finished.stdout
