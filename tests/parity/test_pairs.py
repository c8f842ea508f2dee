"""Prefixes and pairwise losses: every form, kind of negatives and scope, groups, prefixes, awkward relations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tests.oracle import contrastive
from tests.oracle.contrastive import Form
from tests.oracle.numeric import gradient as gradient_of
from tests.oracle.numeric import unit
from tests.oracle.pairs import AmbientScope, Negatives, PairClass, Pairs, classify
from tests.oracle.relations import BagRelations
from tests.parity.harness import GRADIENTS, VALUES, Memory, assert_close, blas_path, run_on_threads

CLASSES = {PairClass.IGNORED: 0, PairClass.ATTRACTED: 1, PairClass.REPELLED: 2}
FORMS = list(Form)
SCOPES = list(AmbientScope)
MODALITY_SETS = ([0], [1], [0, 1], [2])


def single(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


@dataclass(frozen=True)
class Problem:
    """Bags with their relations, and how they are scored."""

    vectors: np.ndarray
    relations: BagRelations
    form: Form = Form.BALANCED
    negatives: Negatives = Negatives.AMBIENT
    scope: AmbientScope = AmbientScope.EVERY
    ambient_weight: float = 1.0
    modalities: list[list[int]] = field(default_factory=list)
    sides: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    log_inverse_temperatures: np.ndarray = field(default_factory=lambda: np.log(single([1 / 0.07])))
    biases: np.ndarray = field(default_factory=lambda: np.zeros(1, np.float32))
    prefixes: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return len(self.vectors)

    def pairs(self) -> Pairs:
        return classify(
            self.count,
            self.relations,
            negatives=self.negatives,
            scope=self.scope,
            ambient_weight=self.ambient_weight,
            modalities=[frozenset(own) for own in self.modalities],
            sides=self.sides,
        )


def make_problem(seed: int, *, bags: int = 23, width: int = 33, density: float = 0.15, groups: int = 3) -> Problem:
    """Every third bag or so has no attracted pair; some rows have several, with weights of their own."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(bags, width))
    vectors[1::5] = vectors[0::5][: len(vectors[1::5])] + 0.05 * rng.normal(size=vectors[1::5].shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sets: list[dict[tuple[int, int], float]] = [{}, {}, {}]
    for row in range(bags):
        if row % 3 == 2 and row != 5:
            continue
        for candidate in range(bags):
            if candidate != row and rng.random() < density:
                which = int(rng.integers(3)) if row != 5 else 1  # bag 5 is a row of the sigmoid form alone
                sets[which][row, candidate] = 1.0 if which == 2 else float(np.float32(rng.uniform(0.2, 3)))
    return Problem(
        vectors=vectors.astype(np.float32),
        relations=BagRelations(attract=sets[0], repel=sets[1], ignore=sets[2]),
        modalities=[MODALITY_SETS[int(rng.integers(len(MODALITY_SETS)))] for _ in range(bags)],
        sides=[int(rng.integers(4)) for _ in range(bags)],
        groups=[int(rng.integers(groups)) for _ in range(bags)],
        log_inverse_temperatures=np.log(rng.uniform(1, 30, groups)).astype(np.float32),
        biases=rng.uniform(-4, 1, groups).astype(np.float32),
    )


def run(
    problem: Problem, *, blas: str | None = None, added_to: float = 0.0, gather: bool = False
) -> dict[str, np.ndarray]:
    """The operations' answers, prefix by prefix as the plugin calls them; what they add to starts as `added_to`.

    With `gather` vectors of the full width are gathered and their gradients scattered, as a prefix's are.
    """
    pairs = problem.pairs()
    rows = contrastive.counted_rows(pairs, problem.form)
    offsets, units, classes, weights = [0], [], [], []
    for row in rows:
        for candidate in range(problem.count):
            kind = CLASSES.get(PairClass(int(pairs.classes[row, candidate])))
            if kind is not None:
                units.append(candidate)
                classes.append(kind)
                weights.append(pairs.weights[row, candidate] or 1.0)
        offsets.append(len(units))
    relations = (*problem.relations.attract, *problem.relations.repel)
    targets = np.isin(np.arange(problem.count), [candidate for _, candidate in relations])
    masks = [sum(1 << modality for modality in own) for own in problem.modalities] or [1] * problem.count
    full = problem.vectors.shape[1]
    widths = sorted(set(problem.prefixes)) or [full]
    groups = problem.groups or [0] * problem.count
    group_count = len(problem.log_inverse_temperatures)
    # The world's bags have gaps; that the slots of a plan ascend is nothing that the operations rely on.
    slots = np.random.default_rng(problem.count).permutation(2 * problem.count + 6)[: problem.count]

    def case(operations: Any) -> dict[str, np.ndarray]:
        memory = Memory()
        capacity, rows_capacity, edges_capacity = problem.count + 3, len(rows) + 2, len(units) + 4
        source = memory.output((2 * capacity, full))  # NaN where there is no bag
        source[slots] = problem.vectors
        source_gradient = memory.holding(np.full(source.shape, added_to))
        loss = memory.holding([added_to], np.float64)
        row_losses = memory.holding(np.full(len(rows), added_to), capacity=rows_capacity)
        temperature_gradient = memory.holding(np.full(group_count, added_to))
        bias_gradient = memory.holding(np.full(group_count, added_to))
        counts = memory.input([problem.count, len(rows), len(units)], np.uint32)
        indices = memory.input(slots, np.uint32, capacity=capacity)
        for width in widths:
            in_place = width == full and not gather
            vectors = memory.output((capacity, width))
            gradient = memory.output((capacity, width))
            prefix = {
                "stride": full,
                "width": width,
                "normalize": int(width != full),
                "capacity": capacity,
                "active": capacity,
                "count": counts,
                "indices": indices,
                "source": source,
                "vectors": vectors,
                "lengths": memory.output(capacity),
                "vectors_gradient": gradient,
                "source_gradient": source_gradient,
            }
            size = operations.sizes(
                "pairs_workspace_bytes", capacity, rows_capacity, edges_capacity, width, group_count
            )
            arguments: dict[str, Any] = {
                "width": width,
                "units_capacity": capacity,
                "rows_capacity": rows_capacity,
                "edges_capacity": edges_capacity,
                "units_active": capacity,
                "rows_active": rows_capacity,
                "groups": group_count,
                "counts": counts,
                "indices": indices if in_place else None,
                "vectors": source if in_place else vectors,
                "rows": memory.input(rows, np.uint32, capacity=rows_capacity),
                "row_groups": memory.input([groups[row] for row in rows], np.uint32, capacity=rows_capacity),
                "modalities": memory.input(masks, np.uint32, capacity=capacity),
                "sides": memory.input(problem.sides or [0] * problem.count, np.uint8, capacity=capacity),
                "targets": memory.input(targets, np.uint8, capacity=capacity),
                "edge_offsets": memory.input(offsets, np.uint32, capacity=rows_capacity + 1),
                "edge_units": memory.input(units, np.uint32, capacity=edges_capacity),
                "edge_classes": memory.input(classes, np.uint8, capacity=edges_capacity),
                "edge_weights": memory.input(weights, capacity=edges_capacity),
                "form": int(problem.form),
                "negatives": int(problem.negatives),
                "scope": int(problem.scope),
                "ambient_weight": problem.ambient_weight,
                "log_inverse_temperature": memory.input(problem.log_inverse_temperatures),
                "bias": memory.input(problem.biases),
                "scale": memory.input([1 / (len(rows) * len(widths)) if rows else 0.0]),
                "loss": loss,
                "row_losses": row_losses,
                "row_losses_scale": 1 / len(widths),
                "row_logs": memory.output(rows_capacity),
                "row_forces": memory.output(rows_capacity),
                "gradient": source_gradient if in_place else gradient,
                "log_inverse_temperature_gradient": temperature_gradient,
                "bias_gradient": bias_gradient,
                "workspace": memory.workspace(size),
            }
            if not in_place:
                operations.prefix("forward", **prefix)
            operations.pairs("forward", **arguments)
            arguments["workspace"][:] = 0xFF
            operations.pairs("backward", **arguments)
            if not in_place:
                operations.prefix("backward", **prefix)
        memory.check()
        others = np.delete(source_gradient, slots, axis=0)
        assert np.all(others == added_to), "bags that are not compared have no gradient"
        return {
            "loss": loss - added_to,
            "row_losses": row_losses[: len(rows)] - np.float32(added_to),
            "gradient": source_gradient[slots] - np.float32(added_to),
            "log_inverse_temperature": temperature_gradient - np.float32(added_to),
            "bias": bias_gradient - np.float32(added_to),
        }

    return run_on_threads(case, blas=blas)


def expect(problem: Problem) -> dict[str, Any]:
    """The same from the oracle."""
    pairs = problem.pairs()
    settings: dict[str, Any] = {
        "pairs": pairs,
        "form": problem.form,
        "groups": problem.groups or [0] * problem.count,
        "prefixes": problem.prefixes or None,
    }
    variables = tuple(
        value.astype(np.float64) for value in (problem.vectors, problem.log_inverse_temperatures, problem.biases)
    )
    gradients = gradient_of(lambda v: contrastive.loss(*v, **settings), variables)
    rows = contrastive.counted_rows(pairs, problem.form)
    return {
        "loss": [float(contrastive.loss(*variables, **settings))],
        "row_losses": contrastive.row_losses(*variables, **settings) if rows else np.zeros(0),
        "gradient": gradients[0],
        "log_inverse_temperature": gradients[1],
        "bias": gradients[2],
    }


def test_answers_are_added() -> None:
    problem = replace(make_problem(10), form=Form.SIGMOID, prefixes=(7, 33))
    fresh, added = run(problem), run(problem, added_to=0.5)
    for name, value in fresh.items():
        assert np.allclose(added[name], value, rtol=0, atol=1e-6), name


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("width", [1, 33, 64])
@pytest.mark.parametrize("blas", ["plain", "openblas"])
def test_vectors_in_place_and_gathered_are_the_same(form: Form, width: int, blas: str) -> None:
    problem = replace(make_problem(15, bags=150, width=width, density=0.03), form=form)
    path = blas_path() if blas == "openblas" else None
    for added_to in (0.0, 0.5):
        in_place = run(problem, blas=path, added_to=added_to)
        gathered = run(problem, blas=path, added_to=added_to, gather=True)
        for name, value in gathered.items():
            assert np.array_equal(in_place[name], value), name


def assert_parity(problem: Problem, *, blas: str | None = None) -> None:
    actual, expected = run(problem, blas=blas), expect(problem)
    for name, value in expected.items():
        assert_close(actual[name], value, VALUES if name in {"loss", "row_losses"} else GRADIENTS, name)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
@pytest.mark.parametrize("ambient_weight", [1.0, 0.3])
def test_ambient(form: Form, scope: AmbientScope, ambient_weight: float) -> None:
    problem = make_problem(20 + scope, bags=29)
    assert_parity(replace(problem, form=form, scope=scope, ambient_weight=ambient_weight))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("negatives", list(Negatives), ids=lambda negatives: negatives.name)
def test_named_negatives_and_no_ambient_weight(form: Form, negatives: Negatives) -> None:
    problem = make_problem(30, density=0.3)
    assert_parity(replace(problem, form=form, negatives=negatives, ambient_weight=0.0))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("prefixes", [(32,), (1, 7, 33), (5, 16)])
def test_prefixes(form: Form, prefixes: tuple[int, ...]) -> None:
    assert_parity(replace(make_problem(40), form=form, prefixes=prefixes))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("blas", ["plain", "openblas"])
def test_several_panels(form: Form, blas: str) -> None:
    problem = make_problem(50, bags=241, width=64, density=0.03)
    assert len(contrastive.counted_rows(problem.pairs(), form)) > 128
    assert_parity(replace(problem, form=form), blas=blas_path() if blas == "openblas" else None)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("blas", ["plain", "openblas"])
def test_sharpest_temperature(form: Form, blas: str) -> None:
    # Near twins attract each other, so that positives dominate and losses and forces are small.
    rng = np.random.default_rng(60)
    anchors = rng.normal(size=(24, 256))
    vectors = np.concatenate([anchors, anchors + 0.35 * rng.normal(size=anchors.shape)])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    count = len(vectors)
    problem = Problem(
        vectors=vectors.astype(np.float32),
        relations=BagRelations(attract={(row, (row + 24) % count): 1.0 for row in range(count)}),
        form=form,
        log_inverse_temperatures=np.log(single([100])),
        biases=single([-50]),
    )
    assert_parity(problem, blas=blas_path() if blas == "openblas" else None)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("inverse_temperature", [1.0, 100.0])
def test_NUM_05_one_positive_and_one_negative_at_the_poles(form: Form, inverse_temperature: float) -> None:
    # The wrong one wins: the score of the positive is -tau, that of the negative +tau.
    vectors = single([[1, 0], [-1, 0], [1, 0]])
    problem = Problem(
        vectors=vectors,
        relations=BagRelations(attract={(0, 1): 1.0}),
        form=form,
        log_inverse_temperatures=np.log(single([inverse_temperature])),
    )
    assert_parity(problem)
    if form != Form.SIGMOID and inverse_temperature == 100:
        assert run(problem)["loss"][0] == pytest.approx(200, rel=1e-5)
    turned = replace(problem, vectors=single([[1, 0], [1, 0], [-1, 0]]))
    if form != Form.SIGMOID and inverse_temperature == 100:
        assert run(turned)["loss"][0] == pytest.approx(0, abs=1e-6)
        assert np.all(np.isfinite(run(turned)["gradient"]))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_nothing_attracts(form: Form) -> None:
    problem = make_problem(70)
    lone = replace(problem, relations=BagRelations(repel=problem.relations.repel), form=form)
    assert_parity(lone)
    assert_parity(replace(problem, relations=BagRelations(), form=form))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_CON_09_one_pair_without_other_candidates(form: Form) -> None:
    vectors = make_problem(80).vectors[:2]
    problem = Problem(vectors=vectors, relations=BagRelations(attract={(0, 1): 1.0}), form=form)
    assert_parity(problem)
    if form != Form.SIGMOID:
        assert abs(run(problem)["loss"][0]) < 1e-12


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_heavy_and_light_weights(form: Form) -> None:
    problem = make_problem(90)
    scaled = {
        pair: float(np.float32(w * 10.0 ** ((-12, 0, 12)[sum(pair) % 3])))
        for pair, w in problem.relations.repel.items()
    }
    relations = BagRelations(problem.relations.attract, scaled, problem.relations.ignore)
    assert_parity(replace(problem, relations=relations, form=form))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_candidate_is_ignored(form: Form) -> None:
    problem = make_problem(100, bags=7)
    others = {(0, candidate): 1.0 for candidate in range(2, 7)}
    relations = BagRelations(attract={(0, 1): 1.0, (3, 4): 2.0}, ignore=others)
    assert_parity(replace(problem, relations=relations, form=form))


def test_prefix_of_a_vector_that_is_zero() -> None:
    source = np.zeros((2, 5), np.float32)
    source[1, 3:] = 1  # zero within the prefix
    upstream = np.full((2, 3), 1e-13, np.float32)

    def case(operations: Any) -> dict[str, np.ndarray]:
        memory = Memory()
        vectors, lengths = memory.output((2, 3)), memory.output(2)
        gradient = memory.holding(np.zeros((2, 5)))
        prefix = {
            "stride": 5,
            "width": 3,
            "normalize": 1,
            "capacity": 2,
            "active": 2,
            "count": memory.input([2], np.uint32),
            "indices": memory.input([0, 1], np.uint32),
            "source": memory.input(source),
            "vectors": vectors,
            "lengths": lengths,
            "vectors_gradient": memory.input(upstream),
            "source_gradient": gradient,
        }
        operations.prefix("forward", **prefix)
        operations.prefix("backward", **prefix)
        memory.check()
        return {"vectors": vectors, "gradient": gradient}

    result = run_on_threads(case)
    assert not np.any(result["vectors"])
    exact = source.astype(np.float64)
    expected = gradient_of(lambda v: sum(np.float64(1e-13) * value for row in v for value in unit(row[:3])), exact)
    assert_close(result["gradient"], expected, GRADIENTS)
