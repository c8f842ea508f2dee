"""Builds the CoSENT objective; its CUDA kernel where nvcc is on PATH."""

import shutil
import subprocess
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

import uform

NVCC = shutil.which("nvcc")
TARGETS = ("arch=compute_80,code=sm_80", "arch=compute_90,code=[sm_90,compute_90]")


class build_with_kernel(build_ext):  # noqa: N801 - setuptools names commands so
    """Hands what nvcc makes of the kernel to the linker."""

    def build_extension(self, ext: Extension) -> None:
        if NVCC is not None:
            Path(self.build_temp).mkdir(parents=True, exist_ok=True)
            kernel = str(Path(self.build_temp) / "kernel.o")
            targets = [flag for target in TARGETS for flag in ("-gencode", target)]
            command = [NVCC, "-O3", "-std=c++17", "-Xcompiler", "-fPIC", *targets, "-c", "kernel.cu", "-o", kernel]
            subprocess.run(command, check=True)
            ext.extra_objects = [kernel, str(find_runtime(NVCC))]
        super().build_extension(ext)


def find_runtime(nvcc: str) -> Path:
    """The CUDA runtime to link in, so that nothing of it is needed where the package runs but the driver."""
    printed = subprocess.run([nvcc, "--dryrun", "kernel.cu"], capture_output=True, text=True, check=True).stderr
    top = next(line.split("=", 1)[1] for line in printed.splitlines() if line.startswith("#$ TOP="))
    found = [path for folder in ("lib64", "lib") for path in Path(top).glob(f"{folder}/libcudart_static.a")]
    found += Path(top).glob("targets/*/lib/libcudart_static.a")
    if not found:
        raise SystemExit(f"no libcudart_static.a under {top}, where nvcc has its toolkit")
    return found[0]


extension = Extension(
    "uform_cosent",
    ["uform_cosent.pyx"] + ([] if NVCC else ["no_kernel.c"]),
    include_dirs=[uform.get_include(), "."],
    libraries=["rt", "dl", "pthread", "stdc++"] if NVCC else [],
    depends=["kernel.h", "kernel.cu"],
)

setup(
    name="uform-cosent",
    version="1.0.0",
    cmdclass={"build_ext": build_with_kernel},
    ext_modules=cythonize([extension], include_path=[uform.get_cython_path()], language_level=3),
    entry_points={"uform.objectives": ["cosent = uform_cosent:plugin"]},
)
