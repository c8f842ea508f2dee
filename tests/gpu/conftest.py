"""What every GPU test shares: the executors, and the record of a run (`--record FILE`).

Tests marked `alone` take the GPU's memory or measure it; the others may run in many processes before them:

    tools/test --gpu -n 8 -m "not alone" --record FILE
    tools/test --gpu -m alone --record FILE
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import uform
from tests.gpu.record import figures, outcomes, write_record


@pytest.fixture(scope="session")
def gpu() -> uform.Executor:
    try:
        return uform.Executor.for_vram([0])
    except uform.DeviceError as error:
        pytest.skip(f"no GPU: {error}")


@pytest.fixture(params=["one", "two on one", "two"], scope="module")
def replicas(request: pytest.FixtureRequest, gpu: uform.Executor) -> uform.Executor:
    """One replica, two that share a GPU, and one on each of two GPUs where there are two."""
    devices = {"one": [0], "two on one": [0, 0], "two": [0, 1]}[request.param]
    try:
        return uform.Executor.for_vram(devices)
    except uform.DeviceError as error:
        pytest.skip(f"one GPU is visible: {error}")


@pytest.fixture(scope="session")
def ram() -> uform.Executor:
    return uform.Executor.for_ram()


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs: UFORM_GPU_PROGRAMS where they were built elsewhere, else built here."""
    built = os.environ.get("UFORM_GPU_PROGRAMS")
    if built:
        return Path(built)
    from tools.build.gpu_programs import build_gpu_programs

    return next(iter(build_gpu_programs().values())).parent


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        outcomes[report.nodeid] = report.outcome


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over what a process of pytest-xdist measured."""
    figures.update(getattr(node, "workeroutput", {}).get("figures", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["figures"] = figures
        return
    path = session.config.getoption("--record")
    if path is not None:
        write_record(Path(path))
