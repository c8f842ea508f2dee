"""The source archive and the wheel: both install into a fresh environment and work there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("native")]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Runs a command, and answers what it printed; a failure shows it."""
    finished = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "UFORM_BUILD_CACHE": str(ROOT / "build"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-8000:]
    return finished.stdout


def pip(*arguments: str | Path, cwd: Path) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    # From a copy: setuptools writes beside the sources, which other tests are reading.
    tree = folder / "tree"
    unwanted = shutil.ignore_patterns("build", ".*", "*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, tree, ignore=lambda path, names: unwanted(path, names) if Path(path) == ROOT else set())
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ".", cwd=tree)
    return next(folder.glob("uform-*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sdist, cwd=folder)
    return next(folder.glob("uform-*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel; what the wheel depends on is lent by ours."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=folder)
    site = next((folder / "lib").glob("python3*")) / "site-packages"
    # A path that a .pth names is searched, but its own .pth files are not run: our editable install stays outside.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_sdist_holds_the_sources_and_nothing_built(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "LICENSE",
        "VERSION",
        "setup.py",
        "uform/build.py",
        "uform/_ext/include/uform/uform.h",
        "uform/_ext/core/error.h",
        "plugins/register.cpp",
        "third_party/manifest.toml",
        "tools/build/backend.py",
        "tools/test",
        "tests/build/test_packaging.py",
    ):
        assert name in names
    assert [name for name in names if name.endswith((".so", ".o", ".pyc")) or name.startswith("build/")] == []


def test_wheel_holds_the_library_the_headers_and_the_declarations(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for name in (
        "uform/py.typed",
        "uform/build.py",
        "uform/_ext/libuform.so",
        "uform/_ext/include/uform/uform.h",
        "uform/_ext/include/uform/plugin.h",
    ):
        assert name in names
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for source in (ROOT / "uform" / "_ext").glob("*.pyx"):
        assert f"uform/_ext/{source.stem}{suffix}" in names
    for source in (ROOT / "uform" / "_ext").glob("*.p[xy][di]"):
        assert f"uform/_ext/{source.name}" in names
    for source in (ROOT / "plugins").glob("*/*/*.py"):
        assert f"uform_plugins/{source.relative_to(ROOT / 'plugins')}" in names
    assert [name for name in names if name.endswith((".cpp", ".cu", ".c"))] == []
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"uform", "uform_plugins"}


def test_installed_package_imports_from_its_own_folder(environment: Path, tmp_path: Path) -> None:
    script = "import uform, uform.build; print(uform.__file__); print(uform.get_include()); print(uform.__version__)"
    module, include, version = run(environment, "-c", script, cwd=tmp_path, PYTHONPATH="").splitlines()
    assert Path(module).is_relative_to(environment.parents[1])
    assert Path(include).is_relative_to(environment.parents[1])
    assert version == (ROOT / "VERSION").read_text().strip()
    assert (Path(include) / "uform" / "uform.h").is_file()


def test_foreign_cython_finds_the_declarations(environment: Path, tmp_path: Path) -> None:
    declarations = sorted(path.stem for path in (ROOT / "uform" / "_ext").glob("*.pxd"))
    assert declarations
    lines = [f"cimport uform._ext.{name}" for name in declarations]
    (tmp_path / "foreign.pyx").write_text("\n".join(lines) + "\n")
    # Installed from a wheel nothing has to be said; from the tree, or an editable install, the path has.
    run(environment, "-m", "cython", "-3", "foreign.pyx", cwd=tmp_path, PYTHONPATH="")
    path = run(sys.executable, "-c", "import uform; print(uform.get_cython_path(), end='')", cwd=ROOT)
    run(sys.executable, "-m", "cython", "-3", "-I", path, "foreign.pyx", cwd=tmp_path, PYTHONPATH="")


def test_c_program_compiles_and_links_against_the_installed_package(environment: Path, tmp_path: Path) -> None:
    include = Path(run(environment, "-c", "import uform; print(uform.get_include(), end='')", cwd=tmp_path))
    program = tmp_path / "program.c"
    # Each header twice: they are C, and guarded.
    program.write_text(
        "#include <uform/uform.h>\n#include <uform/uform.h>\n#include <uform/plugin.h>\n#include <uform/plugin.h>\n"
        "#include <stdio.h>\nint main(void) { return puts(uform_version()) < 0; }\n"
    )
    library = include.parent / "libuform.so"
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{include}")
    run("cc", *flags, program, library, f"-Wl,-rpath,{library.parent}", "-o", tmp_path / "program", cwd=tmp_path)
    assert run(tmp_path / "program", cwd=tmp_path).strip() == (ROOT / "VERSION").read_text().strip()


def test_library_exports_the_c_api_alone(environment: Path, tmp_path: Path) -> None:
    include = Path(run(environment, "-c", "import uform; print(uform.get_include(), end='')", cwd=tmp_path))
    listed = run("nm", "-D", "--defined-only", include.parent / "libuform.so", cwd=tmp_path)
    names = [line.split()[-1] for line in listed.splitlines()]
    assert names
    assert [name for name in names if not name.startswith("uform_")] == []
    # Python is the modules' matter: a C program can use the library alone.
    needed = run("readelf", "-d", include.parent / "libuform.so", cwd=tmp_path)
    assert "libpython" not in needed
    assert "RPATH" not in needed
    assert "RUNPATH" not in needed
