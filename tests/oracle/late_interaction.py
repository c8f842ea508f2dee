"""Late interaction: token vectors of queries find their matches in documents, item by item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import autograd.numpy as np
from autograd.tracer import getval

from .contrastive import Form, PairLoss, counted_rows, row_loss
from .numeric import Array, gradient, unit
from .pairs import AmbientScope, Negatives, PairClass, Pairs, Side, classify
from .relations import Relations, to_bags


def token_vectors(states: Array, projection: Array) -> Array:
    """`[columns, width]`: each hidden state mapped by `projection [width, hidden]` and scaled to unit length."""
    return np.array([unit(mapped) for mapped in np.dot(states, projection.T)])


def similarity(query: Array, document: Array) -> Array:
    """The mean over the query's vectors of the largest dot product with any of the document's.

    The gradient follows the largest product, of equal ones that of the lowest row.
    """
    products = np.dot(query, document.T)
    return np.mean(products[np.arange(len(products)), np.argmax(getval(products), axis=1)])


def item_pairs(
    relations: Relations,
    sides: Sequence[int],
    *,
    negatives: Negatives = Negatives.AMBIENT,
    scope: AmbientScope = AmbientScope.EVERY,
    ambient_weight: float = 1.0,
    modalities: Sequence[Any] = (),
) -> Pairs:
    """The class and the weight of every pair of items: rows are queries, candidates are documents.

    Args:
        relations: Edges between the items.
        sides: Each item's `Side`.
        negatives: Whether there are ambient negatives.
        scope: Which of them a row sees.
        ambient_weight: Their weight.
        modalities: Each item's modality, read by CROSS_MODAL.
    """
    count = len(sides)
    is_query = np.array([bool(side & Side.QUERY) for side in sides])
    is_document = np.array([bool(side & Side.DOCUMENT) for side in sides])

    def between(edges: Any) -> Any:
        return [edge for edge in edges if is_query[edge[0]] and is_document[edge[1]]]

    kept = Relations(between(relations.attract), between(relations.repel), between(relations.ignore))
    pairs = classify(
        count,
        to_bags(kept, range(count)),
        negatives=negatives,
        scope=scope,
        ambient_weight=ambient_weight,
        modalities=[frozenset([modality]) for modality in modalities],
        sides=sides,
    )
    there = np.outer(is_query, is_document)
    return Pairs(classes=np.where(there, pairs.classes, PairClass.ABSENT), weights=np.where(there, pairs.weights, 0.0))


def row_losses(
    vectors: Sequence[Array], log_inverse_temperature: Array, bias: Array, *, pairs: Pairs, form: Form, span: int
) -> list[Array]:
    """The losses of the counted rows.

    Args:
        vectors: Each item's token vectors, `[columns, width]`.
        log_inverse_temperature: `[1]`.
        bias: `[1]`; SIGMOID alone reads it.
        pairs: Classes and weights, item by item.
        form: Which of the three losses.
        span: A query's vectors past so many are cut.
    """
    scale, shift = np.exp(log_inverse_temperature[0]), bias[0] if form == Form.SIGMOID else 0.0
    losses = []
    for row in counted_rows(pairs, form):
        scores = []
        for candidate, kind in enumerate(pairs.classes[row]):
            seen = kind not in (PairClass.ABSENT, PairClass.IGNORED)
            scores.append(scale * similarity(vectors[row][:span], vectors[candidate]) + shift if seen else 0.0)
        losses.append(row_loss(np.array(scores), pairs, row, form))
    return losses


def loss(
    vectors: Sequence[Array], log_inverse_temperature: Array, bias: Array, *, pairs: Pairs, form: Form, span: int
) -> Array:
    """The mean of `row_losses`, whose arguments it takes; 0 where no row counts."""
    found = row_losses(vectors, log_inverse_temperature, bias, pairs=pairs, form=form, span=span)
    return np.mean(np.array(found)) if found else 0.0


def evaluate(
    tokens: Array,
    offsets: Sequence[int],
    *,
    pairs: Pairs,
    form: Form,
    inverse_temperature: float = 20.0,
    bias: float = 0.0,
    span: int = 1 << 30,
) -> PairLoss:
    """The loss of given token vectors and its gradients: item `i` has rows `offsets[i]` to `offsets[i + 1]`."""

    def split(values: Array) -> list[Array]:
        return [values[offsets[item] : offsets[item + 1]] for item in range(len(offsets) - 1)]

    def value(variables: tuple[Array, Array, Array]) -> Array:
        return loss(split(variables[0]), variables[1], variables[2], pairs=pairs, form=form, span=span)

    exact = np.asarray(tokens, dtype=np.float64)
    variables = (exact, np.log(np.array([inverse_temperature])), np.array([bias], dtype=np.float64))
    by_tokens, by_temperature, by_bias = gradient(value, variables)
    return PairLoss(
        loss=float(value(variables)),
        gradient=by_tokens,
        log_inverse_temperature_gradient=by_temperature,
        bias_gradient=by_bias,
        row_losses=np.array(row_losses(split(exact), *variables[1:], pairs=pairs, form=form, span=span)),
        rows=np.array(counted_rows(pairs, form), dtype=np.int64),
    )
