"""The Cython modules: translated to C, compiled, linked to libuform.so which lies beside them."""

from __future__ import annotations

import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

from tools.build.compilers import OPTIMIZED, WARNINGS, HostCompiler, find_host_compiler
from tools.build.jobs import Job, Runner
from tools.build.library import sources
from tools.build.switches import BuildError, Switches

PACKAGE = "uform/_ext"
# What Cython generates and we can not change: helpers that a module does not use, parameters that a slot does not need.
GENERATED_CODE = (
    "-Wno-unused-function",
    "-Wno-unused-parameter",
    "-Wno-unused-variable",
    "-Wno-missing-field-initializers",
    "-Wno-cast-function-type",
    "-Wno-sign-compare",
    "-Wno-deprecated-declarations",
)


def build_extensions(root: Path, switches: Switches, library: Path, runner: Runner, cache: str | None) -> list[Path]:
    """Builds every module of `uform/_ext/*.pyx` against the library; answers where they lie, named for this Python.

    Raises:
        BuildError: a source does not compile, or this Python is free-threaded.
    """
    refuse_free_threading()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    folder = switches.build_folder / ("modules" + suffix.removesuffix(".so"))
    compiler = find_host_compiler(root, cache, variable="CC", names=("gcc", "cc", "clang"))
    modules = sources(root, (f"{PACKAGE}/*.pyx",))
    runner.run([_translate(root, source, folder) for source in modules])
    runner.run([_compile(compiler, source, folder) for source in modules])
    products = [folder / (source.stem + suffix) for source in modules]
    # "The library's folder is where the module is": nothing depends on where the package is installed.
    beside = ("-shared", "-Wl,-rpath,$ORIGIN")
    runner.run(
        [
            compiler.link([_object_of(folder, source), library], product, beside)
            for source, product in zip(modules, products, strict=True)
        ]
    )
    return products


def refuse_free_threading() -> None:
    """The GIL guards an executor's turns and the counts of an arena's views: without it they would be lost silently."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError(
            f"{sys.executable} is a free-threaded Python: uform's modules rely on the GIL, which they release while "
            "they compute; build for a Python that has it"
        )


def _translate(root: Path, source: Path, folder: Path) -> Job:
    """Cython to C. Any declaration file may be used by any module, so all of them count as read."""
    declarations = sources(root, (f"{PACKAGE}/**/*.pxd", f"{PACKAGE}/*.pxi"))
    output = folder / (source.stem + ".c")
    name = ".".join(source.with_suffix("").parts)
    flags = ("-3", "-Werror", "--module-name", name)
    return Job(
        label=str(source),
        output=output,
        command=(sys.executable, "-m", "cython", *flags, "-I", ".", "-o", str(output), str(source)),
        inputs=(source, *declarations),
        identity=("cython", version("Cython"), str(source), *flags),
        complaint=_cython_warning,
    )


def _cython_warning(printed: str) -> str | None:
    return "Cython warned, and warnings are errors" if "warning:" in printed else None


def _compile(compiler: HostCompiler, source: Path, folder: Path) -> Job:
    flags = ("-fPIC", "-fvisibility=hidden", *WARNINGS, *GENERATED_CODE, *OPTIMIZED, f"-I{PACKAGE}/include")
    return compiler.compile(
        folder / (source.stem + ".c"),
        _object_of(folder, source),
        flags,
        system_includes=(Path(sysconfig.get_path("include")),),
        identity=(sys.version,),
    )


def _object_of(folder: Path, source: Path) -> Path:
    return folder / (source.stem + ".o")
