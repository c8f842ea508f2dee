"""Finds what the build takes from outside: the CUDA compiler, the CUTLASS headers, ccache.

Looks only at what is installed: nothing is downloaded here. Versions and licences are in `manifest.toml`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

# What a build asks of the package index where `UFORM_VRAM=1` and no toolkit is installed: parts of one release.
CUDA_WHEELS = (
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
    "nvidia-nvtx==13.0.*",
)
CUTLASS_WHEEL = "nvidia-cutlass==4.2.*"


@dataclass(frozen=True)
class CudaToolkit:
    """An installed CUDA toolkit.

    Attributes:
        nvcc: the compiler driver.
        include: folder of `cuda_runtime.h`.
        library: folder of `libcudart_static.a`.
        version: e.g. `13.0`, as `cuda.h` or the runtime header has it.
    """

    nvcc: Path
    include: Path
    library: Path
    version: str


@dataclass(frozen=True)
class Cutlass:
    """The CUTLASS headers.

    Attributes:
        include: folder of `cutlass/cutlass.h`.
        version: e.g. `4.2.0`.
    """

    include: Path
    version: str


def find_cuda(*, wheels: bool) -> CudaToolkit | None:
    """The first whole toolkit of: CUDA_HOME or CUDA_PATH, nvcc on PATH, and with `wheels` those of this Python."""
    for home in _installed_homes() + (_wheel_homes() if wheels else []):
        toolkit = _toolkit_at(home)
        if toolkit is not None:
            return toolkit
    return None


def find_cutlass() -> Cutlass | None:
    """The headers at CUTLASS_PATH, or inside the `nvidia-cutlass` wheel of this Python."""
    folders = [Path(os.environ["CUTLASS_PATH"]) / "include"] if os.environ.get("CUTLASS_PATH") else []
    # Found, not imported: importing the package would import its many dependencies.
    package = importlib.util.find_spec("cutlass_library")
    if package is not None and package.origin is not None:
        folders.append(Path(package.origin).parent / "source" / "include")
    for folder in folders:
        header = folder / "cutlass" / "version.h"
        if header.is_file():
            parts = [_macro(header, f"CUTLASS_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
            return Cutlass(folder, ".".join(str(part) for part in parts))
    return None


def find_ccache() -> str | None:
    """The compiler cache, where installed."""
    return shutil.which("ccache")


def _installed_homes() -> list[Path]:
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    if on_path is not None:
        homes.append(_home_of(Path(on_path)))
    return homes


def _wheel_homes() -> list[Path]:
    namespace = importlib.util.find_spec("nvidia")
    folders = namespace.submodule_search_locations if namespace else None
    return [home for folder in folders or () for home in sorted(Path(folder).glob("cu[0-9]*"), reverse=True)]


def _home_of(nvcc: Path) -> Path:
    """The toolkit's folder; an nvcc on PATH may be a link, or a script of one line that calls the real one."""
    nvcc = nvcc.resolve()
    with nvcc.open("rb") as file:
        start = file.read(4096)
    if start.startswith(b"#!"):
        target = re.search(rb"(/\S+/bin/nvcc)\b", start)
        if target is not None:
            nvcc = Path(os.fsdecode(target.group(1))).resolve()
    return nvcc.parent.parent


def _toolkit_at(home: Path) -> CudaToolkit | None:
    nvcc = home / "bin" / "nvcc"
    include = home / "include"
    if not os.access(nvcc, os.X_OK) or not (include / "cuda_runtime.h").is_file():
        return None
    for library in (home / "lib64", home / "lib", home / "targets" / "x86_64-linux" / "lib"):
        if (library / "libcudart_static.a").is_file():
            version = _macro(include / "cuda_runtime_api.h", "CUDART_VERSION")
            return CudaToolkit(nvcc, include, library, f"{version // 1000}.{version % 1000 // 10}")
    return None


def _macro(header: Path, name: str) -> int:
    value = re.search(rf"#\s*define\s+{name}\s+(\d+)", header.read_text(errors="replace"))
    if value is None:
        raise ValueError(f"{header} does not define {name}")
    return int(value.group(1))
