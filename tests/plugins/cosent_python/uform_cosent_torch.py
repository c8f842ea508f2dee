"""CoSENT with a learned scale, in PyTorch: autograd derives the gradient."""

from __future__ import annotations

import math
from typing import ClassVar

import torch

import uform


class CoSENT:
    """Of two attracted pairs, the one of higher weight must have the higher cosine."""

    name = "cosent_torch"
    fields: ClassVar[dict[str, float]] = {"scale": 20.0}

    def __init__(self, scale: float) -> None:
        self.parameters = {"log_scale": {"shape": (1,), "value": math.log(scale)}}

    def forward_backward(self, batch: uform.PluginBatch) -> float:
        """Answers the loss and writes its gradients."""
        bags = torch.from_dlpack(batch.bags).requires_grad_()
        log_scale = torch.from_dlpack(batch.parameters["log_scale"]).requires_grad_()
        left, right = torch.as_tensor(batch.attract.places, device=bags.device).T
        weights = torch.as_tensor(batch.attract.weights, device=bags.device)
        cosines = (bags[left] * bags[right]).sum(1)
        rises = (log_scale.exp() * (cosines[None, :] - cosines[:, None]))[weights[:, None] > weights[None, :]]
        loss = torch.cat([rises, rises.new_zeros(1)]).logsumexp(0)
        gradients = torch.autograd.grad(loss, (bags, log_scale), materialize_grads=True)
        torch.from_dlpack(batch.bags_gradient).copy_(gradients[0])
        torch.from_dlpack(batch.parameter_gradients["log_scale"]).copy_(gradients[1])
        return float(loss.item())
