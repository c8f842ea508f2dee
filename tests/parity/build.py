"""Compiles `operations.pyx` as a plugin outside the tree would be: with `uform.build`, Cython and the C compiler."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np

from uform.build import get_cython_path, get_include

SOURCE = Path(__file__).with_name("operations.pyx")
BUILT = Path(__file__).resolve().parents[2] / "build" / "parity"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unused-parameter")


def load_operations() -> ModuleType:
    """The compiled module; compiles it first where a source, a header or Python has changed."""
    declarations = Path(get_cython_path()) / "uform" / "_ext" / "plugin.pxd"
    product = BUILT / _digest(declarations) / ("operations" + sysconfig.get_config_var("EXT_SUFFIX"))
    if not product.exists():
        _compile(declarations.parent, product)
    spec = importlib.util.spec_from_file_location("operations", product)
    if spec is None or spec.loader is None:
        raise ImportError(f"{product} is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _digest(declarations: Path) -> str:
    digest = hashlib.sha256(sys.version.encode())
    digest.update(str(declarations).encode())  # where the library lies is written into the module
    for path in (SOURCE, Path(__file__), declarations, *sorted(Path(get_include()).rglob("*.h"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(package: Path, product: Path) -> None:
    product.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=product.parent) as folder:
        translated, linked = Path(folder) / "operations.c", Path(folder) / product.name
        _run(
            *(sys.executable, "-m", "cython", "-3", "-Werror", "-I", get_cython_path()),
            *("-o", str(translated), str(SOURCE)),
        )
        _run(
            *(*shlex.split(os.environ.get("CC", "gcc")), "-shared", "-fPIC", "-O2", "-pthread", *WARNINGS),
            "-DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION",
            *("-isystem", sysconfig.get_path("include"), "-isystem", np.get_include(), "-I", get_include()),
            *(str(translated), str(package / "libuform.so"), f"-Wl,-rpath,{package}", "-o", str(linked)),
        )
        linked.replace(product)  # at once: other test processes may look for it


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
