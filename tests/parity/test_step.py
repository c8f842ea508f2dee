"""A whole step against the oracle: losses, embeddings, every gradient, and the update over several steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers import reference
from tests.helpers.calls import Call
from tests.helpers.reference import GRADIENTS, VALUES, relative_error
from tests.helpers.runs import make_trainer, picture, read_all, shape, spread
from tests.oracle.optimizer import AdamW, Schedule, global_norm
from tests.oracle.parameters import BIAS, LOG_INVERSE_TEMPERATURE
from tests.oracle.step import run as oracle_run
from uform import AmbientScope, Contrastive, Masking, Negatives, Objective, PairLossForm

LOSSES = {
    "contrastive": "contrastive_loss",
    "text": "masked_text_loss",
    "image": "masked_image_loss",
    "choices": "choices_loss",
}
# A bag of a text and an image, a bag of two texts, single items, an empty text, an image that fills patches in part.
MIXED = Call(
    contents=[
        "seven words of prose, cut nowhere",
        picture(12, 8, seed=1),
        "short",
        b"\x00\xff\xfe",
        "",
        picture(10, 9, seed=2),
        "naïve 漢字 😀",
        picture(4, 4, seed=3),
        "the same words",
    ],
    bags=[7, 7, 3, 3, 900, 5, 11, 12, 4],
    groups=[0, 1, 1, 0, 0, 1, 0, 0, 1],
    sides=[1, 2, 1, 1, 2, 2, 3, 0, 2],
    attract=((0, 2, 1.0), (1, 5, 0.5), (2, 0, 2.0), (5, 6, 1.0), (6, 5, 1.0), (8, 4, 0.25), (0, 1, 9.0)),
    repel=((0, 8, 2.5), (2, 6, 0.25), (4, 0, 0.75), (3, 6, 0.5)),
    ignore=((2, 4, 1.0), (5, 0, 1.0), (7, 8, 1.0)),
)
BATCH = shape(rows=8, columns=40, images=True)


def run_of(objective: Objective, *, devices: int = 1, **fields: Any) -> uform.Trainer:
    trainer = make_trainer(devices=devices, depth=2, batch=BATCH, objective=objective, seed=2**40 + 3, **fields)
    spread(trainer)
    return trainer


def compare(trainer: uform.Trainer, call: Call, number: int = 0) -> None:
    """One step against the oracle's from the same parameters."""
    expected = reference.run(trainer, call, number)
    weights = reference.batch_of(trainer.describe(), call, number).masked_weights
    answer = call.step(trainer)
    for term, value in expected.losses.items():
        assert getattr(answer.stats, LOSSES[term]) == pytest.approx(value, rel=VALUES), term
    assert answer.stats.loss == pytest.approx(expected.loss, rel=VALUES)
    assert set(weights) <= set(LOSSES)
    assert relative_error(answer.embeddings, expected.embeddings) < VALUES
    gradients = read_all(trainer, "gradient")
    assert gradients.keys() <= expected.gradients.keys() | {LOG_INVERSE_TEMPERATURE, BIAS}
    for name, gradient in gradients.items():
        assert relative_error(gradient, expected.gradients[name]) < GRADIENTS, name
    assert answer.stats.gradient_norm == pytest.approx(global_norm(expected.gradients), rel=GRADIENTS)


@pytest.mark.parametrize("form", [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID])
@pytest.mark.parametrize("objective", [Objective.CONTRASTIVE, Objective.JOINT])
def test_objectives_and_forms(objective: Objective, form: PairLossForm) -> None:
    compare(run_of(objective, contrastive=Contrastive(pair_loss=form, temperature_groups=2)), MIXED)


@pytest.mark.parametrize("scope", list(AmbientScope))
@pytest.mark.parametrize("form", [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID])
def test_ambient_scopes(form: PairLossForm, scope: AmbientScope) -> None:
    contrastive = Contrastive(
        pair_loss=form, ambient_scope=scope, ambient_repulsion_weight=0.3, temperature_groups=2, inverse_temperature=5.0
    )
    compare(run_of(Objective.CONTRASTIVE, contrastive=contrastive), MIXED)


