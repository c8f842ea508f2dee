"""Fresh interpreters that run a piece of code against the package under test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import uform

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(uform.__file__).resolve().parents[1]  # the tree, or where it is installed
PATIENCE = 120  # seconds until a process that hangs is a failure


def run_python(code: str, *arguments: object, timeout: float = PATIENCE) -> Any:
    """Runs `code`, which finds its arguments in `sys.argv`; answers the JSON that it prints last."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
