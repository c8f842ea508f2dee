"""How much memory of a GPU a loop leaves taken."""

from __future__ import annotations

from collections.abc import Callable


def least_lost(run: Callable[[], object], rounds: int = 4) -> int:
    """By how many bytes free memory falls in a round, at least: others on the GPU take some in some rounds only."""
    import torch

    lost: list[int] = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        run()
        torch.cuda.synchronize()
        lost.append(free - torch.cuda.mem_get_info()[0])
    return min(lost)
