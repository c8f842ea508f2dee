"""How well probabilities say how often they are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 15
SMALLEST = 1e-12


@dataclass(frozen=True)
class Bin:
    """Answers of about the same confidence.

    Attributes:
        count: how many.
        confidence: the mean probability of what was chosen.
        accuracy: the share that was right.
    """

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """What a model's probabilities are worth.

    Attributes:
        accuracy: the share of right answers, an answer being the most probable choice.
        error: expected calibration error: the mean over answers of |accuracy - confidence| of their bin.
        cross_entropy: mean of minus the logarithm of the right choice's probability, in nats.
        bins: by confidence, of equal width, those that are not empty.
    """

    accuracy: float
    error: float
    cross_entropy: float
    bins: list[Bin]


def calibrate(probabilities: NDArray[np.float32], answers: NDArray[np.int64]) -> Calibration:
    """Compares probabilities `[n, choices]` with the places of the right ones `[n]`.

    Guo et al., On Calibration of Modern Neural Networks, 2017: 15 bins of equal width.
    """
    confidences = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == answers
    places = np.minimum((confidences * BINS).astype(np.int64), BINS - 1)
    bins = [
        Bin(int(inside.sum()), float(confidences[inside].mean()), float(right[inside].mean()))
        for inside in (places == place for place in range(BINS))
        if inside.any()
    ]
    of_right = np.maximum(probabilities[np.arange(len(answers)), answers].astype(np.float64), SMALLEST)
    return Calibration(
        accuracy=float(right.mean()),
        error=sum(one.count * abs(one.accuracy - one.confidence) for one in bins) / len(answers),
        cross_entropy=float(-np.log(of_right).mean()),
        bins=bins,
    )
