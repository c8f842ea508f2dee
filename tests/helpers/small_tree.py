"""A tree with the build's layout and next to nothing in it, a toolkit for its CUDA sources, programs put before PATH.

Everything is compiled for real but for `.cu` files, which a C++ compiler takes in nvcc's place.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tools.build.library import EXPORTS, LIBRARY
from tools.build.package import build_package

ROOT = Path(__file__).resolve().parents[2]

FILES = {
    "VERSION": "0.0.0\n",
    "uform/_ext/core/both.h": "int both();\n",
    "uform/_ext/core/one.h": "int one();\n",
    "uform/_ext/core/one.cpp": '#include "core/both.h"\n#include "core/one.h"\nint one() { return 1; }\n',
    "uform/_ext/core/two.cpp": '#include "core/both.h"\nint both() { return 2; }\n',
    "plugins/register.cpp": 'extern "C" int uform_three() { return 3; }\n',
    "uform/_ext/module.pyx": "def answer():\n    return 42\n",
}
CUDA_FILES = {
    "uform/_ext/vram/tile.cuh": "int tile();\n",
    "uform/_ext/vram/tile.cu": '#include "vram/tile.cuh"\nint tile() { return 4; }\n',
    "uform/_ext/vram/other.cu": "int other() { return 5; }\n",
}

# What the real nvcc knows and a C++ compiler does not.
NVCC = """#!/bin/sh
for part do
    shift
    case $part in
        -ccbin=* | --* | -gencode=* | -Xcompiler=* | -Werror=all-warnings) ;;
        *) set -- "$@" "$part" ;;
    esac
done
exec g++ -x c++ -fPIC "$@"
"""


def make_tree(root: Path, *, cuda: bool = False) -> Path:
    """Writes the files; `cuda` adds two kernels, one with a header."""
    for name, text in (FILES | (CUDA_FILES if cuda else {})).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / EXPORTS).parent.mkdir(parents=True)
    shutil.copy(ROOT / EXPORTS, root / EXPORTS)
    return root


def make_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def make_toolkit(home: Path, nvcc: str = NVCC) -> Path:
    """A folder that looks like a CUDA toolkit; answers its nvcc."""
    for name, text in [
        ("include/cuda_runtime.h", ""),
        ("include/cuda_runtime_api.h", "#define CUDART_VERSION  13020\n"),
        ("lib/libcudart_static.a", "!<arch>\n"),
    ]:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return make_program(home / "bin" / "nvcc", nvcc)


def make_cutlass(home: Path) -> Path:
    """A folder that looks like the CUTLASS headers; answers it."""
    header = home / "include" / "cutlass" / "version.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1\n")
    return home


def use_cuda(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes a toolkit and headers in `folder`: builds find them and no others."""
    make_toolkit(folder / "toolkit")
    make_cutlass(folder / "cutlass")
    find_cuda_in(monkeypatch, folder)


def find_cuda_in(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Builds find what `use_cuda` made there."""
    monkeypatch.setenv("CUDA_HOME", str(folder / "toolkit"))
    monkeypatch.setenv("CUTLASS_PATH", str(folder / "cutlass"))
    monkeypatch.setenv("UFORM_VRAM", "1")


def put_before_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def path_without(monkeypatch: pytest.MonkeyPatch, unwanted: str, folder: Path) -> None:
    """PATH becomes one folder with everything that it led to, but for one program."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name != unwanted and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))


def forget_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build's folder is the tree's own, whatever this run of the tests was given."""
    for name in ("UFORM_BUILD_CACHE", "UFORM_BUILD_JOBS", "UFORM_CORE", "UFORM_CUDA_ARCHS", "CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UFORM_VRAM", "0")


def build(root: Path) -> list[str]:
    """Builds a tree in place; answers what ran, by label."""
    lines: list[str] = []
    build_package(root, root, lines.append)
    ran = [match[1] for line in lines if (match := re.fullmatch(r"  (\S.*)", line))]
    assert (root / "uform" / "_ext" / LIBRARY).is_file()
    return ran
