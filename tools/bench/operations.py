"""Each operation of the table beside its floor: what the GPU's copies and products would take at their measured best.

One that only moves bytes also stands beside a plain kernel that moves as many: started, and with a cache as cold, as
itself, for a small one is never as fast as a large copy.

`tests/gpu/native/bench_operations.cu` does the timing; here its lines are read.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.bench.processes import MeasurementError

PROGRAM = "bench_operations"
CEILING = "ceiling"
LINE = re.compile(r"bench (\S+) (.+): ([\d.]+) ms, (\d+) bytes, (\d+) operations(?:, plain ([\d.]+) ms)?")


@dataclass(frozen=True)
class Timing:
    """One operation at one shape.

    Attributes:
        shape: as `12x512`, `N=65536` of a loss, or `ceiling`.
        operation: its name in the table.
        ms: the median time.
        bytes: those that it must move.
        operations: those that its products must make.
        plain_ms: the time of a plain kernel that reads and writes as many bytes, or None beside products.
    """

    shape: str
    operation: str
    ms: float
    bytes: int
    operations: int
    plain_ms: float | None = None


@dataclass(frozen=True)
class Ceilings:
    """The best of the same run.

    Attributes:
        bytes_per_ms: of a large copy, read and written.
        operations_per_ms: of the fastest product.
    """

    bytes_per_ms: float
    operations_per_ms: float

    def floor_ms(self, timing: Timing) -> float:
        """The time that an operation needs at least: its copies or its products alone, whichever are longer."""
        return max(timing.bytes / self.bytes_per_ms, timing.operations / self.operations_per_ms)


def read_timings(text: str) -> list[Timing]:
    """The timings among what the program printed."""
    found = [LINE.match(line) for line in text.splitlines()]
    return [
        Timing(one[1], one[2], float(one[3]), int(one[4]), int(one[5]), float(one[6]) if one[6] else None)
        for one in found
        if one is not None
    ]


def ceilings_of(timings: list[Timing]) -> Ceilings:
    """The ceilings: no operation counts as faster than itself, so the fastest product may be any of them."""
    copies = [one.bytes / one.ms for one in timings if one.shape == CEILING and one.operation == "copy"]
    products = [one.operations / one.ms for one in timings]
    return Ceilings(max(copies), max(products))


def find_program(name: str) -> Path:
    """The program in the folder `UFORM_GPU_PROGRAMS`, else built, which needs nvcc."""
    folder = os.environ.get("UFORM_GPU_PROGRAMS")
    if folder:
        return Path(folder) / name
    from tools.build.gpu_programs import build_gpu_programs

    return build_gpu_programs()[name]


def run_program(name: str, *arguments: str) -> str:
    """What the program prints."""
    run = subprocess.run([find_program(name), *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise MeasurementError(f"{name} failed:\n{run.stdout[-2000:]}{run.stderr}")
    return run.stdout
