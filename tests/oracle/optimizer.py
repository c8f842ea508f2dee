"""AdamW with decoupled decay, the clip of the global norm, and the schedule of the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .numeric import Array
from .parameters import LOG_INVERSE_TEMPERATURE


@dataclass(frozen=True)
class Schedule:
    """A linear warmup to the peak, then a cosine decay to the floor, which holds after the last step."""

    learning_rate: float
    min_learning_rate: float
    warmup_steps: int
    steps: int

    def rate(self, step: int) -> float:
        """The rate that the applied step, counted from 1, takes."""
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if step >= self.steps:
            return self.min_learning_rate
        progress = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        span = self.learning_rate - self.min_learning_rate
        return self.min_learning_rate + span * 0.5 * (1.0 + float(np.cos(np.pi * progress)))


def global_norm(gradients: Mapping[str, Array]) -> float:
    """The 2-norm of all gradients as one vector."""
    return float(np.sqrt(sum(float(np.sum(gradient**2)) for gradient in gradients.values())))


def clip(gradients: Mapping[str, Array], limit: float) -> dict[str, Array]:
    """The gradients scaled so that their global norm is at most `limit`."""
    norm = global_norm(gradients)
    scale = limit / norm if norm > limit else 1.0
    return {name: gradient * scale for name, gradient in gradients.items()}


@dataclass
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019); matrices alone decay.

    Attributes:
        first: Running means of the gradients, by parameter.
        second: Running means of their squares.
        step: How many updates were applied.
        log_temperature_range: The logarithms of the inverse temperatures are put back in here after each update.
    """

    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-6
    decay: float = 0.01
    max_norm: float = 1.0
    log_temperature_range: tuple[float, float] = (0.0, float(np.log(100.0)))
    first: dict[str, Array] = field(default_factory=dict)
    second: dict[str, Array] = field(default_factory=dict)
    step: int = 0

    def update(self, parameters: Mapping[str, Array], gradients: Mapping[str, Array], rate: float) -> dict[str, Array]:
        """The parameters after one more step at `rate`; the clip comes first."""
        self.step += 1
        updated = {}
        for name, gradient in clip(gradients, self.max_norm).items():
            value = parameters[name]
            zero = np.zeros_like(value)
            self.first[name] = self.beta1 * self.first.get(name, zero) + (1 - self.beta1) * gradient
            self.second[name] = self.beta2 * self.second.get(name, zero) + (1 - self.beta2) * gradient**2
            mean = self.first[name] / (1 - self.beta1**self.step)
            square = self.second[name] / (1 - self.beta2**self.step)
            decay = self.decay if value.ndim == 2 else 0.0
            updated[name] = value - rate * (mean / (np.sqrt(square) + self.epsilon) + decay * value)
        if LOG_INVERSE_TEMPERATURE in updated:
            updated[LOG_INVERSE_TEMPERATURE] = np.clip(updated[LOG_INVERSE_TEMPERATURE], *self.log_temperature_range)
        return updated
