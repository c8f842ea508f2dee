"""CoSENT with a learned scale, in NumPy: on RAM executors alone."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

import uform


class CoSENT:
    """Of two attracted pairs, the one of higher weight must have the higher cosine."""

    name = "cosent_numpy"
    fields: ClassVar[dict[str, float]] = {"scale": 20.0}

    def __init__(self, scale: float) -> None:
        self.parameters = {"log_scale": {"shape": (1,), "value": math.log(scale)}}

    def forward_backward(self, batch: uform.PluginBatch) -> float:
        """Answers the loss and writes its gradients."""
        bags = np.asarray(batch.bags, np.float64)
        scale = math.exp(np.asarray(batch.parameters["log_scale"])[0])
        left, right = batch.attract.places.T
        weights = batch.attract.weights
        cosines = (bags[left] * bags[right]).sum(1)
        rises = cosines[None, :] - cosines[:, None]
        shares = np.exp(scale * rises) * (weights[:, None] > weights[None, :])
        total = 1 + shares.sum()
        shares /= total
        forces = scale * (shares.sum(0) - shares.sum(1))[:, None]
        gradient = np.zeros_like(bags)
        np.add.at(gradient, left, forces * bags[right])
        np.add.at(gradient, right, forces * bags[left])
        np.asarray(batch.bags_gradient)[:] = gradient
        np.asarray(batch.parameter_gradients["log_scale"])[:] = scale * (shares * rises).sum()
        return math.log(total)
