"""Builds the C++ test programs (`tests/native/*.cpp`), each against a core compiled with sanitizers and without Python.

    python -m tools.build.native [-k] [NAME ...]        # UFORM_SANITIZE, by default address,undefined
    UFORM_SANITIZE=thread python -m tools.build.native

Besides the programs there is a sanitized `libuform.so`: with its folder as LD_LIBRARY_PATH and the sanitizer's runtime
preloaded, the Cython modules run on it. GEMM is our own there (`UFORM_SANITIZED`): a foreign BLAS is not instrumented.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from tools.build.compilers import SANITIZED, cxx_flags
from tools.build.jobs import Job, Runner, exclusive, report_to_stdout
from tools.build.library import LIBRARY, core_jobs, find_toolchain, link_library, object_path, sources, write_config
from tools.build.switches import BuildError, Switches

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "tests/native/*.cpp"
DEFAULT_SANITIZERS = ("address", "undefined")


def build_programs(
    root: Path = ROOT,
    names: Collection[str] = (),
    report: Callable[[str], None] = report_to_stdout,
    *,
    keep_going: bool = False,
) -> dict[str, Path]:
    """Compiles what changed.

    Args:
        root: the tree's root.
        names: the programs wanted, named like their sources; empty takes all.
        report: takes one line of progress.
        keep_going: leave out what does not compile, and build the programs that do without it.

    Returns:
        The programs by name.

    Raises:
        BuildError: a source does not compile, or there is no program of that name.
    """
    switches = dataclasses.replace(Switches.from_environment(root), vram=False)
    sanitizers = switches.sanitizers or DEFAULT_SANITIZERS
    folder = switches.build_folder / "sanitized" / "-".join(sanitizers)
    programs = {source.stem: source for source in sources(root, (PROGRAMS,))}
    unknown = set(names) - programs.keys()
    if unknown:
        raise BuildError(f"no program {', '.join(sorted(unknown))} in tests/native; there are {', '.join(programs)}")
    with exclusive(switches.build_folder, report):
        toolchain = find_toolchain(root, switches)
        compiler = toolchain.cxx
        runner = Runner(root, switches.build_folder, switches.jobs, report)
        sanitize = f"-fsanitize={','.join(sanitizers)}"
        flags = cxx_flags(switches.cpu_flags, *SANITIZED, sanitize)
        config = write_config(folder, (root / "VERSION").read_text().strip(), toolchain, switches)
        core = core_jobs(root, folder, compiler, flags, config)
        mains = [
            compiler.compile(source, object_path(folder, source), flags, includes=(config,))
            for name, source in programs.items()
            if not names or name in names
        ]
        standing = runner.run(core + mains, keep_going=keep_going)
        core, mains = [job for job in core if job in standing], [job for job in mains if job in standing]
        objects = tuple(job.output for job in core)
        archive = folder / "libuform.a"
        runner.run([_archive(objects, archive)])
        links = [
            compiler.link([main.output, archive], folder / Path(main.label).stem, (sanitize, "-pthread"), ["-ldl"])
            for main in mains
        ]
        library = link_library(compiler, core, folder / LIBRARY, (sanitize,), ["-ldl"])
        linked = runner.run([*links, library], keep_going=keep_going)
        return {link.output.name: link.output for link in links if link in linked}


def _archive(objects: tuple[Path, ...], archive: Path) -> Job:
    names = (path.name for path in objects)
    command = ("ar", "rcsD", str(archive), *map(str, objects))
    return Job(archive.name, archive, command, inputs=objects, identity=("archive", *names))


def main() -> int:
    """Builds and prints the paths of the programs."""
    parser = argparse.ArgumentParser(description="Builds the C++ test programs against a sanitized core.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a program of tests/native, without .cpp; all by default"
    )
    parser.add_argument("-k", "--keep-going", action="store_true", help="leave out sources that do not compile")
    arguments = parser.parse_args()
    try:
        programs = build_programs(names=arguments.names, keep_going=arguments.keep_going)
    except BuildError as error:
        report_to_stdout(f"error: {error}")
        return 1
    for program in programs.values():
        report_to_stdout(str(program))
    return 0


if __name__ == "__main__":
    sys.exit(main())