@pytest.mark.parametrize("form", list(PairLossForm))
def test_named_negatives(form: PairLossForm) -> None:
    contrastive = Contrastive(negatives=Negatives.NAMED, pair_loss=form, temperature_groups=2)
    compare(run_of(Objective.CONTRASTIVE, contrastive=contrastive), MIXED)


def test_matryoshka_prefixes_and_weights_of_modalities() -> None:
    compare(
        run_of(
            Objective.JOINT,
            contrastive=Contrastive(matryoshka_dimensions=[48, 8, 64, 8], bias=-3.0, temperature_groups=2),
            masking=Masking(text_weight=0.5, image_weight=2.0, image_mask_ratio=0.4),
        ),
        MIXED,
    )


@pytest.mark.parametrize(
    "masking",
    [
        Masking(),
        Masking(token_mask_probability=0.9, token_mean_span=2.0, replace_fraction=-1.0, random_fraction=1.0),
        Masking(token_mask_probability=1.0, replace_fraction=1.0, image_mask_ratio=1.0),
        Masking(token_mask_probability=0.5, token_mean_span=1.0, replace_fraction=-1.0, random_fraction=-1.0),
        Masking(token_mask_probability=-1.0, image_mask_ratio=-1.0),
        Masking(text_weight=-1.0, image_weight=0.25),
    ],
    ids=["derived", "random bytes", "everything", "covered bytes stay", "nothing", "texts weigh nothing"],
)
def test_ways_to_mask(masking: Masking) -> None:
    compare(run_of(Objective.MASKED, masking=masking), MIXED)


@pytest.mark.parametrize("devices", [2, 3])
def test_several_devices(devices: int) -> None:
    compare(run_of(Objective.JOINT, devices=devices, contrastive=Contrastive(temperature_groups=2)), MIXED)


def test_texts_alone_and_images_alone() -> None:
    for kept in ([0, 2, 6], [1, 5, 7]):
        contents = [MIXED.contents[item] for item in kept]
        compare(run_of(Objective.JOINT), Call(contents, attract=((0, 1, 1.0), (1, 2, 1.0))))


def test_a_text_cut_at_the_row() -> None:
    call = Call(["x" * 38 + "yz and what nobody reads", "short"], attract=((0, 1, 1.0),))
    trainer = run_of(Objective.JOINT)
    compare(trainer, call)
    assert call.step(trainer).stats.truncated == 1


def test_masks_change_with_the_call_and_with_the_seed() -> None:
    trainer = run_of(Objective.MASKED)
    for number in range(3):
        compare(trainer, MIXED, number)
    other = make_trainer(depth=2, batch=BATCH, seed=4)
    spread(other)
    assert MIXED.step(other).stats.masked_text_loss != MIXED.step(run_of(Objective.MASKED)).stats.masked_text_loss


