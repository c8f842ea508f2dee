# cython: language_level=3, annotation_typing=False
"""How the library was built, and what it found in this process."""

from uform._ext.c_api cimport (
    uform_build_config,
    uform_gpus,
    uform_last_error,
    uform_status_success_k,
    uform_status_t,
    uform_string_free,
    uform_version,
)

import importlib.metadata
import json

from uform._ext.executor import find_blas


def version() -> str:
    """The library's version, as in "0.1.0"."""
    return uform_version().decode()


def show_config() -> dict[str, Any]:
    """How the library was built, and what this process has of what it runs on.

    It opens the GPUs' driver, which a child of fork cannot use then; no context is made and no memory taken.

    Returns:
        Of the build `version`, `compiler`, `cpu_flags`, `vram` (whether that backend is in), and with it `cuda`,
        `cutlass` and `cuda_architectures`; of the process `blas`, which RAM executors open; `nccl`, the version of
        its PyPI wheel, or ""; `gpus`, each with `index`, `name`, `compute_capability` and `memory_bytes`; and
        `no_gpus`, the reason where there are none, else "".
    """
    gpus, reason = _gpus()
    return {
        **json.loads(uform_build_config()),
        "blas": find_blas() or "plain",
        "nccl": _find_nccl(),
        "gpus": gpus,
        "no_gpus": reason,
    }


def _gpus() -> tuple[list[dict[str, Any]], str]:
    cdef char* text = NULL
    cdef uform_status_t status
    with nogil:
        status = uform_gpus(&text)
    if status != uform_status_success_k:
        return [], uform_last_error().decode("utf-8", "replace")
    try:
        return json.loads(text), ""
    finally:
        uform_string_free(text)


def _find_nccl() -> str:
    for wheel in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            return importlib.metadata.version(wheel)
        except importlib.metadata.PackageNotFoundError:
            pass
    return ""
