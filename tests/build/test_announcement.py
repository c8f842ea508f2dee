"""The one line in which the build says what it makes: RAM alone, and why, or VRAM as well."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.small_tree import forget_switches, make_cutlass, make_toolkit, make_tree
from third_party.finder import Cutlass
from tools.build import package
from tools.build.package import build_package
from tools.build.switches import BuildError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A tree with kernels on a machine without a toolkit or CUTLASS, whose build compiles nothing."""
    forget_switches(monkeypatch)
    for name in ("CUDA_HOME", "CUDA_PATH", "CUTLASS_PATH", "UFORM_VRAM"):
        monkeypatch.delenv(name, raising=False)
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **rest: None if name == "nvcc" else found(name, **rest))
    monkeypatch.setattr("tools.build.library.find_cutlass", lambda: None)
    monkeypatch.setattr(package, "build_library", lambda root, *rest: root / "VERSION")
    monkeypatch.setattr(package, "build_extensions", lambda *rest: [])
    return make_tree(tmp_path / "tree", cuda=True)


def lines_of(root: Path) -> list[str]:
    lines: list[str] = []
    build_package(root, root, lines.append)
    return lines


def test_without_nvcc_it_is_ram_only(bare: Path) -> None:
    assert lines_of(bare) == ["uform: RAM-only build (nvcc was not found on PATH or under CUDA_HOME)"]


def test_turned_off_it_is_ram_only(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_toolkit(bare.parent / "toolkit")
    monkeypatch.setenv("CUDA_HOME", str(bare.parent / "toolkit"))
    monkeypatch.setenv("UFORM_VRAM", "0")
    assert lines_of(bare) == ["uform: RAM-only build (UFORM_VRAM=0)"]


def test_without_cutlass_it_is_ram_only(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_toolkit(bare.parent / "toolkit")
    monkeypatch.setenv("CUDA_HOME", str(bare.parent / "toolkit"))
    (line,) = lines_of(bare)
    assert line.startswith("uform: RAM-only build (the CUTLASS headers were not found: install nvidia-cutlass")


@pytest.mark.parametrize("missing", ["nvcc", "CUTLASS"])
def test_demanded_it_is_no_line_but_an_error(bare: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = None if missing == "nvcc" else make_toolkit(bare.parent / "toolkit")
    monkeypatch.setattr("tools.build.library.find_cuda", lambda *, wheels: found)
    monkeypatch.setenv("UFORM_VRAM", "1")
    lines: list[str] = []
    with pytest.raises(BuildError, match=f"UFORM_VRAM=1, but .*{missing}"):
        build_package(bare, bare, lines.append)
    assert lines == []


def test_with_both_it_is_vram_as_well(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_toolkit(bare.parent / "toolkit")
    monkeypatch.setenv("CUDA_HOME", str(bare.parent / "toolkit"))
    cutlass = Cutlass(make_cutlass(bare.parent / "cutlass") / "include", "4.2.1")
    monkeypatch.setattr("tools.build.library.find_cutlass", lambda: cutlass)
    assert lines_of(bare) == ["uform: RAM and VRAM build (CUDA 13.2, CUTLASS 4.2.1, for 90a)"]
