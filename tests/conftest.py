"""What is collected: the tests of tests/gpu only where they are asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Read when NumPy is imported, which is after this: the oracle's many small products lose most of their time to threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="run the tests that need a GPU (tests/gpu)")
    parser.addoption("--record", metavar="FILE", help="write what the GPU tests found to this file")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path == GPU_TESTS and not config.getoption("--gpu"):
        return True
    return None
