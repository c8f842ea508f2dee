"""What the environment variables of the build mean, and which values are refused."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.helpers.small_tree import make_cutlass, make_program, make_toolkit
from third_party.finder import CUDA_WHEELS, CUTLASS_WHEEL, CudaToolkit, Cutlass, find_cuda, find_cutlass
from tools.build.backend import vram_requirements
from tools.build.compilers import CudaCompiler, HostCompiler, cxx_flags, slow_kernel
from tools.build.extensions import build_extensions, refuse_free_threading
from tools.build.jobs import Runner
from tools.build.library import find_toolchain, vram_defines
from tools.build.switches import BuildError, Switches

ROOT = Path(__file__).resolve().parents[2]


def test_defaults(tmp_path: Path) -> None:
    switches = Switches.from_environment(tmp_path, {})
    assert switches.vram is None
    assert switches.cuda_architectures == ("90a",)
    assert switches.cpu_flags == ()
    assert switches.sanitizers == ()
    assert not switches.strict
    assert switches.jobs >= 1
    assert switches.core is None
    assert switches.build_folder == tmp_path / "build"


def test_prebuilt_core(tmp_path: Path) -> None:
    core = tmp_path / "libuform.so"
    with pytest.raises(BuildError, match=r"UFORM_CORE=.*libuform\.so: no such file"):
        Switches.from_environment(tmp_path, {"UFORM_CORE": str(core)})
    core.touch()
    assert Switches.from_environment(tmp_path, {"UFORM_CORE": str(core)}).core == core


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        ("UFORM_VRAM", "0", {"vram": False}),
        ("UFORM_VRAM", "1", {"vram": True}),
        ("UFORM_CUDA_ARCHS", "80;90a", {"cuda_architectures": ("80", "90a")}),
        ("UFORM_CUDA_ARCHS", "80, 89 100a", {"cuda_architectures": ("80", "89", "100a")}),
        ("UFORM_CUDA_ARCHS", "90a;80;90a", {"cuda_architectures": ("90a", "80")}),
        ("UFORM_CPU_FLAGS", "-march=native -g", {"cpu_flags": ("-march=native", "-g")}),
        ("UFORM_SANITIZE", "undefined,address", {"sanitizers": ("address", "undefined")}),
        ("UFORM_STRICT", "1", {"strict": True}),
        ("UFORM_BUILD_JOBS", "3", {"jobs": 3}),
    ],
)
def test_value(name: str, value: str, answer: dict[str, object], tmp_path: Path) -> None:
    switches = Switches.from_environment(tmp_path, {name: value})
    assert {key: getattr(switches, key) for key in answer} == answer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UFORM_VRAM", "yes"),
        ("UFORM_CUDA_ARCHS", "sm_90"),
        ("UFORM_CUDA_ARCHS", "hopper"),
        ("UFORM_CUDA_ARCHS", "75;90a"),
        ("UFORM_SANITIZE", "memory"),
        ("UFORM_SANITIZE", "address,thread"),
        ("UFORM_STRICT", "yes"),
        ("UFORM_BUILD_JOBS", "0"),
        ("UFORM_BUILD_JOBS", "-1"),
    ],
)
def test_refused_value_is_named(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=f"{name}={value}"):
        Switches.from_environment(tmp_path, {name: value})


def cuda_compiler(*architectures: str, strict: bool = False) -> CudaCompiler:
    toolkit = CudaToolkit(Path("bin/nvcc"), Path("include"), Path("lib"), "13.0")
    host = HostCompiler(("g++",), "g++ 12", None, Path(), strict)
    return CudaCompiler(toolkit, Cutlass(Path("cutlass"), "4.2.0"), host, architectures)


@pytest.mark.parametrize(
    ("source", "architectures"),
    [
        ("norm.cu", ("80", "89", "90", "90a", "100a")),
        ("gemm_sm80.cu", ("80", "89", "90", "90a", "100a")),
        ("gemm_sm90.cu", ("90a",)),
        ("gemm_sm100.cu", ("100a",)),
        ("gemm_sm120.cu", ()),
    ],
)
def test_architectures_by_file_name(source: str, architectures: tuple[str, ...]) -> None:
    assert cuda_compiler("80", "89", "90", "90a", "100a").architectures_of(Path(source)) == architectures


@pytest.mark.parametrize(
    ("architectures", "code"),
    [
        (("90a",), ["compute_90a,code=sm_90a"]),
        (("80",), ["compute_80,code=sm_80", "compute_80,code=compute_80"]),
        (("80", "90a"), ["compute_80,code=sm_80", "compute_90a,code=sm_90a", "compute_80,code=compute_80"]),
        (
            ("100", "89", "90a"),
            [
                "compute_100,code=sm_100",
                "compute_89,code=sm_89",
                "compute_90a,code=sm_90a",
                "compute_100,code=compute_100",
            ],
        ),
    ],
)
def test_code_of_each_architecture_and_what_later_gpus_compile(architectures: tuple[str, ...], code: list[str]) -> None:
    job = cuda_compiler(*architectures).compile(Path("norm.cu"), Path("norm.o"), [])
    prefix = "-gencode=arch="
    assert [part.removeprefix(prefix) for part in job.command if part.startswith(prefix)] == code
    assert "-DNDEBUG" in job.command


@pytest.mark.parametrize(
    ("architectures", "compiled"),
    [(("90a",), True), (("80", "90a"), True), (("90",), False), (("80",), False), (("100a",), False)],
)
def test_hopper_kernels_are_promised_where_they_are_compiled(architectures: tuple[str, ...], compiled: bool) -> None:
    cuda = cuda_compiler(*architectures)
    assert ("-DUFORM_WITH_SM90=1" in vram_defines(cuda)) == compiled
    assert bool(cuda.architectures_of(Path("gemm_forward_sm90.cu"))) == compiled


def test_warnings_are_errors_of_a_strict_build_alone() -> None:
    """And what is made is the same: a build of one kind takes the other's objects."""
    toolkit, cutlass = (
        CudaToolkit(Path("bin/nvcc"), Path("include"), Path("lib"), "13.0"),
        Cutlass(Path("cutlass"), "4"),
    )
    jobs = []
    for strict in (False, True):
        host = HostCompiler(("g++",), "g++ 12", None, Path(), strict)
        cuda = CudaCompiler(toolkit, cutlass, host, ("90a",))
        jobs.append(
            [cuda.compile(Path("a.cu"), Path("a.o"), []), host.compile(Path("a.cpp"), Path("b.o"), cxx_flags(()))]
        )
    for lenient, strict in zip(*jobs, strict=True):
        assert "-Werror" not in " ".join(lenient.command)
        assert "-Werror" in " ".join(strict.command)
        assert lenient.identity == strict.identity


