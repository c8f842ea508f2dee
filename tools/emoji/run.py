"""One run, whoever trains: steps against the clock, and recall on held-out emojis at a few points."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tools.emoji.batches import Batch
from tools.emoji.data import Emojis
from tools.emoji.recall import Vectors, recalls


class Trains(Protocol):
    """What a run needs of a learner.

    Attributes:
        name: what the report calls it.
    """

    name: str

    def warm_up(self, batch: Batch) -> None:
        """What takes its time once, such as compiling; changes nothing."""

    def step(self, batch: Batch) -> None:
        """One optimizer step, which need not be over when this returns."""

    def step_and_tell(self, batch: Batch) -> float:
        """One optimizer step; answers its loss, when all steps are over."""

    def embed(self, emojis: Emojis) -> tuple[Vectors, Vectors]:
        """Unit vectors of the pictures and of all names."""


@dataclass(frozen=True)
class Point:
    """Where a run stood after a step.

    Attributes:
        step: counted from 1.
        seconds: of training until then, without the evaluations and without the first batch's making.
        loss: of that step's batch.
        recalls: by their titles.
    """

    step: int
    seconds: float
    loss: float
    recalls: dict[str, float]

    @property
    def mean(self) -> float:
        """The mean of all recalls, one number to compare runs by."""
        return sum(self.recalls.values()) / len(self.recalls)


def train(learner: Trains, batches: Iterable[Batch], valid: Emojis, evaluate_at: set[int]) -> Iterator[Point]:
    """Steps through the batches; yields a point for each step of `evaluate_at`."""
    seconds, begin = 0.0, time.perf_counter()
    for number, batch in enumerate(batches, 1):
        if number not in evaluate_at:
            learner.step(batch)
            continue
        loss = learner.step_and_tell(batch)
        seconds += time.perf_counter() - begin
        pictures, names = learner.embed(valid)
        yield Point(number, seconds, loss, recalls(pictures, names, valid.owners))
        begin = time.perf_counter()


def seconds_to_reach(points: list[Point], mean: float) -> float | None:
    """Seconds of training until the first point whose mean recall is at least that, None where there is none."""
    return next((point.seconds for point in points if point.mean >= mean), None)
