"""libuform.so: the core, the RAM and VRAM operations and the first-party plugins in one library without Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from third_party.finder import find_ccache, find_cuda, find_cutlass
from tools.build.compilers import (
    INCLUDE_FOLDERS,
    OPTIMIZED,
    CudaCompiler,
    HostCompiler,
    cxx_flags,
    find_host_compiler,
)
from tools.build.jobs import Job, Runner, replace_text
from tools.build.switches import BuildError, Switches

LIBRARY = "libuform.so"
EXPORTS = Path("tools/build/exports.map")
CORE_SOURCES = (
    "uform/_ext/core/**/*.cpp",
    "uform/_ext/ram/**/*.cpp",
    "plugins/register.cpp",
    "plugins/*/*/*.cpp",
)
VRAM_HOST_SOURCES = ("uform/_ext/vram/**/*.cpp",)
VRAM_SOURCES = ("uform/_ext/vram/**/*.cu", "plugins/*/*/*.cu")


@dataclass(frozen=True)
class Toolchain:
    """What a build uses.

    Attributes:
        cxx: the C++ compiler and linker.
        cuda: nvcc and CUTLASS, or None for a build that is RAM-only.
        ram_only: why it is RAM-only, in a few words; empty with CUDA.
    """

    cxx: HostCompiler
    cuda: CudaCompiler | None
    ram_only: str


def find_toolchain(root: Path, switches: Switches) -> Toolchain:
    """Decides once what is compiled, and with what; a demanded part that is missing is a `BuildError`."""
    cxx = find_host_compiler(root, find_ccache(), variable="CXX", names=("g++", "clang++"), strict=switches.strict)
    missing = _missing_for_vram(root, switches)
    if missing:
        if switches.vram:
            raise BuildError(f"UFORM_VRAM=1, but {missing}")
        return Toolchain(cxx, None, missing)
    toolkit, cutlass = find_cuda(wheels=switches.vram is True), find_cutlass()
    if toolkit is None or cutlass is None:
        raise BuildError("the CUDA toolkit vanished while the build looked for it")
    return Toolchain(cxx, CudaCompiler(toolkit, cutlass, cxx, switches.cuda_architectures), "")


def _missing_for_vram(root: Path, switches: Switches) -> str:
    if switches.vram is False:
        return "UFORM_VRAM=0"
    if not sources(root, VRAM_SOURCES):
        return "the tree holds no CUDA source"
    if find_cuda(wheels=switches.vram is True) is None:
        return "nvcc was not found on PATH or under CUDA_HOME"
    if find_cutlass() is None:
        return "the CUTLASS headers were not found: install nvidia-cutlass, or set CUTLASS_PATH"
    return ""


def sources(root: Path, patterns: Sequence[str]) -> list[Path]:
    """The sources that match, relative to the root, in a fixed order."""
    return sorted({path.relative_to(root) for pattern in patterns for path in root.glob(pattern)})


def build_library(root: Path, switches: Switches, toolchain: Toolchain, version: str, runner: Runner) -> Path:
    """Compiles what changed and links `libuform.so`; answers where it lies."""
    folder = switches.build_folder / ("vram" if toolchain.cuda else "ram")
    config = write_config(folder, version, toolchain, switches)
    # The kernels come first: they take the longest.
    jobs = _vram_jobs(root, folder, switches, toolchain.cuda) if toolchain.cuda else []
    jobs += core_jobs(
        root, folder, toolchain.cxx, cxx_flags(switches.cpu_flags, *OPTIMIZED, *defines(toolchain)), config
    )
    runner.run(jobs)
    runtime = [str(toolchain.cuda.toolkit.library / "libcudart_static.a"), "-lrt"] if toolchain.cuda else []
    # Nothing may be left undefined: a missing function is an error here, not at the first call.
    link = link_library(toolchain.cxx, jobs, folder / LIBRARY, ("-Wl,-z,defs",), [*runtime, "-ldl"])
    runner.run([link])
    return link.output


def link_library(
    compiler: HostCompiler, jobs: Sequence[Job], library: Path, flags: Sequence[str], libraries: Sequence[str]
) -> Job:
    """The job that links the shared library, which exports the C API alone."""
    shared = ("-shared", "-pthread", f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script={EXPORTS}")
    return compiler.link([job.output for job in jobs], library, (*shared, *flags), libraries, scripts=(EXPORTS,))


def core_jobs(root: Path, folder: Path, compiler: HostCompiler, flags: Sequence[str], config: Path) -> list[Job]:
    """The compilations of all that needs no CUDA; `config` is the folder of the written header."""
    core = sources(root, CORE_SOURCES)
    if not core:
        raise BuildError("the tree holds no source of the core")
    return [compiler.compile(source, object_path(folder, source), flags, includes=(config,)) for source in core]


def _vram_jobs(root: Path, folder: Path, switches: Switches, cuda: CudaCompiler) -> list[Job]:
    macros = vram_defines(cuda)
    device_flags = (*macros, *(f"-I{include}" for include in INCLUDE_FOLDERS))
    host_flags = cxx_flags(switches.cpu_flags, *OPTIMIZED, *macros)
    kernels = [
        cuda.compile(source, object_path(folder, source), device_flags)
        for source in sources(root, VRAM_SOURCES)
        if cuda.architectures_of(source)
    ]
    launchers = [
        cuda.host.compile(
            source,
            object_path(folder, source),
            host_flags,
            system_includes=(cuda.toolkit.include,),
            identity=(cuda.toolkit.version,),
        )
        for source in sources(root, VRAM_HOST_SOURCES)
    ]
    return kernels + launchers


def vram_library_objects(root: Path, folder: Path, cuda: CudaCompiler) -> list[Path]:
    """The objects of the library with VRAM: those of sources that are gone may still lie beside them."""
    kernels = [source for source in sources(root, VRAM_SOURCES) if cuda.architectures_of(source)]
    return [object_path(folder, source) for source in (*kernels, *sources(root, (*VRAM_HOST_SOURCES, *CORE_SOURCES)))]


def write_config(folder: Path, version: str, toolchain: Toolchain, switches: Switches) -> Path:
    """Writes `uform_build_config.h`, from which the library tells how it was built; answers its folder."""
    cuda = toolchain.cuda
    config = {
        "version": version,
        "compiler": toolchain.cxx.version,
        "cpu_flags": list(switches.cpu_flags),
        "vram": cuda is not None,
        "cuda": cuda.toolkit.version if cuda else "",
        "cutlass": cuda.cutlass.version if cuda else "",
        "cuda_architectures": list(cuda.architectures) if cuda else [],
    }
    # A JSON string of ASCII characters is a C string, too.
    text = "/* Written by the build. */\n#pragma once\n"
    text += f"#define UFORM_VERSION_STRING {json.dumps(version)}\n"
    text += f"#define UFORM_BUILD_CONFIG {json.dumps(json.dumps(config))}\n"
    header = folder / "include" / "uform_build_config.h"
    if not header.exists() or header.read_text() != text:
        replace_text(header, text)
    return header.parent


def defines(toolchain: Toolchain) -> list[str]:
    """What the sources may ask of the preprocessor."""
    return vram_defines(toolchain.cuda) if toolchain.cuda else []


def vram_defines(cuda: CudaCompiler) -> list[str]:
    """What the sources may ask: that there is VRAM, and whether Hopper's own kernels are there (`UFORM_WITH_SM90`)."""
    return ["-DUFORM_WITH_VRAM=1", *(["-DUFORM_WITH_SM90=1"] if cuda.architectures_of_family("90") else [])]


def object_path(folder: Path, source: Path) -> Path:
    """The object of a source: the same path under the folder of this kind of build."""
    return folder / "objects" / source.with_name(source.name + ".o")
