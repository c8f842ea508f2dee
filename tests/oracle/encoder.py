"""The encoder: from a segment to its final hidden states, and from those to the bags' embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import autograd.numpy as np

from . import rotary
from .numeric import Array, softmax, unit
from .parameters import HEAD_WIDTH, PATCH_MARKER, PATCH_MASK, TEXT_MARKER, depth_of
from .segment import TEXT, Segment

NORM_EPSILON = 1e-6


def rms_norm(x: Array, gain: Array) -> Array:
    """`x / sqrt(mean(x^2) + 1e-6) * gain` for each row."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + NORM_EPSILON) * gain


def gelu(x: Array) -> Array:
    """The tanh form of GELU."""
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def embed(parameters: Mapping[str, Array], segment: Segment) -> Array:
    """`[columns, hidden]`: the marker's vector, then each content column's, then each extra one's."""
    table = parameters[f"{segment.modality}.table"]
    if segment.modality == TEXT:
        codes = np.concatenate([[TEXT_MARKER], segment.content, segment.extra]).astype(np.int64)
        return table[codes]
    covered = np.zeros((len(segment.content), 1))
    covered[segment.covered] = 1.0
    seen = np.dot(segment.content, parameters[f"{segment.modality}.patch"].T)
    content = (1.0 - covered) * seen + covered * table[PATCH_MASK]
    return np.concatenate([table[PATCH_MARKER : PATCH_MARKER + 1], content])


def attend(qkv: Array, turn: Array) -> Array:
    """Attention of a segment's columns to each other.

    Args:
        qkv: `[columns, 3 * hidden]`: the heads' queries, then their keys, then their values, 64 columns a head.
        turn: `[columns, 32]` rotary angles.

    Returns:
        `[columns, hidden]`, the heads side by side.
    """
    queries, keys, values = np.split(qkv, 3, axis=1)
    heads = []
    for start in range(0, queries.shape[1], HEAD_WIDTH):
        head = slice(start, start + HEAD_WIDTH)
        query = rotary.rotate(queries[:, head], turn)
        key = rotary.rotate(keys[:, head], turn)
        weights = softmax(np.dot(query, key.T) / np.sqrt(HEAD_WIDTH))
        heads.append(np.dot(weights, values[:, head]))
    return np.concatenate(heads, axis=1)


def feed_forward(x: Array, up: Array, down: Array) -> Array:
    """GeGLU: `(gelu(gate) * up) down^T`, where the first half of the rows of `up` gives the gate."""
    gate, value = np.split(np.dot(x, up.T), 2, axis=1)
    return np.dot(gelu(gate) * value, down.T)


def encode(parameters: Mapping[str, Array], segment: Segment) -> Array:
    """`[columns, hidden]`: the segment's hidden states after the last norm, which pooling and every head read."""
    turn = rotary.angles(segment.positions)
    x = embed(parameters, segment)
    for block in range(depth_of(parameters)):
        name = f"blocks.{block}."
        qkv = np.dot(rms_norm(x, parameters[name + "norm1"]), parameters[name + "qkv"].T)
        x = x + np.dot(attend(qkv, turn), parameters[name + "out"].T)
        normed = rms_norm(x, parameters[name + "norm2"])
        x = x + feed_forward(normed, parameters[name + "up"], parameters[name + "down"])
    return rms_norm(x, parameters["norm"])


def pool(states: Sequence[Array], segments: Sequence[Segment]) -> Array:
    """`[bags, hidden]`: for each bag the mean over the pooled columns of its segments, scaled to unit length.

    A bag that no segment names is zero.
    """
    bags = 1 + max(segment.bag for segment in segments)
    hidden = states[0].shape[1]
    pooled = []
    for bag in range(bags):
        own = [(state, segment) for state, segment in zip(states, segments, strict=True) if segment.bag == bag]
        columns = [state[: segment.pooled] for state, segment in own]
        pooled.append(unit(np.mean(np.concatenate(columns), axis=0)) if columns else np.zeros(hidden))
    return np.array(pooled)