@pytest.mark.parametrize("code", ["C7508", "C7510", "C7511", "C7514"])
def test_serialized_wgmma_fails_the_build(code: str) -> None:
    printed = f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    assert slow_kernel(printed) is not None
    assert slow_kernel("ptxas info    : Used 168 registers") is None


def test_demanded_vram_without_nvcc_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "uform/_ext/vram").mkdir(parents=True)
    (tmp_path / "uform/_ext/vram/norm.cu").touch()
    monkeypatch.setattr("tools.build.library.find_cuda", lambda *, wheels: None)
    with pytest.raises(BuildError, match=r"UFORM_VRAM=1.*nvcc"):
        find_toolchain(tmp_path, Switches.from_environment(tmp_path, {"UFORM_VRAM": "1"}))
    toolchain = find_toolchain(tmp_path, Switches.from_environment(tmp_path, {}))
    assert toolchain.cuda is None
    assert "nvcc" in toolchain.ram_only


def test_a_free_threaded_python_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refuse_free_threading()
    monkeypatch.setattr("sysconfig.get_config_var", {"Py_GIL_DISABLED": 1, "EXT_SUFFIX": ".so"}.get)
    switches = Switches.from_environment(tmp_path, {})
    with pytest.raises(BuildError, match=r"free-threaded Python: uform's modules rely on the GIL"):
        build_extensions(tmp_path, switches, tmp_path / "libuform.so", Runner(tmp_path, tmp_path, 1, print), None)


def test_cuda_is_found_in_the_wheels_of_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no toolkit is installed; of two releases the later, and never one that lacks a part."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    site = tmp_path / "site"
    nvcc = make_toolkit(site / "nvidia" / "cu13")
    (make_toolkit(site / "nvidia" / "cu14").parents[1] / "include" / "cuda_runtime.h").unlink()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    importlib.invalidate_caches()
    assert find_cuda(wheels=False) is None
    found = find_cuda(wheels=True)
    assert found is not None
    assert (found.nvcc, found.version) == (nvcc, "13.2")


def test_the_build_asks_for_the_wheels_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where kernels are demanded and no toolkit is there; CUTLASS wherever they are compiled."""
    monkeypatch.setattr("tools.build.backend.find_cutlass", lambda: None)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    toolkit = CudaToolkit(Path("bin/nvcc"), Path("include"), Path("lib"), "13.0")
    for wish, installed, asked in (
        ("1", None, [*CUDA_WHEELS, CUTLASS_WHEEL]),
        ("1", toolkit, [CUTLASS_WHEEL]),
        ("", toolkit, [CUTLASS_WHEEL]),
        ("", None, []),
        ("0", toolkit, []),
    ):
        monkeypatch.setenv("UFORM_VRAM", wish)
        monkeypatch.setattr("tools.build.backend.find_cuda", lambda *, wheels, found=installed: found)
        assert vram_requirements() == asked


def test_cuda_is_found_by_home_by_path_and_behind_a_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc = make_toolkit(tmp_path / "toolkit")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_cuda(wheels=False) is None
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    by_home = find_cuda(wheels=False)
    assert by_home is not None
    assert (by_home.nvcc, by_home.version) == (nvcc, "13.2")
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("PATH", str(nvcc.parent))
    assert find_cuda(wheels=False) == by_home
    script = make_program(tmp_path / "scripts" / "nvcc", f'#!/bin/sh\nexec {nvcc} "$@"\n')
    monkeypatch.setenv("PATH", str(script.parent))
    assert find_cuda(wheels=False) == by_home


def test_cutlass_is_found_by_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTLASS_PATH", str(make_cutlass(tmp_path)))
    assert find_cutlass() == Cutlass(tmp_path / "include", "4.2.1")
