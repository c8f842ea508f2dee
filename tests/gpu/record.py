"""The record of a run on a GPU: which GPU, which sources, each test's outcome, each figure."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("uform/_ext/core", "uform/_ext/ram", "uform/_ext/vram", "uform/_ext/include", "plugins")

figures: dict[str, list[str]] = {}
outcomes: dict[str, str] = {}


def tree_hash() -> str:
    """Names the sources of the core that a record is of."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cuh", ".cpp", ".cu"}:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def write_record(path: Path) -> None:
    """Writes what this run found; a record of the same sources on the same GPU is gone on with."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
    of = {"gpu": name, "driver": driver, "tree": tree_hash()}
    before = json.loads(path.read_text()) if path.exists() else {}
    if not of.items() <= before.items():
        before = {"tests": {}, "figures": {}}
    record = of | {"tests": before["tests"] | outcomes, "figures": before["figures"] | figures}
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
