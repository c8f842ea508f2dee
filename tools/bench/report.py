"""Tables of what was measured, and a picture of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.bench.losses import Row
from tools.bench.operations import CEILING, Ceilings, Timing


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def step_table(steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line a shape: ours, then the peer's where it was measured."""
    titles = f"{'uform ms':>10}{'planned':>9}{'held':>8}{'peer ms':>10}{'peak':>8}{'held':>8}{'times':>7}"
    yield f"{'depth x hidden, columns':>26}{titles}"
    for one in steps:
        ours, peer = one["uform"], one["peer"] or {}
        times = peer["step_ms"] / ours["step_ms"] if peer else None
        yield (
            f"{ours['depth']:>8} x {ours['hidden']:>4}, {ours['tokens']:>9}"
            + _number(ours["step_ms"], 10, 2)
            + _number(ours["planned_gib"], 9, 2)
            + _number(ours["held_gib"], 8, 2)
            + _number(peer.get("step_ms"), 10, 2)
            + _number(peer.get("peak_gib"), 8, 2)
            + _number(peer.get("held_gib"), 8, 2)
            + _number(times, 7, 2)
        )


def loss_table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each way of computing each loss."""
    yield f"{'loss':>26}  {'by':<22}{'ms':>9}{'extra GiB':>11}{'of floor':>10}"
    for row in sorted(rows, key=lambda one: one.loss):
        ms = f"{'no room':>9}" if row.ms is None else f"{row.ms:9.3f}"
        share = f"{'':>10}" if row.of_floor is None else f"{row.of_floor:10.0%}"
        yield f"{row.loss:>26}  {row.by:<22}{ms}{_number(row.extra_gib, 11, 2)}{share}"


def operation_table(timings: Sequence[Timing], ceilings: Ceilings) -> Iterator[str]:
    """A line an operation and shape."""
    gigabytes, teraflops = ceilings.bytes_per_ms * 1e-6, ceilings.operations_per_ms * 1e-9
    yield f"of this run's ceilings: copies {gigabytes:.0f} GB/s, products {teraflops:.0f} TFLOP/s"
    yield f"{'shape':>10}  {'operation':<24}{'ms':>9}{'MB':>9}{'GFLOP':>9}{'floor ms':>10}{'of floor':>10}"
    for one in timings:
        if one.shape != CEILING:
            floor = ceilings.floor_ms(one)
            yield (
                f"{one.shape:>10}  {one.operation:<24}{one.ms:9.4f}{one.bytes / 1e6:9.1f}{one.operations / 1e9:9.1f}"
                f"{floor:10.4f}{floor / one.ms:10.0%}"
            )


def draw(
    steps: Sequence[dict[str, Any]],
    rows: Sequence[Row],
    timings: Sequence[Timing],
    ceilings: Ceilings | None,
    path: Path,
) -> None:
    """Steps, losses and operations side by side; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(20, 8), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 2])
    left.set(title="A training step", ylabel="ms")
    for place, one in enumerate(steps):
        left.bar(place - 0.2, one["uform"]["step_ms"], 0.4, color="C0", label="uform" if place == 0 else None)
        if one["peer"]:
            left.bar(place + 0.2, one["peer"]["step_ms"], 0.4, color="C1", label="PyTorch" if place == 0 else None)
    left.set_xticks(range(len(steps)), [f"{one['uform']['depth']} x {one['uform']['hidden']}" for one in steps])
    if steps:
        left.legend()
    shown = [row for row in rows if row.ms is not None]
    middle.set(title="Losses, forward and backward", xlabel="ms", xscale="log")
    middle.barh(
        range(len(shown)), [row.ms for row in shown], color=["C1" if "PyTorch" in row.by else "C0" for row in shown]
    )
    middle.set_yticks(range(len(shown)), [f"{row.loss}\n{row.by}" for row in shown], fontsize=7)
    right.set(title="How near to its floor each operation is", ylim=(0, 1.05))
    shapes = list(dict.fromkeys(one.shape for one in timings if "x" in one.shape))
    operations = list(dict.fromkeys(one.operation for one in timings if one.shape in shapes))
    for number, shape in enumerate(shapes):
        share = {one.operation: ceilings.floor_ms(one) / one.ms for one in timings if one.shape == shape and ceilings}
        places = [place + 0.8 * number / len(shapes) for place in range(len(operations))]
        right.bar(places, [share.get(one, 0) for one in operations], 0.8 / len(shapes), label=shape)
    right.set_xticks(range(len(operations)), operations, rotation=90, fontsize=7)
    if shapes:
        right.legend()
    figure.savefig(path, dpi=110)
