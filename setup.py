"""The build, as setuptools sees it: our own compilation (`tools/build`) in the place of its extension modules."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import ExecError

ROOT = Path(__file__).resolve().parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.build.package import build_package  # noqa: E402 - found through the line above
from tools.build.switches import BuildError  # noqa: E402


class NativeDistribution(Distribution):
    """Holds compiled files, although it lists no extension module of setuptools' own kind."""

    def has_ext_modules(self) -> bool:
        """Makes the wheel one of a platform, and `build` call `build_ext`."""
        return True


class NativeBuild(build_ext):
    """Builds the library and the modules, in place or into the wheel."""

    def run(self) -> None:
        """Compiles what changed; a failure is one sentence below the compiler's own output."""
        destination = ROOT if self.inplace else Path(self.build_lib)
        try:
            self._products = build_package(ROOT, destination)
        except BuildError as error:
            raise ExecError(str(error)) from error

    def get_outputs(self) -> list[str]:
        """The files made; for an editable install, as if they had been built for a wheel."""
        return sorted(self.get_output_mapping()) if self.inplace else [str(path) for path in self._products]

    def get_output_mapping(self) -> dict[str, str]:
        """From the name in a wheel to the file in the tree, which an editable install asks for."""
        if not self.inplace:
            return {}
        names = [path.relative_to(ROOT) for path in self._products]
        return {str(Path(self.build_lib) / name): str(ROOT / name) for name in names}

    def get_source_files(self) -> list[str]:
        """Nothing: MANIFEST.in lists what a source archive holds."""
        return []


class FreshPython(build_py):
    """Collects the Python files into an empty folder: setuptools itself would ship what an earlier build left there."""

    def run(self) -> None:
        """Runs before `build_ext` adds the library and the modules."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


def plugin_packages() -> list[str]:
    """The Python parts of the plugins: `plugins/modalities/image` is `uform_plugins.modalities.image`."""
    folders = {path.parent.relative_to(ROOT / "plugins") for path in (ROOT / "plugins").glob("**/*.py")}
    packages = {folder for leaf in folders for folder in (leaf, *leaf.parents)}
    return sorted(".".join(("uform_plugins", *folder.parts)) for folder in packages)


setup(
    distclass=NativeDistribution,
    cmdclass={"build_ext": NativeBuild, "build_py": FreshPython},
    packages=[*find_packages(str(ROOT), include=["uform", "uform.*"]), *plugin_packages()],
    package_dir={"uform": "uform", "uform_plugins": "plugins"},
    package_data={
        "uform": ["py.typed", "*.pyi"],
        "uform._ext": ["*.pyx", "*.pxd", "*.pyi", "include/uform/*.h"],
    },
    exclude_package_data={"uform._ext": ["*.so"]},
)
