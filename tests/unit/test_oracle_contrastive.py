"""The oracle's pairs and contrastive loss: known numbers, closed forms, finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.oracle import contrastive
from tests.oracle.contrastive import Form
from tests.oracle.numeric import Array, logsumexp
from tests.oracle.pairs import (
    AmbientScope,
    Negatives,
    PairClass,
    Pairs,
    Side,
    classify,
    modalities_by_bag,
    sides_by_bag,
)
from tests.oracle.relations import DROPPED, BagRelations, Relations, edges_of, merge, to_bags

FORMS = list(Form)
PAIRED = tuple((row, row + 4, 1.0) for row in range(4))
OTHERS = tuple((row, 4 + other, 1.0) for row in range(4) for other in range(4) if other != row)
F1_ROWS = [0.063370, 1.099458, 0.763087, 0.202666]
DIGITS = 6e-7


def f1_vectors() -> Array:
    """F1: four anchors, then their four candidates, as unit vectors of the plane."""
    turns = np.radians([0, 30, 60, 90, 10, 50, 50, 100])
    return np.stack([np.cos(turns), np.sin(turns)], axis=1)


def f1(relations: Relations, form: Form = Form.BALANCED, **settings: Any) -> contrastive.PairLoss:
    """F1's vectors at its temperature, with its candidates as the ambient negatives."""
    f1_settings: dict[str, Any] = {"scope": AmbientScope.TARGETS, "inverse_temperatures": (10.0,), **settings}
    return contrastive.evaluate(f1_vectors(), relations=relations, form=form, **f1_settings)


def unit_vectors(count: int, width: int, seed: int = 7) -> Array:
    vectors = np.random.default_rng(seed).normal(size=(count, width))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def mixed_relations() -> Relations:
    """Six items: several positives, weights, repelled and ignored pairs, a row that only repels, one without edges."""
    return Relations(
        attract=((0, 1, 1.0), (0, 2, 0.5), (1, 0, 2.0), (2, 4, 1.0), (3, 2, 1.0)),
        repel=((0, 3, 2.5), (1, 4, 0.25), (4, 0, 0.75)),
        ignore=((1, 2, 1.0), (3, 0, 1.0)),
    )


def test_edges_are_read_from_compressed_sparse_rows() -> None:
    assert edges_of([0, 2, 2, 3], [1, 2, 0]) == [(0, 1, 1.0), (0, 2, 1.0), (2, 0, 1.0)]
    assert edges_of([0, 1], [0], [0.5]) == [(0, 0, 0.5)]


def test_merging_keeps_the_larger_weight_and_drops_what_is_absent() -> None:
    bags = [0, 0, 1, 1, DROPPED]
    edges = [(0, 2, 0.5), (1, 3, 2.0), (0, 1, 9.0), (0, 4, 1.0), (4, 0, 1.0), (2, 0, 0.0), (3, 1, 0.25)]
    assert merge(edges, bags) == {(0, 1): 2.0, (1, 0): 0.25}


def test_precedence_is_ignored_attracted_repelled() -> None:
    every = ((0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0))
    between = to_bags(Relations(attract=every[:2], repel=every, ignore=every[:1]), range(4))
    assert between == BagRelations(attract={(0, 2): 1.0}, repel={(0, 3): 1.0}, ignore={(0, 1): 1.0})


def test_attraction_of_weight_zero_leaves_the_pair_to_the_next_class() -> None:
    between = to_bags(Relations(attract=((0, 1, 0.0),), repel=((0, 1, 3.0),)), range(2))
    pairs = classify(2, between)
    assert pairs.classes.tolist() == [[0, PairClass.REPELLED], [PairClass.AMBIENT, 0]]
    assert pairs.weights.tolist() == [[0, 3.0], [1.0, 0]]


def ambient(pairs: Pairs) -> set[tuple[int, int]]:
    return {(int(row), int(column)) for row, column in np.argwhere(pairs.classes == PairClass.AMBIENT)}


