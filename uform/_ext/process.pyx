# cython: language_level=3, annotation_typing=False
"""How the library was built, and what it found in this process."""

from uform._ext.c_api cimport uform_build_config, uform_version

import json

from uform._ext.executor import find_blas


def version() -> str:
    """The library's version, as in "0.1.0"."""
    return uform_version().decode()


def show_config() -> dict[str, Any]:
    """How the library was built (version, compiler, whether VRAM is in), and the `blas` that RAM executors open."""
    return {**json.loads(uform_build_config()), "blas": find_blas() or "plain"}
