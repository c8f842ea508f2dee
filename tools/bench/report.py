"""Tables of what was measured, and a picture of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.bench import attention
from tools.bench.losses import Row
from tools.bench.operations import CEILING, Ceilings, Timing


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def step_table(steps: Iterable[dict[str, Any]]) -> Iterator[str]:
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


def attention_table(rows: Sequence[attention.Row]) -> Iterator[str]:
    """A line a length of segments and who computed it."""
    yield f"{'segments of':>11}  {'by':<10}{'forward ms':>12}{'backward ms':>13}"
    for row in sorted(rows, key=lambda row: row.segment):
        yield f"{row.segment:>11}  {row.by:<10}{row.forward_ms:12.4f}{row.backward_ms:13.4f}"


def by_loss(rows: Sequence[Row]) -> list[Row]:
    """Rows of one loss together, ours first."""
    return sorted(rows, key=lambda row: (row.loss, "PyTorch" in row.by))


def loss_table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each way of computing each loss."""
    yield f"{'loss':>26}  {'by':<22}{'ms':>9}{'extra GiB':>11}{'of floor':>10}"
    for row in by_loss(rows):
        ms = f"{'no room':>9}" if row.ms is None else f"{row.ms:9.3f}"
        share = f"{'':>10}" if row.of_floor is None else f"{row.of_floor:10.0%}"
        yield f"{row.loss:>26}  {row.by:<22}{ms}{_number(row.extra_gib, 11, 2)}{share}"


def operation_table(timings: Sequence[Timing], ceilings: Ceilings) -> Iterator[str]:
    """A line an operation and shape."""
    gigabytes, teraflops = ceilings.bytes_per_ms * 1e-6, ceilings.operations_per_ms * 1e-9
    yield f"of this run's ceilings: copies {gigabytes:.0f} GB/s, products {teraflops:.0f} TFLOP/s"
    head = f"{'shape':>10}  {'operation':<24}{'ms':>9}{'MB':>9}{'GFLOP':>9}{'floor ms':>10}{'of floor':>10}"
    yield f"{head}{'plain ms':>10}{'of plain':>10}"
    for one in timings:
        if one.shape != CEILING:
            floor = ceilings.floor_ms(one)
            yield (
                f"{one.shape:>10}  {one.operation:<24}{one.ms:9.4f}{one.bytes / 1e6:9.1f}{one.operations / 1e9:9.1f}"
                f"{floor:10.4f}{floor / one.ms:10.0%}"
                + ("" if one.plain_ms is None else f"{one.plain_ms:10.4f}{one.plain_ms / one.ms:10.0%}")
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
    _draw_steps(left, steps)
    _draw_losses(middle, rows)
    _draw_operations(right, timings, ceilings)
    figure.savefig(path, dpi=110)


def _draw_steps(axes: Any, steps: Sequence[dict[str, Any]]) -> None:
    axes.set(title="A training step", ylabel="ms")
    for number, (key, label) in enumerate((("uform", "uform"), ("peer", "PyTorch"))):
        places = [place + 0.4 * number for place, one in enumerate(steps) if one[key]]
        axes.bar(places, [one[key]["step_ms"] for one in steps if one[key]], 0.4, label=label)
    axes.set_xticks(range(len(steps)), [f"{one['uform']['depth']} x {one['uform']['hidden']}" for one in steps])
    axes.legend()


def _draw_losses(axes: Any, rows: Sequence[Row]) -> None:
    shown = [row for row in by_loss(rows) if row.ms is not None]
    axes.set(title="Losses, forward and backward", xlabel="ms", xscale="log")
    colors = ["C1" if "PyTorch" in row.by else "C0" for row in shown]
    axes.barh(range(len(shown)), [row.ms for row in shown], color=colors)
    axes.set_yticks(range(len(shown)), [f"{row.loss}\n{row.by}" for row in shown], fontsize=7)


def _draw_operations(axes: Any, timings: Sequence[Timing], ceilings: Ceilings | None) -> None:
    axes.set(title="How near to its floor each operation is", ylim=(0, 1.05))
    shapes = list(dict.fromkeys(one.shape for one in timings if "x" in one.shape))
    operations = list(dict.fromkeys(one.operation for one in timings if one.shape in shapes))
    for number, shape in enumerate(shapes):
        shares = {one.operation: ceilings.floor_ms(one) / one.ms for one in timings if one.shape == shape and ceilings}
        places = [place + 0.8 * number / len(shapes) for place in range(len(operations))]
        axes.bar(places, [shares.get(one, 0) for one in operations], 0.8 / len(shapes), label=shape)
    axes.set_xticks(range(len(operations)), operations, rotation=90, fontsize=7)
    if shapes:
        axes.legend()