def test_ambient_scopes() -> None:
    bags = [0, 0, 1, 2, 3]
    modalities = modalities_by_bag(["text", "image", "text", "image", "audio"], bags)
    sides = sides_by_bag([Side.QUERY, Side.DOCUMENT, Side.QUERY, Side.DOCUMENT, Side.NONE], bags)
    none = BagRelations()
    off_diagonal = {(row, column) for row in range(4) for column in range(4) if row != column}
    assert ambient(classify(4, none)) == off_diagonal
    assert ambient(classify(4, none, negatives=Negatives.NAMED)) == set()
    assert ambient(classify(4, none, ambient_weight=0.0)) == set()
    across = classify(4, none, scope=AmbientScope.CROSS_MODAL, modalities=modalities)
    assert ambient(across) == {(0, 3), (3, 0), (1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)}
    across = classify(4, none, scope=AmbientScope.CROSS_SIDE, sides=sides)
    assert ambient(across) == {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}
    named = BagRelations(attract={(0, 1): 1.0}, repel={(2, 3): 1.0}, ignore={(1, 0): 1.0})
    assert ambient(classify(4, named, scope=AmbientScope.TARGETS)) == {(2, 1), (3, 1), (0, 3), (1, 3)}


@pytest.mark.parametrize("form", [Form.BALANCED, Form.RANKED])
def test_F1_row_losses(form: Form) -> None:
    result = f1(Relations(attract=PAIRED), form)
    np.testing.assert_allclose(result.row_losses, F1_ROWS, atol=DIGITS)
    assert result.loss == pytest.approx(0.532145, abs=DIGITS)
    assert result.rows.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("form", [Form.BALANCED, Form.RANKED])
def test_F1_with_named_negatives(form: Form) -> None:
    result = f1(Relations(attract=PAIRED, repel=OTHERS), form, negatives=Negatives.NAMED)
    np.testing.assert_allclose(result.row_losses, F1_ROWS, atol=DIGITS)


def test_F1_with_every_ambient_bag() -> None:
    assert f1(Relations(attract=PAIRED), scope=AmbientScope.EVERY).loss == pytest.approx(0.786593, abs=DIGITS)


def test_DST_01_gradient_norms_of_F1() -> None:
    result = f1(Relations(attract=PAIRED))
    assert np.linalg.norm(result.gradient[:4]) == pytest.approx(0.702354, abs=DIGITS)
    assert np.linalg.norm(result.gradient[4:]) == pytest.approx(1.313905, abs=DIGITS)


def test_CON_01_ignored_twin_is_no_negative() -> None:
    twins = ((1, 6, 1.0), (2, 5, 1.0))
    assert f1(Relations(attract=PAIRED, ignore=twins)).loss == pytest.approx(0.273940, abs=DIGITS)


@pytest.mark.parametrize("form", FORMS)
def test_CON_03_row_without_pairs_leaves_the_divisor(form: Form) -> None:
    blocked = tuple((0, other, 1.0) for other in range(1, 8))
    named: dict[str, Any] = {"negatives": Negatives.NAMED}
    whole = f1(Relations(attract=PAIRED, repel=OTHERS), form, **named)
    result = f1(Relations(attract=PAIRED, repel=OTHERS, ignore=blocked), form, **named)
    assert result.rows.tolist() == [1, 2, 3]
    np.testing.assert_allclose(result.row_losses, whole.row_losses[1:])
    assert result.loss == pytest.approx(np.mean(whole.row_losses[1:]))
    np.testing.assert_array_equal(result.gradient[0], 0.0)


@pytest.mark.parametrize(("form", "expected"), [(Form.BALANCED, 1.099458), (Form.RANKED, 0.694415)])
def test_CON_05_several_positives(form: Form, expected: float) -> None:
    result = f1(Relations(attract=(*PAIRED, (1, 6, 1.0))), form)
    assert result.row_losses[1] == pytest.approx(expected, abs=DIGITS)


def test_CON_09_lone_pair() -> None:
    pair = np.array([[1.0, 0.0], [0.6, 0.8]])
    for form in (Form.BALANCED, Form.RANKED):
        result = contrastive.evaluate(pair, relations=Relations(attract=((0, 1, 1.0),)), form=form)
        assert result.loss == pytest.approx(0.0, abs=1e-12)
        np.testing.assert_allclose(result.gradient, 0.0, atol=1e-12)
    sigmoid = contrastive.evaluate(
        pair,
        relations=Relations(attract=((0, 1, 1.0),)),
        form=Form.SIGMOID,
        inverse_temperatures=(2.0,),
        biases=(-1.0,),
    )
    assert sigmoid.loss == pytest.approx(np.log1p(np.exp(-(2 * 0.6 - 1))))


