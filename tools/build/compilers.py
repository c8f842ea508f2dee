"""The compilers and their flags: C++ for the core, nvcc for the kernels."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from third_party.finder import CudaToolkit, Cutlass
from tools.build.jobs import Job
from tools.build.switches import BuildError

INCLUDE_FOLDERS = ("uform/_ext/include", "uform/_ext", ".")
WARNINGS = ("-Wall", "-Wextra")
ERRORS = "-Werror"  # of a warning; a strict build's alone, for another compiler may warn of what ours does not
# g++ 12 sees an overlap inside std::string's operator+ that can not be (GCC bug 105651).
FALSE_ALARM = "-Wno-restrict"
OPTIMIZED = ("-O3", "-DNDEBUG")
# Without recovery: the first finding ends the program with a non-zero status, so a test can not overlook it.
SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-DUFORM_SANITIZED=1")

# ptxas notes that WGMMA instructions were serialized: the kernel is several times slower than written.
_PTXAS_FINDINGS = re.compile(r"\bC75(?:08|10|11|14)\b")


@dataclass(frozen=True)
class HostCompiler:
    """A compiler for C or C++ sources, and the linker.

    Attributes:
        command: e.g. `("g++",)`.
        version: its first line of `--version`, part of what identifies an object.
        cache: ccache's path, or None.
        root: the tree's root.
        strict: whether a warning ends a compilation. It does not decide what is made, and so is no part of an identity.
    """

    command: tuple[str, ...]
    version: str
    cache: str | None
    root: Path
    strict: bool = False

    def compile(
        self,
        source: Path,
        output: Path,
        flags: Sequence[str],
        *,
        includes: Sequence[Path] = (),
        system_includes: Sequence[Path] = (),
        identity: Sequence[str] = (),
    ) -> Job:
        """The job that makes one object.

        Args:
            source: relative to the root where it lies in the tree.
            output: the object.
            flags: decide the result, and must hold no path of this machine.
            includes: folders of headers that the build wrote.
            system_includes: folders of headers that are not ours; `identity` gives their versions.
            identity: what else decides the result.
        """
        depfile = output.with_suffix(".d")
        folders = [f"-I{folder}" for folder in includes]
        folders += [part for folder in system_includes for part in ("-isystem", str(folder))]
        judged = flags if self.strict else [flag for flag in flags if flag != ERRORS]
        command = (*self.command, *judged, *folders, "-MMD", "-MF", str(depfile), "-c", str(source), "-o", str(output))
        return Job(
            label=str(source),
            output=output,
            command=(self.cache, *command) if self.cache else command,
            inputs=(source,),
            identity=("compile", source.name, self.version, *flags, *identity),
            depfile=depfile,
            foreign=tuple(system_includes),
            environment=cache_environment(self.root),
        )

    def link(
        self,
        objects: Sequence[Path],
        output: Path,
        flags: Sequence[str],
        libraries: Sequence[str] = (),
        scripts: Sequence[Path] = (),
    ) -> Job:
        """The job that links objects into a shared library or a program.

        Args:
            objects: objects, archives and libraries that the build made.
            output: the product.
            flags: decide the result, and must hold no path of this machine.
            libraries: those of the machine.
            scripts: files that `flags` name.
        """
        return Job(
            label=output.name,
            output=output,
            command=(*self.command, *flags, *map(str, objects), *libraries, "-o", str(output)),
            inputs=(*objects, *scripts),
            identity=("link", self.version, *flags, *(Path(library).name for library in libraries)),
        )


@dataclass(frozen=True)
class CudaCompiler:
    """nvcc with the flags of our kernels.

    Attributes:
        toolkit: the CUDA toolkit.
        cutlass: the CUTLASS headers.
        host: the compiler that nvcc calls for host code.
        architectures: what was asked for, e.g. `("80", "90a")`.
    """

    toolkit: CudaToolkit
    cutlass: Cutlass
    host: HostCompiler
    architectures: tuple[str, ...]

    def architectures_of(self, source: Path) -> tuple[str, ...]:
        """What a source is compiled for: its name may end in the family it is written for.

        `_sm80` runs on every architecture asked for; a later family such as `_sm90` uses instructions that only the
        architecture's own form has: `90a`, where a plain `90` holds what later GPUs run as well.
        """
        suffix = re.search(r"_sm(\d+)$", source.stem)
        return self.architectures if suffix is None else self.architectures_of_family(suffix.group(1))

    def architectures_of_family(self, family: str) -> tuple[str, ...]:
        """Those asked for that run a family's kernels: e.g. `("90a",)` of `90`."""
        if family == "80":
            return self.architectures
        return tuple(one for one in self.architectures if one in (f"{family}a", f"{family}f"))

    def code_of(self, source: Path) -> list[str]:
        """The flags that say what a source is compiled for.

        Beside the code of each architecture stands the PTX of the newest that has no form of its own: GPUs later than
        all of them compile it when they load it.
        """
        architectures = self.architectures_of(source)
        flags = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in architectures]
        plain = [int(name) for name in architectures if name.isdecimal()]
        return [*flags, *(f"-gencode=arch=compute_{name},code=compute_{name}" for name in sorted(plain)[-1:])]

    def compile(self, source: Path, output: Path, flags: Sequence[str]) -> Job:
        """The job that makes one object of a `.cu` file; `flags` are those of the host code, too."""
        depfile = output.with_suffix(".d")
        architectures = self.architectures_of(source)
        ours = (
            "-std=c++20",
            *OPTIMIZED,
            *(("-Werror=all-warnings",) if self.host.strict else ()),
            "--expt-relaxed-constexpr",
            "-Xcompiler=-fPIC,-fvisibility=hidden," + ",".join((*WARNINGS, *((ERRORS,) if self.host.strict else ()))),
            f"--threads={min(len(architectures), os.cpu_count() or 1)}",
            *self.code_of(source),
            *flags,
        )
        command = (
            str(self.toolkit.nvcc),
            f"-ccbin={self.host.command[0]}",
            *ours,
            "-isystem",
            str(self.cutlass.include),
            *("-MMD", "-MF", str(depfile), "-c", str(source), "-o", str(output)),
        )
        return Job(
            label=str(source),
            output=output,
            command=(self.host.cache, *command) if self.host.cache else command,
            inputs=(source,),
            identity=(
                *("nvcc", str(source), self.toolkit.version, self.cutlass.version, self.host.version),
                *(flag for flag in ours if not flag.startswith(("--threads", "-Werror", "-Xcompiler"))),
            ),
            depfile=depfile,
            foreign=(self.toolkit.include.parent, self.cutlass.include),
            complaint=slow_kernel,
            environment=cache_environment(self.host.root),
        )


