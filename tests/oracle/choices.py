"""The choices loss: each item's softmax over its own choices, against its targets."""

from __future__ import annotations

from collections.abc import Sequence

import autograd.numpy as np

from .numeric import Array, logsumexp, softmax


def logits(states: Array, vector: Array, log_inverse_temperature: Array) -> Array:
    """Hidden states `[k, hidden]` at an item's choice columns, dotted with the vector and scaled: `[k]`."""
    return np.exp(log_inverse_temperature) * np.dot(states, vector)


def probabilities(scores: Array) -> Array:
    """The softmax over an item's choices."""
    return softmax(scores)


def smooth(targets: Array, label_smoothing: float) -> Array:
    """`(1 - e) t + e / k` over an item's `k` choices."""
    return (1 - label_smoothing) * targets + label_smoothing / len(targets)


def loss(scores: Sequence[Array], targets: Sequence[Array], *, label_smoothing: float = 0.0) -> Array:
    """Cross-entropy, mean over the items that make a choice; 0 where none does.

    Args:
        scores: Each item's logits.
        targets: Each item's row; empty or all zeros where it abstains.
        label_smoothing: The share of a target that is spread over all choices.
    """
    chosen = [
        np.sum(smooth(np.asarray(row, dtype=np.float64), label_smoothing) * (logsumexp(score) - score))
        for score, row in zip(scores, targets, strict=True)
        if len(row) and np.any(row)
    ]
    return sum(chosen, start=0.0) / max(len(chosen), 1)
