"""Every switch of the build, in one place: the environment variables and what they mean."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class BuildError(Exception):
    """The build can not go on; the message says what to do."""


SANITIZERS = ("address", "undefined", "thread")
LEAST_ARCHITECTURE = 80


@dataclass(frozen=True)
class Switches:
    """What the caller asked for.

    Attributes:
        vram: `UFORM_VRAM`: True demands CUDA, False leaves it out, None takes it where nvcc is found.
        cuda_architectures: `UFORM_CUDA_ARCHS`, e.g. `80;90a`.
        cpu_flags: `UFORM_CPU_FLAGS`, added to every C++ source, e.g. `-march=native`; none keeps the wheel portable.
        sanitizers: `UFORM_SANITIZE`, e.g. `address,undefined` or `thread`, for the C++ test programs.
        strict: `UFORM_STRICT=1`: a warning about our sources is an error. tools/test builds so.
        jobs: `UFORM_BUILD_JOBS`, compilations at a time; by default one a core.
        core: `UFORM_CORE`, a libuform.so built elsewhere from this tree: then only the Cython modules are compiled.
        build_folder: `UFORM_BUILD_CACHE`, where objects are kept between builds, whichever tree they come from.
    """

    vram: bool | None
    cuda_architectures: tuple[str, ...]
    cpu_flags: tuple[str, ...]
    sanitizers: tuple[str, ...]
    strict: bool
    jobs: int
    core: Path | None
    build_folder: Path

    @classmethod
    def from_environment(cls, root: Path, environment: Mapping[str, str] = os.environ) -> Switches:
        """Reads the switches; an unknown value is a `BuildError` that names the variable."""
        return cls(
            vram=_parse_vram(environment.get("UFORM_VRAM", "")),
            cuda_architectures=_parse_architectures(environment.get("UFORM_CUDA_ARCHS", "")),
            cpu_flags=tuple(environment.get("UFORM_CPU_FLAGS", "").split()),
            sanitizers=parse_sanitizers(environment.get("UFORM_SANITIZE", "")),
            strict=_parse_strict(environment.get("UFORM_STRICT", "")),
            jobs=_parse_jobs(environment.get("UFORM_BUILD_JOBS", "")),
            core=_parse_core(environment.get("UFORM_CORE", "")),
            build_folder=Path(environment.get("UFORM_BUILD_CACHE") or root / "build").resolve(),
        )


def _parse_vram(text: str) -> bool | None:
    values = {"": None, "auto": None, "0": False, "1": True}
    if text not in values:
        raise BuildError(f"UFORM_VRAM={text}: expected 0, 1 or nothing")
    return values[text]


def _parse_architectures(text: str) -> tuple[str, ...]:
    architectures = tuple(dict.fromkeys(part for part in re.split(r"[;,\s]+", text) if part)) or ("90a",)
    for architecture in architectures:
        if not re.fullmatch(r"\d{2,3}[af]?", architecture):
            raise BuildError(f"UFORM_CUDA_ARCHS={text}: {architecture!r} is no architecture; expected e.g. 80;90a")
        if int(architecture.rstrip("af")) < LEAST_ARCHITECTURE:
            raise BuildError(
                f"UFORM_CUDA_ARCHS={text}: {architecture} is of GPUs before Ampere, which have not what the kernels "
                f"use; {LEAST_ARCHITECTURE} is the least"
            )
    return architectures


def parse_sanitizers(text: str) -> tuple[str, ...]:
    """Splits `address,undefined`; an unknown name, or thread beside address, is a `BuildError`."""
    sanitizers = tuple(sorted({part for part in re.split(r"[,\s]+", text) if part}))
    for sanitizer in sanitizers:
        if sanitizer not in SANITIZERS:
            raise BuildError(f"UFORM_SANITIZE={text}: {sanitizer!r} is none of {', '.join(SANITIZERS)}")
    if "thread" in sanitizers and "address" in sanitizers:
        raise BuildError(f"UFORM_SANITIZE={text}: thread and address exclude each other")
    return sanitizers


def _parse_strict(text: str) -> bool:
    if text not in ("", "0", "1"):
        raise BuildError(f"UFORM_STRICT={text}: expected 0, 1 or nothing")
    return text == "1"


def _parse_core(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text).resolve()
    if not path.is_file():
        raise BuildError(f"UFORM_CORE={text}: no such file")
    return path


def _parse_jobs(text: str) -> int:
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise BuildError(f"UFORM_BUILD_JOBS={text}: expected a count of at least 1")
    return int(text)
