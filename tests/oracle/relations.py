"""Relations: from edges between items to edges between bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ItemEdges = Sequence[tuple[int, int, float]]
BagEdges = dict[tuple[int, int], float]

DROPPED = -1


@dataclass(frozen=True)
class Relations:
    """Directed edges `(row, candidate, weight)` between items, in three sets."""

    attract: ItemEdges = ()
    repel: ItemEdges = ()
    ignore: ItemEdges = ()


@dataclass(frozen=True)
class BagRelations:
    """Directed edges between bags with their weights; no pair stands in two sets."""

    attract: BagEdges = field(default_factory=dict)
    repel: BagEdges = field(default_factory=dict)
    ignore: BagEdges = field(default_factory=dict)


def edges_of(offsets: Sequence[int], ids: Sequence[int], weights: Sequence[float] | None = None) -> ItemEdges:
    """The edges that compressed sparse rows hold; without weights each weighs 1."""
    edges = []
    for row in range(len(offsets) - 1):
        for place in range(int(offsets[row]), int(offsets[row + 1])):
            edges.append((row, int(ids[place]), 1.0 if weights is None else float(weights[place])))
    return edges


def merge(edges: ItemEdges, bags: Sequence[int]) -> BagEdges:
    """Maps one set of item edges to bags; of a pair named twice the larger weight counts.

    Absent afterwards: edges of weight 0, edges inside one bag, and edges that touch an item whose bag is `DROPPED`.
    """
    merged: BagEdges = {}
    for row_item, candidate_item, weight in edges:
        pair = (bags[row_item], bags[candidate_item])
        if weight == 0 or pair[0] == pair[1] or DROPPED in pair:
            continue
        merged[pair] = max(weight, merged.get(pair, 0.0))
    return merged


def to_bags(relations: Relations, bags: Sequence[int]) -> BagRelations:
    """The relations between bags: ignored comes before attracted, attracted before repelled."""
    ignore = merge(relations.ignore, bags)
    attract = {pair: w for pair, w in merge(relations.attract, bags).items() if pair not in ignore}
    repel = {pair: w for pair, w in merge(relations.repel, bags).items() if pair not in ignore and pair not in attract}
    return BagRelations(attract=attract, repel=repel, ignore=ignore)
