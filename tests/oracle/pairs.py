"""The class and the weight of every pair of bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .numeric import Array
from .relations import BagRelations


class Negatives(IntEnum):
    """Which pairs repel beside the named ones."""

    AMBIENT = 0
    NAMED = 1


class AmbientScope(IntEnum):
    """Which bags a row sees as ambient negatives."""

    EVERY = 0
    CROSS_MODAL = 1
    TARGETS = 2
    CROSS_SIDE = 3


class Side(IntEnum):
    """The sides of an item; those of a bag are its items' together, bit by bit."""

    NONE = 0
    QUERY = 1
    DOCUMENT = 2
    QUERY_AND_DOCUMENT = 3


class PairClass(IntEnum):
    """What a row bag does to a candidate bag."""

    ABSENT = 0
    IGNORED = 1
    ATTRACTED = 2
    REPELLED = 3
    AMBIENT = 4


@dataclass(frozen=True)
class Pairs:
    """Every pair's class and weight.

    Attributes:
        classes: `[bags, bags]` of `PairClass`.
        weights: `[bags, bags]`, 0 for a pair that is absent or ignored.
    """

    classes: Array
    weights: Array

    def attracted(self, row: int) -> Array:
        """The candidates that the row attracts."""
        return np.flatnonzero(self.classes[row] == PairClass.ATTRACTED)

    def opposed(self, row: int) -> Array:
        """The candidates that the row pushes away, named or ambient."""
        return np.flatnonzero(np.isin(self.classes[row], (PairClass.REPELLED, PairClass.AMBIENT)))

    def has(self, row: int, pair_class: PairClass) -> bool:
        """Whether the row has a pair of this class."""
        return bool(np.any(self.classes[row] == pair_class))


def modalities_by_bag(modalities: Sequence[object], bags: Sequence[int]) -> list[frozenset[object]]:
    """The modalities of each bag's items."""
    count = 1 + max(bags)
    return [frozenset(m for m, owner in zip(modalities, bags, strict=True) if owner == bag) for bag in range(count)]


def sides_by_bag(sides: Sequence[int], bags: Sequence[int]) -> list[int]:
    """The sides of each bag's items together."""
    together = [0] * (1 + max(bags))
    for side, bag in zip(sides, bags, strict=True):
        together[bag] |= side
    return together


def _sees(row_side: int, candidate_side: int) -> bool:
    as_query = bool(row_side & Side.QUERY) and bool(candidate_side & Side.DOCUMENT)
    as_document = bool(row_side & Side.DOCUMENT) and bool(candidate_side & Side.QUERY)
    return as_query or as_document


def classify(
    count: int,
    relations: BagRelations,
    *,
    negatives: Negatives = Negatives.AMBIENT,
    scope: AmbientScope = AmbientScope.EVERY,
    ambient_weight: float = 1.0,
    modalities: Sequence[frozenset[object]] = (),
    sides: Sequence[int] = (),
) -> Pairs:
    """The first class that applies to every pair: ignored, attracted, repelled, ambient.

    Args:
        count: Number of bags.
        relations: Edges between them, left after drops, merging and precedence.
        negatives: Whether there are ambient negatives at all.
        scope: Which of them a row sees.
        ambient_weight: Their weight; 0 means none.
        modalities: Each bag's set of modalities, read by CROSS_MODAL.
        sides: Each bag's sides, read by CROSS_SIDE.
    """
    targets = {candidate for _, candidate in (*relations.attract, *relations.repel)}
    classes = np.full((count, count), PairClass.ABSENT, dtype=np.int64)
    weights = np.zeros((count, count))

    def in_scope(row: int, candidate: int) -> bool:
        if scope == AmbientScope.CROSS_MODAL:
            return modalities[row].isdisjoint(modalities[candidate])
        if scope == AmbientScope.TARGETS:
            return candidate in targets
        if scope == AmbientScope.CROSS_SIDE:
            return _sees(sides[row], sides[candidate])
        return True

    for row in range(count):
        for candidate in range(count):
            pair = (row, candidate)
            if row == candidate:
                continue
            if pair in relations.ignore:
                classes[pair] = PairClass.IGNORED
            elif pair in relations.attract:
                classes[pair], weights[pair] = PairClass.ATTRACTED, relations.attract[pair]
            elif pair in relations.repel:
                classes[pair], weights[pair] = PairClass.REPELLED, relations.repel[pair]
            elif negatives == Negatives.AMBIENT and ambient_weight > 0 and in_scope(row, candidate):
                classes[pair], weights[pair] = PairClass.AMBIENT, ambient_weight
    return Pairs(classes=classes, weights=weights)
