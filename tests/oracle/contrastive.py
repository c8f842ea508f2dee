"""The contrastive loss in its three forms, over embeddings of bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import autograd.numpy as np

from .numeric import Array, gradient, logsumexp, softplus, unit
from .pairs import AmbientScope, Negatives, PairClass, Pairs, classify, modalities_by_bag, sides_by_bag
from .relations import Relations, to_bags


class Form(IntEnum):
    """How a row of scores becomes a loss."""

    BALANCED = 1
    RANKED = 2
    SIGMOID = 3


@dataclass(frozen=True)
class PairLoss:
    """A contrastive loss with its gradients.

    Attributes:
        loss: Mean over `rows`, then over the prefixes; 0 where no row counts.
        gradient: Of the loss by the embeddings, `[bags, width]`.
        log_inverse_temperature_gradient: `[groups]`.
        bias_gradient: `[groups]`; 0 outside SIGMOID.
        row_losses: Each counted row's loss, mean over the prefixes, in the order of `rows`.
        rows: The bags that counted, ascending.
    """

    loss: float
    gradient: Array
    log_inverse_temperature_gradient: Array
    bias_gradient: Array
    row_losses: Array
    rows: Array


def counted_rows(pairs: Pairs, form: Form) -> list[int]:
    """The rows `R`: bags with an attracted pair, for SIGMOID also those with a repelled one."""
    rows = []
    for row in range(len(pairs.classes)):
        repels = form == Form.SIGMOID and pairs.has(row, PairClass.REPELLED)
        if pairs.has(row, PairClass.ATTRACTED) or repels:
            rows.append(row)
    return rows


def prefix(embeddings: Array, width: int) -> Array:
    """The first `width` columns, scaled to unit length again; the full width is taken as it is."""
    if width == embeddings.shape[1]:
        return embeddings
    return np.array([unit(vector[:width]) for vector in embeddings])


def row_loss(scores: Array, pairs: Pairs, row: int, form: Form) -> Array:
    """The loss of one row.

    Args:
        scores: The row's scores of every bag, `[bags]`.
        pairs: Classes and weights.
        row: The row's number in `pairs`.
        form: Which of the three losses.
    """
    attracted, opposed = pairs.attracted(row), pairs.opposed(row)
    attraction, opposition = pairs.weights[row, attracted], pairs.weights[row, opposed]
    if form == Form.SIGMOID:
        pulled = np.sum(attraction * softplus(-scores[attracted]))
        pushed = np.sum(opposition * softplus(scores[opposed]))
        return pulled + pushed
    share = attraction / np.sum(attraction)
    opposing = scores[opposed] + np.log(opposition)
    if form == Form.BALANCED:
        total = logsumexp(np.concatenate([scores[attracted], opposing]))
        return total - np.sum(share * scores[attracted])
    if len(opposed) == 0:
        return 0.0
    return np.sum(share * softplus(logsumexp(opposing) - scores[attracted]))


def row_losses(
    embeddings: Array,
    log_inverse_temperatures: Array,
    biases: Array,
    *,
    pairs: Pairs,
    form: Form,
    groups: Sequence[int],
    prefixes: Sequence[int] | None = None,
) -> Array:
    """The losses of the counted rows, `[rows]`, each the mean over the prefixes.

    Args:
        embeddings: `[bags, width]`.
        log_inverse_temperatures: One a group.
        biases: One a group; SIGMOID alone reads them.
        pairs: Classes and weights.
        form: Which of the three losses.
        groups: Each bag's temperature group; a row's scores take the row's.
        prefixes: Widths to score, sorted and deduplicated here; None is the full width only.
    """
    rows = counted_rows(pairs, form)
    own_group = np.asarray(groups, dtype=np.int64)
    scales = np.exp(log_inverse_temperatures)[own_group]
    shifts = biases[own_group] if form == Form.SIGMOID else np.zeros(len(own_group))
    widths = sorted(set(prefixes)) if prefixes else [embeddings.shape[1]]
    by_width = []
    for width in widths:
        vectors = prefix(embeddings, width)
        scores = scales[:, None] * np.dot(vectors, vectors.T) + shifts[:, None]
        by_width.append(np.array([row_loss(scores[row], pairs, row, form) for row in rows]))
    return np.mean(np.array(by_width), axis=0)


def loss(
    embeddings: Array,
    log_inverse_temperatures: Array,
    biases: Array,
    *,
    pairs: Pairs,
    form: Form,
    groups: Sequence[int],
    prefixes: Sequence[int] | None = None,
) -> Array:
    """The mean of `row_losses`, whose arguments it takes; 0 where no row counts."""
    if not counted_rows(pairs, form):
        return 0.0
    return np.mean(
        row_losses(
            embeddings, log_inverse_temperatures, biases, pairs=pairs, form=form, groups=groups, prefixes=prefixes
        )
    )


def evaluate(
    embeddings: Array,
    *,
    relations: Relations,
    form: Form,
    negatives: Negatives = Negatives.AMBIENT,
    scope: AmbientScope = AmbientScope.EVERY,
    ambient_weight: float = 1.0,
    modalities: Sequence[object] = (),
    sides: Sequence[int] = (),
    groups: Sequence[int] | None = None,
    inverse_temperatures: Sequence[float] = (1 / 0.07,),
    biases: Sequence[float] | None = None,
    prefixes: Sequence[int] | None = None,
) -> PairLoss:
    """The loss and its gradients over embeddings, one item a bag.

    Args:
        embeddings: `[items, width]`.
        relations: Edges between the items.
        form: Which of the three losses.
        negatives: Whether there are ambient negatives.
        scope: Which of them a row sees.
        ambient_weight: Their weight.
        modalities: Each item's modality, read by CROSS_MODAL.
        sides: Each item's `Side`, read by CROSS_SIDE.
        groups: Each item's temperature group; None puts all in group 0.
        inverse_temperatures: One a group.
        biases: One a group; None is 0.
        prefixes: Matryoshka widths; None is the full width only.
    """
    vectors = np.asarray(embeddings, dtype=np.float64)
    count = len(vectors)
    bags = range(count)
    pairs = classify(
        count,
        to_bags(relations, bags),
        negatives=negatives,
        scope=scope,
        ambient_weight=ambient_weight,
        modalities=modalities_by_bag(modalities, bags) if modalities else (),
        sides=sides_by_bag(sides, bags) if sides else (),
    )
    own_groups = [0] * count if groups is None else groups
    scales = np.log(np.asarray(inverse_temperatures, dtype=np.float64))
    shifts = np.zeros(len(scales)) if biases is None else np.asarray(biases, dtype=np.float64)

    def value(variables: tuple[Array, Array, Array]) -> Array:
        return loss(*variables, pairs=pairs, form=form, groups=own_groups, prefixes=prefixes)

    variables = (vectors, scales, shifts)
    vector_gradient, scale_gradient, shift_gradient = gradient(value, variables)
    return PairLoss(
        loss=float(value(variables)),
        gradient=vector_gradient,
        log_inverse_temperature_gradient=scale_gradient,
        bias_gradient=shift_gradient,
        row_losses=row_losses(*variables, pairs=pairs, form=form, groups=own_groups, prefixes=prefixes),
        rows=np.array(counted_rows(pairs, form), dtype=np.int64),
    )
