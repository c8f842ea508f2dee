"""The build backend: setuptools', which also asks for the CUDA compiler and CUTLASS where this build needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from third_party.finder import CUDA_WHEELS, CUTLASS_WHEEL, find_cuda, find_cutlass
from tools.build.library import VRAM_SOURCES, sources
from tools.build.switches import Switches

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_ROOT = Path(__file__).resolve().parents[2]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What pip installs into the build's own environment, beside `build-system.requires`."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *vram_requirements()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """The same as for a wheel."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *vram_requirements()]


def vram_requirements() -> list[str]:
    """The CUDA wheels where `UFORM_VRAM=1` and no toolkit is installed, CUTLASS wherever kernels will be compiled."""
    switches = Switches.from_environment(_ROOT)
    if switches.vram is False or not sources(_ROOT, VRAM_SOURCES):
        return []
    toolkit = find_cuda(wheels=switches.vram is True)
    if toolkit is None and not switches.vram:
        return []
    return [*(CUDA_WHEELS if toolkit is None else ()), *([CUTLASS_WHEEL] if find_cutlass() is None else [])]
