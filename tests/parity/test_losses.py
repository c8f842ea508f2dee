"""`uform.losses` against the oracle: a seeded grid of forms, relations, scopes, prefixes and groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import uform
from tests.helpers.calls import relate
from tests.helpers.reference import GRADIENTS, VALUES, relative_error
from tests.helpers.runs import ram, unit_vectors
from tests.oracle import contrastive as oracle
from tests.oracle import masked
from tests.oracle.contrastive import Form
from tests.oracle.numeric import gradient as gradient_of
from tests.oracle.pairs import AmbientScope, Negatives
from tests.oracle.relations import ItemEdges, Relations

FORMS = list(Form)
# Weights that float32 holds exactly, so that both sides see the same.
WEIGHTS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 3.0])


@st.composite
def edge_sets(draw: st.DrawFn, count: int, *, weighted: bool = True) -> ItemEdges:
    item = st.integers(0, count - 1)
    weight = WEIGHTS if weighted else st.just(1.0)
    return tuple(draw(st.lists(st.tuples(item, item, weight), max_size=2 * count)))


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Everything that a contrastive loss over given vectors may be asked."""
    count, width = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 5, 16, 33]))
    groups = draw(st.integers(1, 3))
    sigmoid = draw(st.booleans())
    each: dict[str, Any] = {"min_size": count, "max_size": count}
    return {
        "vectors": unit_vectors(count, width, draw(st.integers(0, 2**16))),
        "relations": Relations(
            attract=draw(edge_sets(count)),
            repel=draw(edge_sets(count)),
            ignore=draw(edge_sets(count, weighted=False)),
        ),
        "form": Form.SIGMOID if sigmoid else draw(st.sampled_from([Form.BALANCED, Form.RANKED])),
        "negatives": draw(st.sampled_from(list(Negatives))),
        "scope": draw(st.sampled_from(list(AmbientScope))),
        "ambient_weight": draw(st.sampled_from([0.25, 1.0, 2.0, 0.0])),
        "modalities": draw(st.lists(st.integers(0, 3), **each)),
        "sides": draw(st.lists(st.integers(0, 3), **each)),
        "groups": draw(st.lists(st.integers(0, groups - 1), **each)),
        "group_count": groups,
        "inverse_temperature": draw(st.sampled_from([1.0, 4.0, 14.0, 90.0])),
        "bias": draw(st.sampled_from([-10.0, -1.0, 2.0])) if sigmoid else 0.0,
        "prefixes": draw(st.lists(st.integers(1, width), max_size=4)) or None,
    }


def library(problem: dict[str, Any], vectors: Any = None) -> uform.losses.PairLoss:
    relations = problem["relations"]
    found: uform.losses.PairLoss = uform.losses.contrastive(
        ram(),
        problem["vectors"] if vectors is None else vectors,
        relations=relate(
            len(problem["vectors"]), attract=relations.attract, repel=relations.repel, ignore=relations.ignore
        ),
        contrastive=uform.Contrastive(
            matryoshka_dimensions=problem["prefixes"],
            temperature_groups=problem["group_count"],
            inverse_temperature=problem["inverse_temperature"],
            bias=problem["bias"],
            negatives=uform.Negatives(problem["negatives"]),
            ambient_repulsion_weight=problem["ambient_weight"] or -1.0,
            pair_loss=uform.PairLossForm(problem["form"]),
            ambient_scope=uform.AmbientScope(problem["scope"]),
        ),
        modalities=[uform.Modality(modality) for modality in problem["modalities"]],
        sides=[uform.LateInteractionSide(side) for side in problem["sides"]],
        temperature_groups=problem["groups"],
    )
    return found


def expected_of(problem: dict[str, Any]) -> oracle.PairLoss:
    return oracle.evaluate(
        problem["vectors"],
        relations=problem["relations"],
        form=problem["form"],
        negatives=problem["negatives"],
        scope=problem["scope"],
        ambient_weight=problem["ambient_weight"],
        modalities=problem["modalities"],
        sides=problem["sides"],
        groups=problem["groups"],
        inverse_temperatures=[problem["inverse_temperature"]] * problem["group_count"],
        biases=[problem["bias"]] * problem["group_count"],
        prefixes=problem["prefixes"],
    )


