"""A picture cut into patches of scaled values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .numeric import Array


@dataclass(frozen=True)
class Patches:
    """A picture's patches in raster order.

    Attributes:
        values: `[patches, side * side * channels]`, scaled to [-1, 1], each patch in the order y, x, channel.
        grid: Patches along y and along x.
        whole: `[patches]`, False where the picture fills the patch in part only; such a patch is never reconstructed.
    """

    values: Array
    grid: tuple[int, int]
    whole: Array


def patches_of(pixels: Array, side: int) -> Patches:
    """Cuts `uint8` pixels `[height, width, channels]` into square patches; the last ones are padded by the edge."""
    height, width, channels = pixels.shape
    rows, columns = -(-height // side), -(-width // side)
    padding = ((0, rows * side - height), (0, columns * side - width), (0, 0))
    scaled = np.pad(pixels, padding, mode="edge").astype(np.float64) / 127.5 - 1.0
    values, whole = [], []
    for row in range(rows):
        for column in range(columns):
            top, left = row * side, column * side
            values.append(scaled[top : top + side, left : left + side, :].reshape(side * side * channels))
            whole.append(top + side <= height and left + side <= width)
    return Patches(values=np.array(values), grid=(rows, columns), whole=np.array(whole))
