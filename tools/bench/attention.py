"""Packed attention at each length of segments, forward and backward, beside PyTorch's.

`tests/gpu/native/test_vram_attention.cu` does the timing; here its lines are read. A backward pass includes what turns
the gradients of queries and keys back by their positions, which PyTorch's leaves to others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROGRAM = "test_vram_attention"
LINE = re.compile(
    r"bench attention_(forward|backward) 65536 columns, 8 heads, segments of (\d+)(?:, turned back)? ([\d.]+) ms"
)


@dataclass(frozen=True)
class Row:
    """Segments of one length, in 65,536 columns of 8 heads of 64.

    Attributes:
        segment: the columns of a segment.
        by: what computed it.
        forward_ms, backward_ms: the median times.
    """

    segment: int
    by: str
    forward_ms: float
    backward_ms: float


def our_rows(printed: str) -> list[Row]:
    """The timings among what the program printed, for the lengths that have both passes."""
    ms = {(int(one[2]), one[1]): float(one[3]) for one in map(LINE.match, printed.splitlines()) if one}
    lengths = sorted({segment for segment, _ in ms})
    return [
        Row(segment, "uform", ms[segment, "forward"], ms[segment, "backward"])
        for segment in lengths
        if {(segment, "forward"), (segment, "backward")} <= ms.keys()
    ]


def peer_rows(lines: Sequence[dict[str, Any]]) -> list[Row]:
    """What the peer's lines of JSON say."""
    return [Row(one["segment"], "PyTorch", one["forward_ms"], one["backward_ms"]) for one in lines]