def slow_kernel(printed: str) -> str | None:
    """Answers why a kernel that compiled is not what was written, or None."""
    if _PTXAS_FINDINGS.search(printed):
        return "ptxas serialized WGMMA instructions (C7508 to C7514): the kernel would be several times slower"
    return None


def cache_environment(root: Path) -> dict[str, str]:
    """Lets ccache hit from another folder, such as the temporary one in which pip builds."""
    return {"CCACHE_BASEDIR": str(root), "CCACHE_NOHASHDIR": "1"}


def find_host_compiler(
    root: Path, cache: str | None, *, variable: str, names: Sequence[str], strict: bool = False
) -> HostCompiler:
    """The compiler of an environment variable, else the first of `names` on PATH."""
    command = shlex.split(os.environ.get(variable, "")) or [name for name in names if shutil.which(name)][:1]
    if not command or shutil.which(command[0]) is None:
        wanted = command[0] if command else " or ".join(names)
        raise BuildError(f"no compiler: {wanted} is not on PATH; install one, or name it in {variable}")
    asked = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise BuildError(f"{variable}: {' '.join(command)} --version failed: {asked.stderr.strip()}")
    return HostCompiler(tuple(command), asked.stdout.splitlines()[0], cache, root, strict)


def cxx_flags(cpu_flags: Sequence[str], *modes: str) -> tuple[str, ...]:
    """Flags of every C++ source of the core: hidden symbols, all warnings, the three include folders."""
    folders = tuple(f"-I{folder}" for folder in INCLUDE_FOLDERS)
    return (
        "-std=c++20",
        "-fPIC",
        "-fvisibility=hidden",
        "-pthread",
        *WARNINGS,
        ERRORS,
        FALSE_ALARM,
        *modes,
        *cpu_flags,
        *folders,
    )
