"""The losses, forward and backward, beside those of PyTorch's peers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.bench.operations import Ceilings, Timing

PAIRS, WIDTH = (16_384, 65_536), 512
MAXSIM_SHAPE, MAXSIM = "512x32:1024x256", "MaxSim 512x32 vs 1024x256 W=128"
MASKED_COLUMNS, MASKED_WIDTH, MASKED_SHAPE = 19_660, 512, "12x512"  # three tenths of 65,536 columns


@dataclass(frozen=True)
class Row:
    """One way of computing a loss.

    Attributes:
        loss: which.
        by: what computed it.
        ms: the median time, forward and backward; None where it did not fit.
        extra_gib: memory beside the inputs, the gradients included, or None where it was not measured.
        of_floor: the share of the floor in the time, or None for others' code.
    """

    loss: str
    by: str
    ms: float | None
    extra_gib: float | None
    of_floor: float | None = None


def our_rows(timings: Sequence[Timing], gib: dict[tuple[str, str], float], ceilings: Ceilings) -> list[Row]:
    """The operations themselves, timed by CUDA events without what the host does before."""
    rows = []
    for one in timings:
        if one.operation == "pairs":
            loss = f"InfoNCE {one.shape} D={WIDTH}"
        elif (one.operation, one.shape) == ("maxsim", MAXSIM_SHAPE):
            loss = MAXSIM
        elif (one.operation, one.shape) == ("bytes_head", MASKED_SHAPE):
            loss = f"masked bytes {MASKED_COLUMNS}x{MASKED_WIDTH}"
        else:
            continue
        extra, of_floor = gib.get((one.shape, one.operation)), ceilings.floor_ms(one) / one.ms
        rows.append(Row(loss, "uform's operations", one.ms, extra, of_floor))
    return rows


def peer_rows(lines: Sequence[dict[str, Any]]) -> list[Row]:
    """What the peers' lines of JSON say of the same losses; others of theirs are left out."""
    rows = []
    for line in lines:
        name = line.get("peer") or line.get("loss") or ""
        pairs = re.search(r"InfoNCE N=(\d+)", name)
        if "refused" in line or (pairs and int(pairs[1]) not in PAIRS):
            continue
        if pairs:
            title = f"InfoNCE N={pairs[1]} D={WIDTH}"
            by = "uform.losses" if "loss" in line else f"PyTorch {name.split(f'D={WIDTH} ')[-1]}"
            rows.append(Row(title, by, line["ms"], line.get("extra_gib")))
        elif name.startswith(MAXSIM):
            rows.append(Row(MAXSIM, f"PyTorch {name.removeprefix(MAXSIM).strip()}", line["ms"], line.get("extra_gib")))
        elif name.startswith("masked bytes"):
            title = f"masked bytes {MASKED_COLUMNS}x{MASKED_WIDTH}"
            rows.append(Row(title, "PyTorch compiled", line["ms"], line.get("extra_gib")))
    return rows


def read_memory(text: str) -> dict[tuple[str, str], float]:
    """GiB beside the inputs, by shape and operation, among what the program of the operations printed."""
    found = re.findall(r"^memory (\S+) (\S+): (\d+) bytes of gradients and workspace", text, re.M)
    return {(shape, operation): int(size) / 2**30 for shape, operation, size in found}
