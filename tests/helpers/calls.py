"""One call of a step: its items and their relations, as the library and as the oracle take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import uform
from tests.oracle.relations import ItemEdges
from tests.oracle.relations import Relations as OracleRelations

Array = npt.NDArray[Any]
Content = str | bytes | Array


def edges(items: int, triples: ItemEdges, *, weights: bool = True) -> uform.Edges:
    """Compressed sparse rows of edges `(row, candidate, weight)`."""
    ordered = sorted(triples, key=lambda edge: edge[0])
    counts = np.bincount([row for row, _, _ in ordered], minlength=items)
    return uform.Edges(
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64),
        ids=np.array([candidate for _, candidate, _ in ordered], dtype=np.uint32),
        weights=np.array([weight for _, _, weight in ordered], dtype=np.float32) if weights else None,
    )


def relate(
    items: int, *, attract: ItemEdges = (), repel: ItemEdges = (), ignore: ItemEdges = ()
) -> uform.Relations | None:
    """The three sets as buffers; None where all are empty."""
    if not (attract or repel or ignore):
        return None
    return uform.Relations(
        attract=edges(items, attract) if attract else None,
        repel=edges(items, repel) if repel else None,
        ignore=edges(items, ignore, weights=False) if ignore else None,
    )


def pairs_both_ways(pairs: int) -> tuple[tuple[int, int, float], ...]:
    """Item `i` and item `pairs + i` attract each other."""
    there = tuple((row, pairs + row, 1.0) for row in range(pairs))
    return there + tuple((candidate, row, weight) for row, candidate, weight in there)


@dataclass(frozen=True)
class Call:
    """A step's items: texts as `str` or `bytes`, images as `uint8` arrays."""

    contents: Sequence[Content]
    bags: Sequence[int] | None = None
    groups: Sequence[int] | None = None
    sides: Sequence[int] | None = None
    attract: ItemEdges = ()
    repel: ItemEdges = ()
    ignore: ItemEdges = ()
    choices: Sequence[Any] | None = None  # texts, or a list of them for each item
    choice_targets: Any = None  # in any form that a step takes

    def choices_of(self, item: int) -> list[bytes]:
        """What an item is offered."""
        if not self.choices or not isinstance(self.contents[item], str | bytes):
            return []
        flat = isinstance(self.choices[0], str | bytes)
        own = self.choices if flat else self.choices[item]
        return [choice.encode() if isinstance(choice, str) else choice for choice in own]

    @property
    def modalities(self) -> list[uform.Modality]:
        return [
            uform.Modality.TEXT if isinstance(content, str | bytes) else uform.Modality.IMAGE
            for content in self.contents
        ]

    @property
    def relations(self) -> uform.Relations | None:
        return relate(len(self.contents), attract=self.attract, repel=self.repel, ignore=self.ignore)

    @property
    def item_relations(self) -> OracleRelations:
        return OracleRelations(attract=self.attract, repel=self.repel, ignore=self.ignore)

    @property
    def bag_of(self) -> list[int]:
        """Each item's bag, numbered by first appearance."""
        words = range(len(self.contents)) if self.bags is None else self.bags
        numbers: dict[int, int] = {}
        return [numbers.setdefault(word, len(numbers)) for word in words]

    def sides_for(self, trainer: uform.Trainer) -> list[uform.LateInteractionSide] | None:
        """The sides, where the run reads them: one that reads none refuses them."""
        run = trainer.describe()
        scope = run.get("contrastive", {}).get("ambient_scope")
        if self.sides is None or ("late_interaction" not in run and scope != uform.AmbientScope.CROSS_SIDE):
            return None
        return [uform.LateInteractionSide(side) for side in self.sides]

    def step(self, trainer: uform.Trainer, **keywords: Any) -> StepAnswer:
        """Runs the step; answers its statistics and the embeddings.

        A run in which nothing scores pairs is given neither relations nor groups: it refuses them.
        """
        run = trainer.describe()
        scores = "contrastive" in run or "late_interaction" in run
        stats, arena = uform.TrainerStepStats(), uform.Arena.for_ram()
        answered = trainer.step(
            self.modalities,
            self.contents,
            bags=self.bags,
            temperature_groups=self.groups if scores else None,
            sides=self.sides_for(trainer),
            relations=self.relations if scores else None,
            choices=self.choices,
            choice_targets=self.choice_targets,
            arena=arena,
            stats=stats,
            **keywords,
        )
        assert answered is not None
        return StepAnswer(stats, np.array(answered.numpy()))


@dataclass(frozen=True)
class StepAnswer:
    """What a step answered.

    Attributes:
        stats: Its statistics.
        embeddings: `[bags, hidden]`.
    """

    stats: uform.TrainerStepStats
    embeddings: Array
