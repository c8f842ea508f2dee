"""Measures one GPU: whole training steps, attention, the losses, and every operation against its floor.

    python -m tools.bench [--peer peer_torch.py] [--output bench.json] [--plot bench.png] [PART ...]

The parts are `steps`, `attention`, `losses` and `operations`; without a name all are measured. Nothing but a GPU is
needed; `--peer` adds PyTorch: a script that times the same step, and those of attention and the losses beside it,
`peer_attention.py` and `peer_losses.py`. What is compared runs in one go on the same GPU, each in a process of its own,
one after another.

Memory: `planned` is the block that this library takes for a run, whole, before the first step; `peak` is the most that
PyTorch's tensors took at a time. `held` is for both what the process held of the GPU as the driver counts it: with the
context, the code and the allocator's reserves.

A floor is the larger of two times: the operation's bytes, each operand once, at the rate of a large copy, and its
products' operations at the rate of the fastest product of this run. Beside an operation that only moves bytes stands a
plain kernel that reads and writes as many.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from tools.bench import attention, losses, operations, report
from tools.bench.processes import Gpu, MeasurementError, measure_process
from tools.build.switches import BuildError

SHAPES = [(12, 512, 64), (12, 768, 64), (24, 1024, 32)]  # depth, hidden, rows of 1,024 columns
T = TypeVar("T")

PARTS = ("steps", "attention", "losses", "operations")


def measure_steps(gpu: Gpu, peer: Path | None) -> Iterator[dict[str, Any]]:
    """Every shape as soon as it is measured, ours and then the peer's."""
    for depth, hidden, rows in SHAPES:
        shape = ["--depth", str(depth), "--hidden", str(hidden), "--rows", str(rows)]
        ours = measure_process(["-m", "tools.bench.step", *shape], gpu)
        both: dict[str, Any] = {"uform": ours.lines[-1] | {"held_gib": ours.held_gib}, "peer": None}
        if peer:
            theirs = measure_process([peer, *shape, "--columns", "1024"], gpu)
            both["peer"] = theirs.lines[-1] | {"held_gib": theirs.held_gib}
        yield both


def measure_attention(gpu: Gpu, peer: Path | None) -> list[attention.Row]:
    """Ours, then the peer's."""
    rows = attention.our_rows(operations.run_program(attention.PROGRAM, "--bench", "--unchecked"))
    script = peer.with_name("peer_attention.py") if peer else None
    if script and script.exists():
        rows += attention.peer_rows(measure_process([script], gpu).lines)
    return rows


def measure_losses(gpu: Gpu, peer: Path | None, printed: str, ceilings: operations.Ceilings) -> list[losses.Row]:
    """Ours from what the operations' program printed, then those that need PyTorch."""
    rows = losses.our_rows(operations.read_timings(printed), losses.read_memory(printed), ceilings)
    if peer:
        lines = measure_process(["-m", "tools.bench.torch_losses"], gpu).lines
        script = peer.with_name("peer_losses.py")
        if script.exists():
            lines += measure_process([script], gpu).lines
        rows += losses.peer_rows(lines)
    return rows


def kept(measured: Iterable[T], into: list[T]) -> Iterator[T]:
    """What is measured, one by one, put aside so that it outlives a later failure."""
    for one in measured:
        into.append(one)
        yield one


def print_lines(lines: Any) -> None:
    """A table, and an empty line."""
    print(*lines, sep="\n", end="\n\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--peer", type=Path, help="a script that times the same step in PyTorch and prints JSON")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    parser.add_argument("--plot", type=Path, help="a picture of the figures; needs matplotlib")
    options = parser.parse_args(arguments)
    wanted = options.parts or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for option, package in (("peer", "torch"), ("plot", "matplotlib")):
        if getattr(options, option) and find_spec(package) is None:
            parser.error(f"--{option} needs {package}, which is not installed")
    peer = options.peer.resolve() if options.peer else None
    try:
        gpu = Gpu()
    except (OSError, RuntimeError) as failure:
        parser.error(f"no GPU to measure: {failure}")
    print(gpu.name)
    steps: list[dict[str, Any]] = []
    passes: list[attention.Row] = []
    rows: list[losses.Row] = []
    timings: list[operations.Timing] = []
    ceilings, status = None, 0
    try:
        if "steps" in wanted:
            for line in report.step_table(kept(measure_steps(gpu, peer), steps)):
                print(line, flush=True)
            print()
        if "attention" in wanted:
            passes = measure_attention(gpu, peer)
            print_lines(report.attention_table(passes))
        if "losses" in wanted or "operations" in wanted:
            printed = operations.run_program(operations.PROGRAM)
            timings = operations.read_timings(printed)
            ceilings = operations.ceilings_of(timings)
            if "losses" in wanted:
                rows = measure_losses(gpu, peer, printed, ceilings)
                print_lines(report.loss_table(rows))
            if "operations" in wanted:
                print_lines(report.operation_table(timings, ceilings))
    except (MeasurementError, BuildError, OSError) as failure:
        print(failure, file=sys.stderr)  # what was measured before is written all the same
        status = 1
    if options.output:
        told = {
            "gpu": gpu.name,
            "steps": steps,
            "attention": [asdict(row) for row in passes],
            "losses": [asdict(row) for row in rows],
            "ceilings": asdict(ceilings) if ceilings else None,
            "operations": [asdict(one) | {"floor_ms": ceilings.floor_ms(one)} for one in timings if ceilings],
        }
        options.output.write_text(json.dumps(told, indent=1) + "\n")
    if options.plot:
        report.draw(steps, rows, timings, ceilings, options.plot)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
