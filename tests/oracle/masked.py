"""The masked losses: covered bytes guessed, covered patches reconstructed."""

from __future__ import annotations

import autograd.numpy as np

from .numeric import Array, logsumexp

BYTES = 256
VARIANCE_EPSILON = 1e-6


def masked_bytes(logits: Array, targets: Array) -> Array:
    """Cross-entropy, mean over the covered bytes; 0 where none is covered.

    Args:
        logits: `[n, 256]`.
        targets: The true bytes, `[n]`.
    """
    count = len(targets)
    if count == 0:
        return 0.0
    own = logits[np.arange(count), np.asarray(targets, dtype=np.int64)]
    return np.mean(logsumexp(logits) - own)


def byte_logits(states: Array, table: Array) -> Array:
    """Logits `[n, 256]` of hidden states `[n, hidden]`; the weights are the byte embeddings themselves."""
    return np.dot(states, table[:BYTES].T)


def normalized_patches(values: Array) -> Array:
    """Each patch `[n, values]` by its own mean and biased variance, `(v - mean) / sqrt(variance + 1e-6)`."""
    mean = np.mean(values, axis=1, keepdims=True)
    variance = np.mean((values - mean) ** 2, axis=1, keepdims=True)
    return (values - mean) / np.sqrt(variance + VARIANCE_EPSILON)


def masked_patches(predictions: Array, values: Array) -> Array:
    """Mean squared error over the values of the covered patches; 0 where none is covered.

    Args:
        predictions: `[n, values]`.
        values: The patches' scaled values before covering, `[n, values]`.
    """
    if len(values) == 0:
        return 0.0
    return np.mean((predictions - normalized_patches(values)) ** 2)


def patch_predictions(states: Array, head: Array) -> Array:
    """The linear head's guess `[n, values]` from hidden states `[n, hidden]`."""
    return np.dot(states, head.T)
