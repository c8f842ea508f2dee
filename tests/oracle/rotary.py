"""Rotary positions in one, two or three axes."""

from __future__ import annotations

import autograd.numpy as np

from .numeric import Array
from .parameters import HEAD_WIDTH

BASE = 10_000.0
PAIRS = HEAD_WIDTH // 2
PAIRS_BY_AXES = {1: (32,), 2: (16, 16), 3: (8, 12, 12)}


def positions(grid: tuple[int, ...]) -> Array:
    """`[1 + n, axes]`: the marker at 0 on every axis, then the content in raster order, counted from 1."""
    content = np.indices(grid).reshape(len(grid), -1).T + 1
    return np.concatenate([np.zeros((1, len(grid)), dtype=np.int64), content])


def angles(grid: tuple[int, ...]) -> Array:
    """`[1 + n, 32]`: by how much each pair of each column turns; the axes share out the pairs in order."""
    places = positions(grid)
    by_axis = []
    for axis, pairs in enumerate(PAIRS_BY_AXES[len(grid)]):
        frequencies = BASE ** (-np.arange(pairs) / pairs)
        by_axis.append(np.outer(places[:, axis], frequencies))
    return np.concatenate(by_axis, axis=1)


def rotate(x: Array, turn: Array) -> Array:
    """Turns the pairs `(k, k + 32)` of one head's vectors `[columns, 64]` by the angles `[columns, 32]`."""
    first, second = x[:, :PAIRS], x[:, PAIRS:]
    cosine, sine = np.cos(turn), np.sin(turn)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=1)
