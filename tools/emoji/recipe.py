"""What is trained and for how long, whoever trains it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tools.emoji.data import Emojis

ROW_COLUMNS = 1024


@dataclass(frozen=True)
class Recipe:
    """One run.

    Attributes:
        depth: blocks of the encoder.
        hidden: its width, a multiple of 64.
        patch_side: of the pictures' patches.
        pictures: of a step.
        names_each: names of each picture in a step.
        steps: optimizer steps.
        learning_rate: the peak; a twentieth of the steps warms up, then a cosine falls to a tenth.
        weight_decay: on matrices.
        seed: of the first weights, and of the batches.
    """

    depth: int = 4
    hidden: int = 384
    patch_side: int = 8
    pictures: int = 512
    names_each: int = 3
    steps: int = 900
    learning_rate: float = 6e-4
    weight_decay: float = 0.1
    seed: int = 0

    @property
    def min_learning_rate(self) -> float:
        """Where the cosine ends."""
        return self.learning_rate / 10

    @property
    def warmup_steps(self) -> int:
        """Steps until the peak."""
        return self.steps // 20

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 1: linear to the peak, then a cosine to the floor."""
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / (self.steps - self.warmup_steps))
        span = self.learning_rate - self.min_learning_rate
        return self.min_learning_rate + span * 0.5 * (1 + math.cos(math.pi * progress))

    def picture_columns(self, emojis: Emojis) -> int:
        """Columns of one picture: its marker and its patches."""
        side: int = emojis.pictures.shape[1]
        return 1 + math.ceil(side / self.patch_side) ** 2

    def name_columns(self, emojis: Emojis) -> int:
        """Columns that suffice for a step's names: six deviations above what they take on average."""
        sizes = np.array([1 + len(name.encode()) for name in emojis.all_names])
        count = self.pictures * self.names_each
        return math.ceil(count * float(sizes.mean()) + 6 * math.sqrt(count) * float(sizes.std()))

    def rows(self, emojis: Emojis) -> int:
        """Rows of ROW_COLUMNS that a step's items fit into, a twentieth to spare for the ends of rows."""
        columns = self.pictures * self.picture_columns(emojis) + self.name_columns(emojis)
        return math.ceil(1.05 * columns / ROW_COLUMNS) + 1