@pytest.mark.parametrize("objective", list(Objective))
def test_updates_over_several_steps(objective: Objective) -> None:
    schedule = Schedule(learning_rate=1e-2, min_learning_rate=1e-3, warmup_steps=2, steps=5)
    trainer = run_of(
        objective,
        schedule=uform.Schedule(learning_rate=1e-2, min_learning_rate=1e-3, warmup_steps=2, steps=5),
        optimizer=uform.Optimizer(beta1=0.8, beta2=0.95, epsilon=1e-5, weight_decay=0.1, max_gradient_norm=0.5),
        contrastive=Contrastive(temperature_groups=2, inverse_temperature=90.0) if objective else None,
    )
    adam = AdamW(beta1=0.8, beta2=0.95, epsilon=1e-5, decay=0.1, max_norm=0.5)
    before = {name: value.astype(np.float64) for name, value in read_all(trainer).items()}
    for step in range(1, 8):
        stats = replace(MIXED, contents=[*MIXED.contents[:-1], f"step {step}"]).step(trainer).stats
        gradients = {name: value.astype(np.float64) for name, value in read_all(trainer, "gradient").items()}
        expected = adam.update(before, gradients, schedule.rate(step))
        after = {name: value.astype(np.float64) for name, value in read_all(trainer).items()}
        assert stats.step == step
        assert stats.learning_rate == pytest.approx(schedule.rate(step))
        for name, value in after.items():
            moved = expected[name] - before[name]
            assert np.linalg.norm(value - expected[name]) <= 1e-5 * np.linalg.norm(expected[name]), name
            assert np.linalg.norm(value - before[name] - moved) <= 1e-3 * np.linalg.norm(moved) + 1e-7, name
        before = after
    for what, moments in (("moment1", adam.first), ("moment2", adam.second)):
        for name, value in read_all(trainer, what).items():
            assert relative_error(value, moments[name]) < VALUES, (what, name)


def test_losses_of_several_steps_follow_the_oracle() -> None:
    trainer = run_of(Objective.JOINT, schedule=uform.Schedule(learning_rate=1e-3, warmup_steps=-1, steps=100))
    adam, schedule = AdamW(), Schedule(1e-3, 1e-4, 0, 100)
    described = trainer.describe()
    parameters = {name: value.astype(np.float64) for name, value in read_all(trainer).items()}
    call = replace(MIXED, groups=None)
    for number in range(4):
        expected = oracle_run(parameters, reference.batch_of(described, call, number))
        stats = call.step(trainer).stats
        assert stats.loss == pytest.approx(expected.loss, rel=1e-4), number
        parameters = adam.update(parameters, expected.gradients, schedule.rate(number + 1))


def test_initial_values() -> None:
    trainer = make_trainer(
        depth=3, batch=BATCH, objective=Objective.JOINT, contrastive=Contrastive(inverse_temperature=20.0)
    )
    for name, value in read_all(trainer).items():
        deviation = 0.02 / np.sqrt(6) if name.endswith((".out", ".down")) else 0.02
        if value.ndim == 2:
            assert np.std(value) == pytest.approx(deviation, rel=0.1), name
            assert abs(np.mean(value)) < 6 * deviation / np.sqrt(value.size), name
        elif name == LOG_INVERSE_TEMPERATURE:
            np.testing.assert_allclose(value, np.log(20.0), rtol=1e-6)
        else:
            np.testing.assert_array_equal(value, 0.0 if name == BIAS else 1.0)


@pytest.mark.parametrize("form", [PairLossForm.BALANCED, PairLossForm.SIGMOID])
def test_finite_differences_of_the_library_itself(form: PairLossForm) -> None:
    """Along each gradient the loss must rise as fast as the gradient's norm says, whatever the oracle thinks."""
    call = replace(MIXED, groups=None)

    def fresh() -> uform.Trainer:
        return run_of(Objective.CONTRASTIVE, contrastive=Contrastive(pair_loss=form, inverse_temperature=4.0))

    trainer = fresh()
    start = read_all(trainer)
    call.step(trainer)
    gradients = read_all(trainer, "gradient")
    for name, gradient in gradients.items():
        norm = float(np.linalg.norm(gradient.astype(np.float64)))
        if norm == 0:
            continue
        # A step that moves the loss by about a hundredth of a percent: far above rounding, within the straight part.
        size = 3e-3 * max(float(np.linalg.norm(start[name])), 1.0) / norm
        ends = []
        for sign in (1, -1):
            moved = fresh()
            moved.write(name, (start[name] + sign * size * gradient).astype(np.float32))
            ends.append(call.step(moved).stats.loss)
        slope = (ends[0] - ends[1]) / (2 * size)
        assert slope == pytest.approx(norm**2, rel=5e-2, abs=1e-5), name
