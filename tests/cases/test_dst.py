"""DST: gradients across devices; the ranks here are virtual devices of one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import uform
from tests.helpers import f1
from tests.helpers.calls import Call, pairs_both_ways
from tests.helpers.reference import relative_error
from tests.helpers.runs import digest, make_trainer, ram, read_all, spread, unit_vectors
from uform import Contrastive, Masking, Negatives, Objective, PairLossForm

FORMS = [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID]
TEXTS = ["one", "zwei", "three words here", "fire", "five", "six and more", "seven", "a much longer eighth"]
PAIRS = Call(TEXTS, attract=pairs_both_ways(4))
Gradients = dict[str, npt.NDArray[Any]]


def gradients_of(call: Call, *, devices: int = 1, **fields: Any) -> Gradients:
    trainer = make_trainer(devices=devices, **fields)
    spread(trainer)
    call.step(trainer)
    return read_all(trainer, "gradient")


def assert_same(found: Gradients, expected: Gradients, factor: float = 1.0) -> None:
    for name, gradient in expected.items():
        assert relative_error(found[name], factor * gradient) < 1e-4, name


def test_DST_01_gradient_norms_of_F1() -> None:
    gradient = f1.loss().gradient
    assert np.linalg.norm(gradient[:4]) == pytest.approx(0.702354, abs=f1.DIGITS)
    assert np.linalg.norm(gradient[4:]) == pytest.approx(1.313905, abs=f1.DIGITS)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("form", FORMS)
def test_DST_01_gradients_are_those_of_one_device(form: PairLossForm, devices: int) -> None:
    settings: dict[str, Any] = {"objective": Objective.JOINT, "contrastive": Contrastive(pair_loss=form)}
    assert_same(gradients_of(PAIRS, devices=devices, **settings), gradients_of(PAIRS, **settings))


def test_DST_03_nothing_shared_is_the_mean_of_the_two() -> None:
    """Two halves whose named edges stay within them: equal row counts, so the whole is their mean."""
    settings: dict[str, Any] = {
        "objective": Objective.CONTRASTIVE,
        "contrastive": Contrastive(negatives=Negatives.NAMED),
    }
    attract = ((0, 1, 1.0), (1, 0, 1.0))
    repel = ((0, 2, 1.0), (0, 3, 1.0), (1, 2, 1.0), (1, 3, 1.0))
    halves = [Call(TEXTS[:4], attract=attract, repel=repel), Call(TEXTS[4:], attract=attract, repel=repel)]
    both = Call(
        TEXTS,
        attract=attract + tuple((row + 4, column + 4, weight) for row, column, weight in attract),
        repel=repel + tuple((row + 4, column + 4, weight) for row, column, weight in repel),
    )
    first, second = (gradients_of(half, **settings) for half in halves)
    mean = {name: (first[name] + second[name]) / 2 for name in first}
    for devices in (1, 2):
        assert_same(gradients_of(both, devices=devices, **settings), mean)


def test_DST_05_views_of_vectors() -> None:
    base = unit_vectors(6, 32)
    relations = uform.Relations(attract=(np.array([0, 1, 1, 1, 1, 1, 1], np.uint64), np.array([3], np.uint32)))
    answers = [
        uform.losses.contrastive(ram(), given, relations=relations)
        for given in (np.ascontiguousarray(base[:, :8]), base[:, :8], np.ascontiguousarray(base[:, :8].T).T)
    ]
    for answer in answers[1:]:
        assert answer.loss == answers[0].loss
        np.testing.assert_array_equal(answer.gradient, answers[0].gradient)
    assert np.any(answers[0].gradient)


@pytest.mark.parametrize("devices", [1, 2])
def test_DST_07_one_objective_at_a_time(devices: int) -> None:
    trainer = make_trainer(devices=devices, objective=Objective.JOINT)
    masked_only = Call(TEXTS[:4]).step(trainer).stats
    assert masked_only.contrastive_loss == 0
    assert masked_only.masked_text_loss > 0
    for name in ("contrastive.log_inverse_temperature", "contrastive.bias"):
        assert not np.any(trainer.read(name, "gradient"))
    contrastive_only = Call(["", "", ""], bags=[1, 2, 3], attract=((0, 1, 1.0),)).step(trainer).stats
    assert contrastive_only.masked_text_loss == 0
    assert contrastive_only.contrastive_loss > 0
    assert np.any(trainer.read("contrastive.log_inverse_temperature", "gradient"))
    assert not np.any(np.reshape(trainer.read("text.table", "gradient"), (260, -1))[:256])


def test_DST_07_modality_that_a_batch_lacks() -> None:
    trainer = make_trainer(objective=Objective.JOINT, batch=uform.BatchShape(max_rows_per_device=8, image=(4, 3)))
    Call(TEXTS[:2], attract=((0, 1, 1.0),)).step(trainer)
    for name in ("image.table", "image.patch", "image.head"):
        assert not np.any(trainer.read(name, "gradient"))


def test_DST_09_device_without_a_row() -> None:
    """Every row of the second device is ignored; items alternate between devices, as they are equally long."""
    texts = [f"text {item}" for item in range(8)]
    ignore = tuple((row, column, 1.0) for row in range(1, 8, 2) for column in range(8) if column != row)
    call = Call(texts, attract=((0, 2, 1.0), (2, 0, 1.0), (4, 6, 1.0)), ignore=ignore)
    settings: dict[str, Any] = {
        "objective": Objective.CONTRASTIVE,
        "contrastive": Contrastive(max_edges_per_device=256),
    }
    assert_same(gradients_of(call, devices=2, **settings), gradients_of(call, **settings))


@pytest.mark.parametrize("devices", [2, 4])
def test_DST_09_device_without_an_item(devices: int) -> None:
    call = Call(["only one", "and its peer"], bags=[4, 4])
    assert_same(gradients_of(call, devices=devices), gradients_of(call))


def test_DST_13_negatives_are_those_of_the_call() -> None:
    """No gradients are kept from call to call: two calls of four pairs are two steps, each with its own negatives."""
    whole = Call([*TEXTS, *(text[::-1] for text in TEXTS)], attract=pairs_both_ways(8))
    halves = [
        Call([*TEXTS[start : start + 4], *(text[::-1] for text in TEXTS[start : start + 4])], attract=PAIRS.attract)
        for start in (0, 4)
    ]

    def loss(call: Call) -> float:
        trainer = make_trainer(objective=Objective.CONTRASTIVE)
        spread(trainer)
        return call.step(trainer).stats.contrastive_loss

    trainer = make_trainer(objective=Objective.CONTRASTIVE)
    spread(trainer)
    first = halves[0].step(trainer).stats
    assert first.step == 1
    assert first.contrastive_loss == pytest.approx(loss(halves[0]))
    assert halves[1].step(trainer).stats.step == 2
    assert abs(loss(whole) - (loss(halves[0]) + loss(halves[1])) / 2) > 1e-3


def test_DST_15_one_seed_is_one_start_everywhere() -> None:
    digests = {digest(make_trainer(devices=devices, seed=11, objective=Objective.JOINT)) for devices in (1, 2, 4)}
    assert len(digests) == 1
    assert digest(make_trainer(devices=2, seed=12, objective=Objective.JOINT)) not in digests


def test_DST_15_replicas_stay_equal() -> None:
    """The answer comes from every replica: twins of one text must embed alike on whichever device they are."""
    trainer = make_trainer(devices=4, objective=Objective.CONTRASTIVE, schedule=uform.Schedule(learning_rate=1e-2))
    call = Call(["same"] * 8, attract=((0, 1, 1.0),))
    for _ in range(3):
        replace(call, contents=[*TEXTS]).step(trainer)
    embeddings = call.step(trainer).embeddings
    np.testing.assert_allclose(embeddings, np.repeat(embeddings[:1], 8, axis=0), atol=1e-6)


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("devices", [2, 4])
def test_losses_and_updates_do_not_depend_on_the_devices(objective: Objective, devices: int) -> None:
    settings: dict[str, Any] = {
        "objective": objective,
        "schedule": uform.Schedule(learning_rate=1e-3, warmup_steps=-1),
        "masking": Masking(token_mask_probability=0.5) if objective != Objective.CONTRASTIVE else None,
    }
    one, several = make_trainer(**settings), make_trainer(devices=devices, **settings)
    for trainer in (one, several):
        spread(trainer)
    for step in range(4):
        call = replace(PAIRS, contents=[f"{text} {step}" for text in TEXTS], bags=[0, 1, 2, 3, 4, 5, 6, 6])
        alone, together = call.step(one), call.step(several)
        assert together.stats.loss == pytest.approx(alone.stats.loss, rel=1e-4)
        assert together.stats.gradient_norm == pytest.approx(alone.stats.gradient_norm, rel=1e-3)
        np.testing.assert_allclose(together.embeddings, alone.embeddings, atol=1e-3)
    for name, value in read_all(one).items():
        # Adam turns rounding of gradients that are almost zero into a part of its step.
        assert relative_error(read_all(several)[name], value) < 2e-3, name
