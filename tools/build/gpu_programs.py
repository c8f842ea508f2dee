"""Builds the GPU test programs (`tests/gpu/native/*.cu`), each against the objects of the library with VRAM.

    python -m tools.build.gpu_programs [--output FOLDER]

A program needs nothing but a driver where it runs, so it may be built on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tools.build.compilers import INCLUDE_FOLDERS
from tools.build.jobs import Runner, exclusive, report_to_stdout
from tools.build.library import build_library, find_toolchain, object_path, sources, vram_defines, vram_library_objects
from tools.build.switches import BuildError, Switches

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "tests/gpu/native/*.cu"


def build_gpu_programs(
    root: Path = ROOT, output: Path | None = None, report: Callable[[str], None] = report_to_stdout
) -> dict[str, Path]:
    """Compiles what changed.

    Args:
        root: the tree's root.
        output: where the programs go; by default beside the library's objects.
        report: takes one line of progress.

    Returns:
        The programs by name.

    Raises:
        BuildError: nvcc is missing, or a source does not compile.
    """
    switches = Switches.from_environment(root)
    with exclusive(switches.build_folder, report):
        toolchain = find_toolchain(root, switches)
        cuda = toolchain.cuda
        if cuda is None:
            raise BuildError(f"the GPU programs need nvcc and CUTLASS: {toolchain.ram_only}")
        runner = Runner(root, switches.build_folder, switches.jobs, report)
        library = build_library(root, switches, toolchain, (root / "VERSION").read_text().strip(), runner)
        folder = library.parent
        flags = (*vram_defines(cuda), *(f"-I{include}" for include in INCLUDE_FOLDERS))
        mains = [cuda.compile(source, object_path(folder, source), flags) for source in sources(root, (PROGRAMS,))]
        runner.run(mains)
        objects = vram_library_objects(root, folder, cuda)
        # The C++ runtime of the machine that builds may be newer than that of the machine with the GPU.
        libraries = [str(cuda.toolkit.library / "libcudart_static.a"), "-lrt", "-ldl"]
        target = output or folder / "gpu"
        links = [
            toolchain.cxx.link(
                [main.output, *objects],
                target / Path(main.label).stem,
                ("-pthread", "-static-libstdc++", "-static-libgcc"),
                libraries,
            )
            for main in mains
        ]
        runner.run(links)
        return {link.output.name: link.output for link in links}


def main() -> int:
    """Builds and prints the paths of the programs."""
    parser = argparse.ArgumentParser(description="Builds the GPU test programs.")
    parser.add_argument("--output", type=Path, help="the folder that the programs go to")
    arguments = parser.parse_args()
    try:
        programs = build_gpu_programs(output=arguments.output)
    except BuildError as error:
        report_to_stdout(f"error: {error}")
        return 1
    for program in programs.values():
        report_to_stdout(str(program))
    return 0


if __name__ == "__main__":
    sys.exit(main())
