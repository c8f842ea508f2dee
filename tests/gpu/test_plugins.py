"""Third parties' plugins on the GPU against RAM: kernels of their own, PyTorch over DLPack, and graphs around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.gpu.record import figures
from tests.plugins.environment import make_environment, run_script


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("cosent"), "cosent")


@pytest.fixture(scope="module")
def in_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("cosent_python"), "cosent_python")


@pytest.fixture(scope="module")
def tabular(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("tabular"), "tabular")


def run_both(python: Path, folder: Path, script: str, *arguments: str) -> list[dict[str, Any]]:
    checkpoint = str(folder / "run.safetensors")
    return [run_script(python, script, *arguments, checkpoint, kind) for kind in ("vram", "ram")]


def check_ranked(on_gpu: dict[str, Any], on_ram: dict[str, Any], folder: Path) -> None:
    """The first step's loss and gradients are RAM's, the loss falls, and a resumed run is the same one."""
    losses = on_gpu["losses"]
    assert losses[0] == pytest.approx(on_ram["losses"][0], rel=1e-2)
    there, here = (np.load(folder / f"run.safetensors.{kind}.npz") for kind in ("vram", "ram"))
    assert there.files == here.files
    left, right = (np.concatenate([one[name].ravel() for name in here.files]) for one in (there, here))
    error = float(np.linalg.norm(left - right) / np.linalg.norm(right))
    figures.setdefault("gradients beside a third party's objective", []).append(f"apart by {error:.2e}")
    assert error < 2e-2
    assert losses[-1] < 0.7 * losses[0]
    assert on_gpu["again"] == losses[len(losses) // 2 :]


def test_cython_objective_is_captured(gpu: uform.Executor, compiled: Path, tmp_path: Path) -> None:
    on_gpu, on_ram = run_both(compiled, tmp_path, "ranked.py", "cosent")
    check_ranked(on_gpu, on_ram, tmp_path)
    assert on_gpu["graphs"] == 1  # the whole step
    assert on_gpu["launches"] == len(on_gpu["losses"])  # one is answered besides, the first is none


def test_graph_is_split_at_a_python_objective(gpu: uform.Executor, in_python: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    on_gpu, on_ram = run_both(in_python, tmp_path, "ranked.py", "cosent_torch")
    check_ranked(on_gpu, on_ram, tmp_path)
    assert on_gpu["graphs"] == 3  # before it, after it, and the update


def test_modality(gpu: uform.Executor, tabular: Path, tmp_path: Path) -> None:
    on_gpu, on_ram = run_both(tabular, tmp_path, "tabled.py")
    assert on_gpu["losses"][0] == pytest.approx(on_ram["losses"][0], rel=1e-2)
    assert on_gpu["found"] > 0.9
    assert on_gpu["again"] == on_gpu["losses"][len(on_gpu["losses"]) // 2 :]


def test_a_modality_is_masked(gpu: uform.Executor, tabular: Path, tmp_path: Path) -> None:
    on_gpu, on_ram = run_both(tabular, tmp_path, "covered_tables.py")
    for run in ("one", "three devices", "heavier", "weightless", "uncovered", "joint"):
        for name, value in on_ram[run].items():
            bound = 5e-2 if name in ("head", "weight") else 1e-2
            assert on_gpu[run][name] == pytest.approx(value, rel=bound, abs=1e-6), (run, name)
    assert on_gpu["losses"][-1] < 0.2
    assert on_gpu["again"] == on_gpu["losses"][len(on_gpu["losses"]) // 2 :]
    assert on_gpu["embedded"]
