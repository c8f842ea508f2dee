"""The oracle's late interaction by hand and by finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracle.contrastive import Form
from tests.oracle.late_interaction import evaluate, item_pairs, similarity
from tests.oracle.pairs import AmbientScope, Negatives, PairClass
from tests.oracle.relations import Relations

QUERY, DOCUMENT, BOTH = 1, 2, 3


def test_similarity_by_hand() -> None:
    query = np.array([[1.0, 0.0], [0.0, 1.0]])
    document = np.array([[-1.0, 0.0], [-0.6, 0.8]])
    assert similarity(query, document) == pytest.approx((-0.6 + 0.8) / 2)
    assert similarity(query[:1], document) == pytest.approx(-0.6)


def test_pairs_are_of_queries_and_documents() -> None:
    relations = Relations(attract=((0, 1, 1.0), (1, 0, 1.0), (0, 2, 1.0), (2, 1, 1.0)))
    pairs = item_pairs(relations, [QUERY, DOCUMENT, BOTH, 0])
    assert pairs.classes[0].tolist() == [PairClass.ABSENT, PairClass.ATTRACTED, PairClass.ATTRACTED, PairClass.ABSENT]
    assert pairs.classes[1].tolist() == [PairClass.ABSENT] * 4
    assert pairs.classes[2].tolist() == [PairClass.ABSENT, PairClass.ATTRACTED, PairClass.ABSENT, PairClass.ABSENT]
    named = item_pairs(relations, [QUERY, DOCUMENT, BOTH, DOCUMENT], negatives=Negatives.NAMED)
    assert named.classes[0, 3] == PairClass.ABSENT
    targets = item_pairs(relations, [QUERY, DOCUMENT, BOTH, DOCUMENT], scope=AmbientScope.TARGETS)
    assert targets.classes[0, 3] == PairClass.ABSENT


@pytest.mark.parametrize("form", list(Form))
def test_finite_differences(form: Form) -> None:
    tokens = np.random.default_rng(3).normal(size=(14, 3))
    offsets = [0, 2, 5, 6, 10, 14]
    pairs = item_pairs(
        Relations(attract=((0, 1, 1.0), (2, 3, 2.0), (3, 4, 1.0)), repel=((0, 4, 0.5),)),
        [QUERY, DOCUMENT, QUERY, BOTH, DOCUMENT],
        ambient_weight=0.5,
    )
    found = evaluate(tokens, offsets, pairs=pairs, form=form, inverse_temperature=3.0, bias=-1.0)
    assert found.rows.tolist() == [0, 2, 3]
    assert np.mean(found.row_losses) == pytest.approx(found.loss)
    step, differences = 1e-6, np.zeros_like(tokens)
    for place in np.ndindex(*tokens.shape):
        ends = []
        for sign in (1, -1):
            moved = tokens.copy()
            moved[place] += sign * step
            ends.append(evaluate(moved, offsets, pairs=pairs, form=form, inverse_temperature=3.0, bias=-1.0).loss)
        differences[place] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(found.gradient, differences, atol=1e-7)
