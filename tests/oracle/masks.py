"""Which columns the masked objective covers: a step's draws, from its counted random numbers.

An item's draws for one purpose are the words of the blocks `column = 0, 1, ...`, one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .numeric import Array
from .parameters import TEXT_MASK
from .philox import philox4x32

COUNTS, SPANS, ACTIONS, PLACES = 1, 2, 3, 4  # the purposes
MASK_PROBABILITY, MEAN_SPAN = 0.3, 6.0


@dataclass(frozen=True)
class Draws:
    """Where one item's random numbers come from.

    Attributes:
        seed: The run's.
        call: How many calls went before.
        item: The item's place in the world.
    """

    seed: int
    call: int
    item: int

    def words(self, purpose: int) -> Iterator[int]:
        """The endless words of a purpose."""
        key = [self.seed & 0xFFFFFFFF, self.seed >> 32]
        column = 0
        while True:
            high = purpose << 24 | self.call >> 32
            yield from (int(word) for word in philox4x32([column, self.item, self.call & 0xFFFFFFFF, high], key))
            column += 1


def _share(word: int) -> float:
    return word / 2**32


def _place(word: int, places: int) -> int:
    return word * places >> 32


def _length(word: int, mean: float) -> int:
    """Geometric from 1 on, by inversion of the distribution."""
    if mean <= 1:
        return 1
    return 1 + int(np.log1p(-_share(word)) / np.log1p(-1 / mean))


def _covered_spans(wanted: int, length: int, mean_span: float, words: Iterator[int]) -> set[int]:
    """Spans at uniform starts until `wanted` places are covered; the last is cut there, and at the end of the item.

    Draws that only hit what is covered may go on for long: after `4 wanted + 16` of them a span begins at the next
    place not covered.
    """
    covered: set[int] = set()
    draws = 0
    while len(covered) < wanted:
        start, span = _place(next(words), length), _length(next(words), mean_span)
        if draws >= 4 * wanted + 16:
            while start in covered:
                start = (start + 1) % length
        draws += 1
        for place in range(start, min(start + span, length)):
            if len(covered) < wanted:
                covered.add(place)
    return covered


@dataclass(frozen=True)
class CoveredBytes:
    """The covered places of a text, ascending, and the codes read there."""

    places: Array
    codes: Array


def cover_bytes(
    text: bytes,
    draws: Draws,
    *,
    probability: float = MASK_PROBABILITY,
    mean_span: float = MEAN_SPAN,
    replace_fraction: float = 0.8,
    random_fraction: float = 0.1,
) -> CoveredBytes:
    """`floor(p L + u)` bytes of a text in spans; each becomes the mask, a random byte, or stays."""
    wanted = int(np.floor(probability * len(text) + _share(next(draws.words(COUNTS)))))
    places = sorted(_covered_spans(min(wanted, len(text)), len(text), mean_span, draws.words(SPANS)))
    codes = []
    for place, word in zip(places, draws.words(ACTIONS), strict=False):
        choice = (word >> 8) / 2**24
        if choice < replace_fraction:
            codes.append(TEXT_MASK)
        elif choice < replace_fraction + random_fraction:
            codes.append(word & 0xFF)
        else:
            codes.append(text[place])
    return CoveredBytes(np.array(places, dtype=np.int64), np.array(codes, dtype=np.int64))


def cover_patches(whole: Array, grid: tuple[int, int], draws: Draws, *, ratio: float) -> Array:
    """`round(ratio x count)` of the patches that the picture fills wholly, one at least left, ascending.

    Args:
        whole: `[patches]`, which of them are filled; they are the grid's first rows and columns.
        grid: Patches along y and along x.
        draws: The item's random numbers.
        ratio: The share to cover.
    """
    order = [int(place) for place in np.flatnonzero(np.asarray(whole).reshape(grid).ravel())]
    if not order:
        return np.zeros(0, dtype=np.int64)
    wanted = min(int(np.floor(ratio * len(order) + 0.5)), len(order) - 1)
    words = draws.words(PLACES)
    for place in range(wanted):
        other = place + _place(next(words), len(order) - place)
        order[place], order[other] = order[other], order[place]
    return np.array(sorted(order[:wanted]), dtype=np.int64)