@pytest.mark.parametrize("scale", [1.0, 0.9, 9.0])
def test_CON_11_one_weight_for_all(scale: float) -> None:
    attract = tuple((row, candidate, scale) for row, candidate, _ in PAIRED)
    repel = tuple((row, candidate, scale) for row, candidate, _ in OTHERS)
    named: dict[str, Any] = {"negatives": Negatives.NAMED}
    for form, expected in ((Form.BALANCED, 1.0), (Form.RANKED, 1.0), (Form.SIGMOID, scale)):
        plain = f1(Relations(attract=PAIRED, repel=OTHERS), form, **named)
        weighted = f1(Relations(attract=attract, repel=OTHERS if form != Form.SIGMOID else repel), form, **named)
        assert weighted.loss == pytest.approx(expected * plain.loss)
        np.testing.assert_allclose(weighted.gradient, expected * plain.gradient)


@pytest.mark.parametrize("form", FORMS)
def test_CON_15_without_edges_there_is_no_loss(form: Form) -> None:
    result = contrastive.evaluate(f1_vectors(), relations=Relations(), form=form)
    assert result.loss == 0.0
    assert result.rows.size == 0
    assert result.row_losses.shape == (0,)
    for part in (result.gradient, result.log_inverse_temperature_gradient, result.bias_gradient):
        np.testing.assert_array_equal(part, 0.0)
    assert result.gradient.shape == (8, 2)


def test_only_sigmoid_counts_rows_that_repel_alone() -> None:
    relations = Relations(attract=((0, 1, 1.0),), repel=((2, 1, 1.0),))
    rows = [contrastive.evaluate(f1_vectors()[:3], relations=relations, form=form).rows.tolist() for form in FORMS]
    assert rows == [[0], [0], [0, 2]]


@pytest.mark.parametrize("form", FORMS)
def test_MAT_01_order_of_prefixes_means_nothing(form: Form) -> None:
    vectors = unit_vectors(6, 8)
    answers = [
        contrastive.evaluate(vectors, relations=mixed_relations(), form=form, prefixes=prefixes)
        for prefixes in ((2, 8, 4), (8, 4, 2), (4, 2, 2, 8))
    ]
    for answer in answers[1:]:
        assert answer.loss == answers[0].loss
        np.testing.assert_array_equal(answer.gradient, answers[0].gradient)
    singles = [
        contrastive.evaluate(vectors, relations=mixed_relations(), form=form, prefixes=(width,)) for width in (2, 4, 8)
    ]
    assert answers[0].loss == pytest.approx(np.mean([single.loss for single in singles]))
    np.testing.assert_allclose(answers[0].row_losses, np.mean([single.row_losses for single in singles], axis=0))


def test_full_width_is_taken_as_given_and_a_shorter_prefix_is_scaled() -> None:
    vectors = 2.0 * f1_vectors()
    assert contrastive.prefix(vectors, 2) is vectors
    np.testing.assert_allclose(contrastive.prefix(vectors, 1)[:3], np.ones((3, 1)))


def test_NUM_03_temperature_is_kept_as_a_logarithm() -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    relations = Relations(attract=((0, 1, 1.0),))
    for form in (Form.BALANCED, Form.RANKED):
        result = contrastive.evaluate(vectors, relations=relations, form=form, inverse_temperatures=(1 / 0.07,))
        assert result.loss == pytest.approx(np.log1p(np.exp(-1 / 0.07)), rel=1e-9)


@pytest.mark.parametrize("form", [Form.BALANCED, Form.RANKED])
def test_NUM_05_sharpest_temperature(form: Form) -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    for positive, loss in ((1, 0.0), (2, 200.0)):
        result = contrastive.evaluate(
            vectors, relations=Relations(attract=((0, positive, 1.0),)), form=form, inverse_temperatures=(100.0,)
        )
        assert result.loss == pytest.approx(loss, abs=1e-9)
        assert np.all(np.isfinite(result.gradient))


