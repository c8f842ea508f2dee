"""Philox4x32-10, a random number generator that is a function of a counter and a key.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
WORD_BITS = np.uint64(32)
WORD_MASK = np.uint64(0xFFFFFFFF)


def _multiply(word: Words, multiplier: np.uint64) -> tuple[Words, Words]:
    """The high and the low word of the 64-bit product."""
    product = word.astype(np.uint64) * multiplier
    return (product >> WORD_BITS).astype(np.uint32), (product & WORD_MASK).astype(np.uint32)


def philox4x32(counters: npt.ArrayLike, keys: npt.ArrayLike) -> Words:
    """Four random words for every counter.

    Args:
        counters: `uint32 [..., 4]`.
        keys: `uint32 [..., 2]`, broadcast against the counters.

    Returns:
        `uint32 [..., 4]`.
    """
    counter = np.asarray(counters, dtype=np.uint32)
    key = np.asarray(keys, dtype=np.uint32)
    c0, c1, c2, c3 = (counter[..., word] for word in range(4))
    for turn in range(ROUNDS):
        k0, k1 = (
            ((key[..., word].astype(np.uint64) + np.uint64(turn * KEY_INCREMENTS[word])) & WORD_MASK).astype(np.uint32)
            for word in range(2)
        )
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1)
