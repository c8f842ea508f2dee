"""Where a plugin's build finds what it compiles against."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def get_include() -> str:
    """The folder to give a C or C++ compiler: it holds `uform/uform.h` and `uform/plugin.h`."""
    return str(_PACKAGE / "_ext" / "include")


def get_cython_path() -> str:
    """The folder to give Cython as include path, so that `cimport uform._ext.plugin` is found.

    A package installed from a wheel is found without it. An editable install is not: there the import system finds the
    package through a hook that Cython does not ask.
    """
    return str(_PACKAGE.parent)
