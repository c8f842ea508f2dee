"""The programs that test the kernels compile and link wherever nvcc is, so that a machine without a GPU finds what a
change of the sources that they share broke."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.build.gpu_programs import PROGRAMS, build_gpu_programs
from tools.build.library import find_toolchain
from tools.build.switches import Switches

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_gpu_program_builds() -> None:
    toolchain = find_toolchain(ROOT, Switches.from_environment(ROOT))
    if toolchain.cuda is None:
        pytest.skip(f"no CUDA code is built here: {toolchain.ram_only}")
    lines: list[str] = []
    try:
        built = build_gpu_programs(report=lines.append)
    finally:
        print("\n".join(lines))
    assert set(built) == {source.stem for source in ROOT.glob(PROGRAMS)}
    assert all(program.is_file() for program in built.values())
