"""After a change only what read the changed file is compiled again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.helpers.small_tree import build, find_cuda_in, forget_switches, make_tree, use_cuda
from third_party.finder import Cutlass, find_cuda
from tools.build.compilers import CudaCompiler, HostCompiler
from tools.build.jobs import Runner

LIBRARY = "libuform.so"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tree that has been built, and with the toolkit that built it."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as monkeypatch:
        forget_switches(monkeypatch)
        use_cuda(monkeypatch, folder)
        build(make_tree(folder / "tree", cuda=True))
    return folder


@pytest.fixture
def tree(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of its own: what was made stands wherever a tree lies."""
    tree = tmp_path / "tree"
    shutil.copytree(built / "tree", tree)
    forget_switches(monkeypatch)
    find_cuda_in(monkeypatch, built)
    assert build(tree) == []
    return tree


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("changed", "compiled"),
    [
        ("uform/_ext/core/one.h", ["uform/_ext/core/one.cpp"]),
        ("uform/_ext/core/both.h", ["uform/_ext/core/one.cpp", "uform/_ext/core/two.cpp"]),
        ("uform/_ext/core/two.cpp", ["uform/_ext/core/two.cpp"]),
        ("uform/_ext/vram/tile.cuh", ["uform/_ext/vram/tile.cu"]),
        ("uform/_ext/vram/other.cu", ["uform/_ext/vram/other.cu"]),
    ],
)
def test_a_change_compiles_what_includes_it(changed: str, compiled: list[str], tree: Path) -> None:
    append(tree / changed, "int added();\n")
    # The objects are as they were, byte for byte, so that nothing is linked.
    assert build(tree) == compiled
    assert build(tree) == []


def test_changed_objects_are_linked(tree: Path) -> None:
    (tree / "uform/_ext/vram/tile.cu").write_text('#include "vram/tile.cuh"\nint tile() { return 40; }\n')
    ran = build(tree)
    assert ran[:2] == ["uform/_ext/vram/tile.cu", LIBRARY]
    assert [label for label in ran[2:] if not label.startswith("module.")] == []


def test_a_change_of_a_module_leaves_the_library(tree: Path) -> None:
    append(tree / "uform/_ext/module.pyx", "def another():\n    return 43\n")
    ran = build(tree)
    assert ran[0] == "uform/_ext/module.pyx"
    assert [label for label in ran if label.endswith((".cpp", ".cu"))] == []
    assert LIBRARY not in ran


def test_a_new_source_is_compiled_and_linked(tree: Path) -> None:
    (tree / "uform/_ext/vram/new.cu").write_text("int new_kernel() { return 6; }\n")
    assert build(tree)[:2] == ["uform/_ext/vram/new.cu", LIBRARY]


def test_a_touched_file_compiles_nothing(tree: Path) -> None:
    for path in tree.rglob("*.h"):
        os.utime(path, (2_000_000_000, 2_000_000_000))
    assert build(tree) == []


def test_nvccs_own_list_of_headers(tmp_path: Path) -> None:
    toolkit = find_cuda(wheels=True)
    if toolkit is None:
        pytest.skip("no nvcc is installed")
    root = tmp_path / "tree"
    root.mkdir()
    (root / "inner.cuh").write_text("#pragma once\n")
    (root / "outer.cuh").write_text('#pragma once\n#include "inner.cuh"\n')
    (root / "with.cu").write_text('#include "outer.cuh"\n__global__ void with() {}\n')
    (root / "without.cu").write_text("__global__ void without() {}\n")
    build_folder = tmp_path / "build"
    host = HostCompiler(("g++",), "any", None, root)
    cuda = CudaCompiler(toolkit, Cutlass(tmp_path / "cutlass", "any"), host, ("90a",))
    jobs = [cuda.compile(Path(name), build_folder / f"{name}.o", []) for name in ("with.cu", "without.cu")]

    def run() -> list[str]:
        lines: list[str] = []
        Runner(root, build_folder, 2, lines.append).run(jobs)
        return [line.strip() for line in lines]

    assert run() == ["with.cu", "without.cu"]
    assert run() == []
    (root / "inner.cuh").write_text("#pragma once\n// changed\n")
    assert run() == ["with.cu"]
