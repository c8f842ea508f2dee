"""What a naive implementation in bfloat16 makes of a run: the measure of the tolerance policy for whole runs.

It is a run on RAM, whose matrices are rounded to bfloat16 before each step, as the GPU's copies of them are. What a
naive implementation rounds besides, the products' answers, is stood in for by a relative error of the weights of up to
2^-9, drawn anew for each step: half of what one rounding may be off. As on the GPU, updates go to float32 masters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import uform

HALF_OF_A_ROUNDING = 2.0**-9

Floats = NDArray[np.float32]


def to_bfloat16(values: Floats) -> Floats:
    """The nearest values that bfloat16 holds, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def rounded(values: Floats, rng: np.random.Generator) -> Floats:
    """A matrix as a naive implementation has it in one step."""
    errors = 1 + HALF_OF_A_ROUNDING * rng.uniform(-1, 1, values.shape)
    return (to_bfloat16(values) * errors).astype(np.float32)


def matrices(trainer: uform.Trainer) -> dict[str, Floats]:
    names = [entry["name"] for entry in trainer.describe()["parameters"] if len(entry["shape"]) > 1]
    return {name: trainer.read(name) for name in names}


def naive_losses(
    trainer: uform.Trainer, step: Callable[[uform.Trainer], float], steps: int, seed: int
) -> NDArray[np.float64]:
    """The losses of so many steps of a run on RAM."""
    rng = np.random.default_rng(seed)
    losses = []
    for _ in range(steps):
        masters = matrices(trainer)
        used = {name: rounded(master, rng) for name, master in masters.items()}
        for name, values in used.items():
            trainer.write(name, values)
        losses.append(step(trainer))
        for name, values in used.items():
            trainer.write(name, masters[name] + (trainer.read(name) - values))
    return np.array(losses)