def test_both_directions_under_CROSS_MODAL_are_the_average_of_the_two() -> None:
    vectors = unit_vectors(10, 4)
    count = 5
    there = tuple((row, row + count, 1.0) for row in range(count))
    back = tuple((row + count, row, 1.0) for row in range(count))
    scores = 3.0 * vectors[:count] @ vectors[count:].T
    expected = 0.5 * sum(np.mean(logsumexp(matrix) - np.diag(matrix)) for matrix in (scores, scores.T))
    result = contrastive.evaluate(
        vectors,
        relations=Relations(attract=there + back),
        form=Form.BALANCED,
        scope=AmbientScope.CROSS_MODAL,
        modalities=["text"] * count + ["image"] * count,
        inverse_temperatures=(3.0,),
    )
    assert result.loss == pytest.approx(expected)


def forces(scores: Array, pairs: Pairs, row: int, form: Form) -> Array:
    """The derivative of a row's loss by its scores, by the closed forms of the objectives' table."""
    force = np.zeros(len(scores))
    sigmoid = 1.0 / (1.0 + np.exp(-scores))
    attracted, opposed = pairs.attracted(row), pairs.opposed(row)
    weight = pairs.weights[row]
    share = weight[attracted] / weight[attracted].sum() if len(attracted) else np.zeros(0)
    opposing = weight[opposed] * np.exp(scores[opposed])
    if form == Form.SIGMOID:
        force[attracted] = -weight[attracted] * (1.0 - sigmoid[attracted])
        force[opposed] = weight[opposed] * sigmoid[opposed]
    elif form == Form.BALANCED:
        total = opposing.sum() + np.exp(scores[attracted]).sum()
        force[attracted] = np.exp(scores[attracted]) / total - share
        force[opposed] = opposing / total
    elif len(opposed):
        pull = share / (1.0 + np.exp(scores[attracted] - np.log(opposing.sum())))
        force[attracted] = -pull
        force[opposed] = pull.sum() * opposing / opposing.sum()
    return force


@pytest.mark.parametrize("negatives", list(Negatives))
@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_the_closed_forms(form: Form, negatives: Negatives) -> None:
    vectors = unit_vectors(6, 3)
    groups, scales, shifts = (0, 1, 0, 1, 1, 0), (2.0, 5.0), (-1.0, 0.5)
    result = contrastive.evaluate(
        vectors,
        relations=mixed_relations(),
        form=form,
        negatives=negatives,
        ambient_weight=0.5,
        groups=groups,
        inverse_temperatures=scales,
        biases=shifts,
    )
    pairs = classify(6, to_bags(mixed_relations(), range(6)), negatives=negatives, ambient_weight=0.5)
    gradient, scale_gradient, shift_gradient = np.zeros((6, 3)), np.zeros(2), np.zeros(2)
    for row in result.rows:
        group = groups[row]
        products = vectors @ vectors[row]
        shift = shifts[group] if form == Form.SIGMOID else 0.0
        force = forces(scales[group] * products + shift, pairs, row, form) / len(result.rows)
        if form == Form.BALANCED:
            assert force.sum() == pytest.approx(0.0, abs=1e-12)
        gradient[row] += scales[group] * force @ vectors
        gradient += scales[group] * np.outer(force, vectors[row])
        scale_gradient[group] += scales[group] * force @ products
        shift_gradient[group] += force.sum() if form == Form.SIGMOID else 0.0
    np.testing.assert_allclose(result.gradient, gradient, atol=1e-12)
    np.testing.assert_allclose(result.log_inverse_temperature_gradient, scale_gradient, atol=1e-12)
    np.testing.assert_allclose(result.bias_gradient, shift_gradient, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_contrastive_finite_differences_through_prefixes(form: Form) -> None:
    rng = np.random.default_rng(3)
    settings: dict[str, Any] = {
        "relations": mixed_relations(),
        "form": form,
        "prefixes": (2, 3, 5),
        "inverse_temperatures": (4.0,),
    }
    vectors, direction = unit_vectors(6, 5), rng.normal(size=(6, 5))
    result = contrastive.evaluate(vectors, **settings)
    size = 1e-5
    ahead = contrastive.evaluate(vectors + size * direction, **settings).loss
    behind = contrastive.evaluate(vectors - size * direction, **settings).loss
    assert np.sum(result.gradient * direction) == pytest.approx((ahead - behind) / (2 * size), rel=1e-7)
