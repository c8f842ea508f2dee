"""Packages outside the tree, each installed with its own setup.py in a fresh environment and trained for some steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.plugins.environment import make_environment, run_script

# Those of cosent_python, in the order in which they need more.
BACKENDS = ("numpy", "torch")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("cosent"), "cosent")


@pytest.fixture(scope="module")
def in_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("cosent_python"), "cosent_python")


def check_ranked(name: str, seen: dict[str, Any]) -> None:
    """It fell, the pairs are in order, and the resumed run is the same one."""
    losses = seen["losses"]
    assert losses[-1] < 0.7 * losses[0]
    assert seen["again"] == losses[len(losses) // 2 :]
    assert seen["total"] == losses[-1]
    assert seen["plugins"][name]["scale"] == 10
    cosines = seen["cosines"]
    assert min(cosines[0], cosines[3]) > max(cosines[4:])


@pytest.mark.xdist_group("plugins")
def test_cython_objective(compiled: Path, tmp_path: Path) -> None:
    seen = run_script(compiled, "ranked.py", "cosent", str(tmp_path / "run.safetensors"))
    check_ranked("cosent", seen)
    assert seen["plugins"]["cosent"] == {"weight": 1, "scale": 10, "max_pairs": 4096}


@pytest.mark.xdist_group("plugins")
@pytest.mark.parametrize("backend", BACKENDS)
def test_python_objective(backend: str, compiled: Path, in_python: Path, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    name = f"cosent_{backend}"
    seen = run_script(in_python, "ranked.py", name, str(tmp_path / "run.safetensors"))
    check_ranked(name, seen)
    assert seen["parameters"][f"{name}.log_scale"] != [pytest.approx(math.log(10))]  # it is learned
    # What others derived by hand, in another language: the same loss and the same gradient.
    other = run_script(compiled, "ranked.py", "cosent", str(tmp_path / "other.safetensors"))
    assert seen["losses"][0] == pytest.approx(other["losses"][0], rel=1e-5)
    found, expected = (np.load(tmp_path / f"{run}.safetensors.ram.npz") for run in ("run", "other"))
    for parameter in other["gradient"]:
        np.testing.assert_allclose(found[parameter], expected[parameter], rtol=1e-3, atol=1e-6, err_msg=parameter)


@pytest.fixture(scope="module")
def tabular(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("tabular"), "tabular")


@pytest.mark.xdist_group("plugins")
def test_modality(tabular: Path, tmp_path: Path) -> None:
    seen = run_script(tabular, "tabled.py", str(tmp_path / "run.safetensors"))
    losses = seen["losses"]
    assert losses[-1] < 0.3 * losses[0]
    assert seen["again"] == losses[len(losses) // 2 :]
    assert seen["plugins"] == {"tabular": {"fields": 4, "mask_ratio": 0.5, "mask_weight": 1}}
    assert seen["parameters"] == [
        {"name": "tabular.table", "shape": [2, 64]},
        {"name": "tabular.weight", "shape": [64, 4]},
        {"name": "tabular.head", "shape": [4, 64]},
    ]
    assert seen["found"] > 0.9
    assert seen["truncated"] == 0
    assert [message.replace("contents[1]", "-") for message in seen["refusals"]] == [
        "plugin tabular: -: its rows have 3 fields, the run's 4",
        "plugin tabular: -: tabular rows are float32 [rows, fields] or [fields]",
        "- has format 'd' and extents [4]: expected a text, bytes, or uint8, int16 or float32 with at most 4 axes",
        "plugin tabular: -: tabular rows are float32 [rows, fields] or [fields]",
        "plugin tabular: -: field 1 of row 0 is not finite",
    ]
    assert seen["step"] == len(losses)
    with pytest.raises(ValueError, match=r"modalities\.tabular: no modality of this name is registered"):
        uform.Model.init_ram(uform.Executor.for_ram(threads=1), tmp_path / "run.safetensors")


@pytest.mark.xdist_group("plugins")
def test_a_modality_is_masked(tabular: Path, tmp_path: Path) -> None:
    """MASKED and JOINT cover a third party's columns as it says, with a ratio and a weight of its own."""
    seen = run_script(tabular, "covered_tables.py", str(tmp_path / "run.safetensors"))
    losses, one = seen["losses"], seen["one"]
    assert losses[0] == pytest.approx(1, abs=0.1)  # values normalised to a mean square of 1, guessed near 0
    assert losses[-1] < 0.2
    assert seen["again"] == losses[len(losses) // 2 :]
    assert one["tables"] == losses[0]
    assert one["total"] == pytest.approx(one["tables"], rel=1e-6)
    for name, value in one.items():
        assert seen["three devices"][name] == pytest.approx(value, rel=1e-4), name
        factor = 1 if name == "tables" else 2.5
        assert seen["heavier"][name] == pytest.approx(factor * value, rel=1e-4), name
    assert seen["weightless"]["tables"] == one["tables"]
    assert [seen["weightless"][name] for name in ("total", "head", "weight")] == [0, 0, 0]
    assert set(seen["uncovered"].values()) == {0}
    joint = seen["joint"]
    assert min(joint[name] for name in ("text", "contrastive", "head", "weight")) > 0
    total = joint["text"] + joint["contrastive"] + 0.5 * joint["tables"]
    assert joint["total"] == pytest.approx(total, rel=1e-6)
    assert seen["described"] == {"fields": 4, "mask_ratio": 0.5, "mask_weight": 1}
    assert [message.removeprefix("plugin tabular: ") for message in seen["refusals"]] == [
        "mask_ratio: at most 1, or negative for none, not 1.5",
        "taken",
    ]
    assert seen["embedded"]
