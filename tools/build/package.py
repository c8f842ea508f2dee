"""Builds what the package ships beside its Python: the library and the modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools.build.extensions import PACKAGE, build_extensions
from tools.build.jobs import Runner, exclusive, replace_bytes, report_to_stdout
from tools.build.library import Toolchain, build_library, find_toolchain
from tools.build.switches import Switches


def build_package(root: Path, destination: Path, report: Callable[[str], None] = report_to_stdout) -> list[Path]:
    """Builds what changed and puts it under `destination/uform/_ext`.

    Args:
        root: the tree's root.
        destination: the root itself for a build in place, else the folder that becomes the wheel.
        report: takes one line of progress.

    Returns:
        The files, all rewritten only if their content changed.

    Raises:
        BuildError: a compiler is missing or a source does not compile.
    """
    switches = Switches.from_environment(root)
    with exclusive(switches.build_folder, report):
        toolchain = find_toolchain(root, switches)
        runner = Runner(root, switches.build_folder, switches.jobs, report)
        if switches.core:
            report(f"uform: the core is {switches.core}")
            library = switches.core
        else:
            report(_announce(toolchain))
            version = (root / "VERSION").read_text().strip()
            library = build_library(root, switches, toolchain, version, runner)
        modules = build_extensions(root, switches, library, runner, toolchain.cxx.cache)
        target = destination / PACKAGE
        return [_install(product, target / product.name) for product in (library, *modules)]


def _announce(toolchain: Toolchain) -> str:
    if toolchain.cuda is None:
        return f"uform: RAM-only build ({toolchain.ram_only})"
    cuda = toolchain.cuda
    names = ", ".join(cuda.architectures)
    return f"uform: RAM and VRAM build (CUDA {cuda.toolkit.version}, CUTLASS {cuda.cutlass.version}, for {names})"


def _install(product: Path, target: Path) -> Path:
    content = product.read_bytes()
    if not target.exists() or target.read_bytes() != content:
        replace_bytes(target, content, 0o755)
    return target