def close(found: Any, expected: Any, scale: float) -> None:
    """Within the gradient's tolerance; what cancels to almost nothing is held to its summands' size."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= GRADIENTS * np.linalg.norm(expected) + 1e-6 * scale


@seed(20)
@settings(max_examples=300, deadline=None, database=None)
@given(problems())
def test_contrastive_in_all_forms(problem: dict[str, Any]) -> None:
    found, expected = library(problem), expected_of(problem)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_allclose(found.row_losses, expected.row_losses, rtol=VALUES, atol=1e-5)
    assert found.loss == pytest.approx(expected.loss, rel=VALUES, abs=1e-6)
    close(found.gradient, expected.gradient, problem["inverse_temperature"])
    close(found.log_inverse_temperature_gradient, expected.log_inverse_temperature_gradient, 10.0)
    close(found.bias_gradient, expected.bias_gradient, 1.0)


@pytest.mark.parametrize("form", FORMS)
def test_DST_05_strided_vectors(form: Form) -> None:
    base = unit_vectors(6, 24, seed=4)
    problem: dict[str, Any] = {
        "vectors": np.ascontiguousarray(base[:, :10]),
        "relations": Relations(attract=((0, 1, 1.0), (2, 3, 0.5)), repel=((0, 4, 1.0),)),
        "form": form,
        "negatives": Negatives.AMBIENT,
        "scope": AmbientScope.EVERY,
        "ambient_weight": 1.0,
        "modalities": [0] * 6,
        "sides": [0] * 6,
        "groups": [0] * 6,
        "group_count": 1,
        "inverse_temperature": 10.0,
        "bias": -1.0 if form == Form.SIGMOID else 0.0,
        "prefixes": [4, 10],
    }
    plain = library(problem)
    views = [
        base[:, :10],
        np.asfortranarray(problem["vectors"]),
        np.ascontiguousarray(problem["vectors"].T).T,
        np.repeat(problem["vectors"], 2, axis=0)[::2],
        np.ascontiguousarray(problem["vectors"][::-1])[::-1],
    ]
    for view in views:
        found = library(problem, view)
        assert found.loss == plain.loss
        np.testing.assert_array_equal(found.gradient, plain.gradient)


def test_read_only_vectors() -> None:
    vectors = unit_vectors(4, 8)
    vectors.setflags(write=False)
    found = uform.losses.contrastive(ram(), vectors, relations=relate(4, attract=((0, 1, 1.0),)))
    assert found.gradient.shape == (4, 8)
    assert np.any(found.gradient)


@pytest.mark.parametrize(
    ("vectors", "error"),
    [
        (np.zeros((3, 4), np.float64), (TypeError, ValueError)),
        (np.zeros((3, 4), np.float16), (TypeError, ValueError)),
        (np.zeros((3, 4), np.int32), (TypeError, ValueError)),
        (np.zeros(4, np.float32), ValueError),
        (np.zeros((3, 4, 1), np.float32), ValueError),
        (np.zeros((3, 0), np.float32), ValueError),
        ([[0.0, 1.0]], (TypeError, ValueError)),
        (None, TypeError),
        ("vectors", (TypeError, ValueError)),
    ],
)
def test_other_vectors_are_refused(vectors: Any, error: type[Exception] | tuple[type[Exception], ...]) -> None:
    with pytest.raises(error, match="embeddings"):
        uform.losses.contrastive(ram(), vectors, relations=uform.Relations())


def test_scopes_ask_for_what_they_read() -> None:
    vectors, relations = unit_vectors(4, 8), relate(4, attract=((0, 1, 1.0),))
    for scope, field in ((uform.AmbientScope.CROSS_MODAL, "modalities"), (uform.AmbientScope.CROSS_SIDE, "sides")):
        with pytest.raises(ValueError, match=field):
            uform.losses.contrastive(
                ram(), vectors, relations=relations, contrastive=uform.Contrastive(ambient_scope=scope)
            )


def test_arguments_of_other_lengths_are_refused() -> None:
    vectors, relations = unit_vectors(4, 8), relate(4, attract=((0, 1, 1.0),))
    wrong: dict[str, Any] = {
        "modalities": [uform.Modality.TEXT] * 3,
        "sides": [uform.LateInteractionSide.QUERY] * 5,
        "temperature_groups": [0],
    }
    for field, value in wrong.items():
        with pytest.raises(ValueError, match=field):
            uform.losses.contrastive(ram(), vectors, relations=relations, **{field: value})
    with pytest.raises(ValueError, match="temperature_groups"):
        uform.losses.contrastive(ram(), vectors, relations=relations, temperature_groups=[0, 1, 0, 0])
    with pytest.raises(ValueError, match="matryoshka_dimensions"):
        uform.losses.contrastive(
            ram(), vectors, relations=relations, contrastive=uform.Contrastive(matryoshka_dimensions=[9])
        )


@pytest.mark.parametrize("count", [1, 2, 100])
def test_masked_bytes(count: int) -> None:
    rng = np.random.default_rng(count)
    logits = (8 * rng.normal(size=(count, 256))).astype(np.float32)
    targets = rng.integers(0, 256, count, dtype=np.uint8)
    found = uform.losses.masked_bytes(ram(), logits, targets)
    exact = logits.astype(np.float64)
    assert found.loss == pytest.approx(float(masked.masked_bytes(exact, targets)), rel=VALUES)
    expected = gradient_of(lambda values: masked.masked_bytes(values, targets), exact)
    assert found.gradient.shape == (count, 256)
    assert relative_error(found.gradient, expected) < GRADIENTS


def test_masked_bytes_of_strided_arrays() -> None:
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(6, 512)).astype(np.float32), rng.integers(0, 256, 12, dtype=np.uint8)
    found = uform.losses.masked_bytes(ram(), logits[:, ::2], targets[::2])
    plain = uform.losses.masked_bytes(ram(), np.ascontiguousarray(logits[:, ::2]), targets[::2].copy())
    assert found.loss == plain.loss
    np.testing.assert_array_equal(found.gradient, plain.gradient)


@pytest.mark.parametrize(
    ("logits", "targets"),
    [
        (np.zeros((3, 255), np.float32), np.zeros(3, np.uint8)),
        (np.zeros((3, 256), np.float64), np.zeros(3, np.uint8)),
        (np.zeros(256, np.float32), np.zeros(1, np.uint8)),
        (np.zeros((3, 256), np.float32), np.zeros(2, np.uint8)),
        (np.zeros((3, 256), np.float32), np.zeros(3, np.float32)),
        (np.zeros((3, 256), np.float32), np.zeros((3, 1), np.uint8)),
        (None, np.zeros(3, np.uint8)),
    ],
)
def test_masked_bytes_refuses_other_arrays(logits: Any, targets: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"logits|targets"):
        uform.losses.masked_bytes(ram(), logits, targets)
