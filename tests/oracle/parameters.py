"""The encoder's parameters by name, with their shapes and initial values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .numeric import Array

HEAD_WIDTH = 64
TEXT_MARKER, TEXT_MASK, TEXT_SEPARATOR, TEXT_CHOICE, TEXT_CODES = 256, 257, 258, 259, 260
PATCH_MARKER, PATCH_MASK, PATCH_CODES = 0, 1, 2

LOG_INVERSE_TEMPERATURE = "contrastive.log_inverse_temperature"
BIAS = "contrastive.bias"
CHOICES_VECTOR = "choices.vector"
PROJECTION = "late_interaction.projection"
LATE_LOG_INVERSE_TEMPERATURE = "late_interaction.log_inverse_temperature"
LATE_BIAS = "late_interaction.bias"
CHOICES_LOG_INVERSE_TEMPERATURE = "choices.log_inverse_temperature"


def inner_width(hidden: int) -> int:
    """8/3 of `hidden`, rounded up to a multiple of 128."""
    return -(-8 * hidden // (3 * 128)) * 128


def depth_of(parameters: Mapping[str, Array]) -> int:
    """How many blocks the parameters name."""
    depth = 0
    while f"blocks.{depth}.norm1" in parameters:
        depth += 1
    return depth


def initialize(
    rng: np.random.Generator,
    *,
    depth: int,
    hidden: int,
    patch_values: Mapping[str, int] | None = None,
    temperature_groups: int = 1,
    inverse_temperature: float = 1 / 0.07,
    bias: float = 0.0,
    deviation: float = 0.02,
    inner: int | None = None,
) -> dict[str, Array]:
    """Parameters at their initial values, for a text run and for every modality that `patch_values` names.

    Args:
        rng: The source of the normal draws.
        depth: Number of blocks.
        hidden: Width of a column's state, a multiple of 64.
        patch_values: Values in a patch (a tube, a chunk) for each modality other than text.
        temperature_groups: How many temperatures and biases the contrastive loss owns.
        inverse_temperature: Their initial value; kept as its logarithm.
        bias: The initial bias.
        deviation: Standard deviation of the draws; 0.02 in the library, larger where a test wants every term to matter.
        inner: Width of the feed-forward part; None takes `inner_width(hidden)`.
    """
    inner = inner_width(hidden) if inner is None else inner
    residual = deviation / np.sqrt(2 * depth)

    def normal(rows: int, columns: int, scale: float = deviation) -> Array:
        return rng.normal(0.0, scale, (rows, columns))

    parameters: dict[str, Array] = {}
    for block in range(depth):
        parameters[f"blocks.{block}.norm1"] = np.ones(hidden)
        parameters[f"blocks.{block}.qkv"] = normal(3 * hidden, hidden)
        parameters[f"blocks.{block}.out"] = normal(hidden, hidden, residual)
        parameters[f"blocks.{block}.norm2"] = np.ones(hidden)
        parameters[f"blocks.{block}.up"] = normal(2 * inner, hidden)
        parameters[f"blocks.{block}.down"] = normal(hidden, inner, residual)
    parameters["norm"] = np.ones(hidden)
    parameters["text.table"] = normal(TEXT_CODES, hidden)
    for modality, values in (patch_values or {}).items():
        parameters[f"{modality}.table"] = normal(PATCH_CODES, hidden)
        parameters[f"{modality}.patch"] = normal(hidden, values)
        parameters[f"{modality}.head"] = normal(values, hidden)
    parameters[LOG_INVERSE_TEMPERATURE] = np.full(temperature_groups, np.log(inverse_temperature))
    parameters[BIAS] = np.full(temperature_groups, bias)
    return parameters
