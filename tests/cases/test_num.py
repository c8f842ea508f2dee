"""NUM: temperature and precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call, relate
from tests.helpers.f1 import SOFTMAX_FORMS
from tests.helpers.runs import digest, make_trainer, ram, read_all
from uform import Contrastive, Negatives, Objective, Optimizer, PairLossForm, Schedule

TEMPERATURE, BIAS = "contrastive.log_inverse_temperature", "contrastive.bias"
LOG_100, LOG_1000 = 4.605170, 6.907755


@pytest.mark.parametrize(
    ("form", "cap"),
    [(PairLossForm.BALANCED, LOG_100), (PairLossForm.RANKED, LOG_100), (PairLossForm.SIGMOID, LOG_1000)],
)
def test_NUM_01_cap_of_the_temperature(form: PairLossForm, cap: float) -> None:
    """Twins attract and others repel, which always rewards a sharper temperature; then the other way round."""
    trainer = make_trainer(
        objective=Objective.CONTRASTIVE,
        contrastive=Contrastive(pair_loss=form, negatives=Negatives.NAMED, inverse_temperature=30.0),
        schedule=Schedule(learning_rate=0.1, min_learning_rate=0.1, warmup_steps=-1, steps=400),
        # Without memory an update is the rate whatever the slope, and the slope fades as twins have won.
        optimizer=Optimizer(max_gradient_norm=-1.0, epsilon=1e-30, beta1=-1.0, beta2=-1.0),
    )
    frozen = read_all(trainer)
    twins = ["twin", "twin", "somebody else entirely"]
    sharper = Call(twins, attract=((0, 1, 1.0),), repel=((0, 2, 1.0),))
    duller = Call(twins, attract=((0, 2, 1.0),), repel=((0, 1, 1.0),))

    def step(call: Call) -> float:
        for name, value in frozen.items():  # only the temperature learns
            if name != TEMPERATURE:
                trainer.write(name, value)
        call.step(trainer)
        return float(trainer.read(TEMPERATURE)[0])

    reached = [step(sharper) for _ in range(60)]
    assert max(reached) <= cap + 1e-5
    assert reached[-1] == pytest.approx(cap, rel=1e-6)
    left = [step(duller) for _ in range(100)]
    assert left[-1] < cap - 0.5


def test_NUM_01_a_start_outside_the_bounds_is_refused() -> None:
    for inverse_temperature, form in ((101.0, PairLossForm.BALANCED), (0.5, PairLossForm.RANKED), (1001.0, 3)):
        with pytest.raises(ValueError, match="inverse_temperature"):
            make_trainer(
                objective=Objective.CONTRASTIVE,
                contrastive=Contrastive(inverse_temperature=inverse_temperature, pair_loss=PairLossForm(form)),
            )
    sigmoid = Contrastive(inverse_temperature=112.33, pair_loss=PairLossForm.SIGMOID)
    trainer = make_trainer(objective=Objective.CONTRASTIVE, contrastive=sigmoid)
    assert trainer.read(TEMPERATURE)[0] == pytest.approx(np.log(112.33))


@pytest.mark.parametrize("form", SOFTMAX_FORMS)
def test_NUM_03_temperature_is_kept_as_a_logarithm(form: PairLossForm) -> None:
    vectors = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    # Two orthogonal candidates: the logits are 1 / 0.07 and 0.
    found = uform.losses.contrastive(
        ram(),
        vectors,
        relations=relate(3, attract=((0, 1, 1.0),)),
        contrastive=Contrastive(pair_loss=form, inverse_temperature=1 / 0.07),
    )
    assert found.loss == pytest.approx(np.log1p(np.exp(-14.285714)), rel=1e-4)
    trainer = make_trainer(objective=Objective.CONTRASTIVE, contrastive=Contrastive(inverse_temperature=1 / 0.07))
    assert trainer.read(TEMPERATURE)[0] == pytest.approx(np.log(14.285714))


@pytest.mark.parametrize("form", SOFTMAX_FORMS)
def test_NUM_05_sharpest_temperature(form: PairLossForm) -> None:
    vectors = np.array([[1, 0], [1, 0], [-1, 0]], np.float32)
    for positive, loss in ((1, 0.0), (2, 200.0)):
        found = uform.losses.contrastive(
            ram(),
            vectors,
            relations=relate(3, attract=((0, positive, 1.0),)),
            contrastive=Contrastive(pair_loss=form, inverse_temperature=100.0),
        )
        assert found.loss == pytest.approx(loss, rel=1e-5, abs=1e-5)
        assert np.all(np.isfinite(found.gradient))
        assert np.all(np.isfinite(found.log_inverse_temperature_gradient))


@pytest.mark.parametrize("form", [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID])
def test_NUM_07_zero_vector(form: PairLossForm) -> None:
    """Scaled by `x / max(|x|, 1e-12)`, zero stays zero: in prefixes here, and for whole bags below."""
    vectors = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]], np.float32)
    found = uform.losses.contrastive(
        ram(),
        vectors,
        relations=relate(3, attract=((0, 1, 1.0),)),
        contrastive=Contrastive(pair_loss=form, matryoshka_dimensions=[2], inverse_temperature=5.0),
    )
    assert np.isfinite(found.loss)
    assert np.all(np.isfinite(found.gradient))


def test_NUM_07_zero_states() -> None:
    trainer = make_trainer(objective=Objective.CONTRASTIVE)
    trainer.write("norm", np.zeros(64, np.float32))
    answer = Call(["a", "b"], attract=((0, 1, 1.0),)).step(trainer)
    np.testing.assert_array_equal(answer.embeddings, np.zeros((2, 64), np.float32))
    assert np.isfinite(answer.stats.loss)
    assert all(np.all(np.isfinite(value)) for value in read_all(trainer).values())


def test_NUM_09_small_updates_add_up() -> None:
    """100 updates of 0.001 of a value near 20, where bfloat16 would round each away: the masters are float32."""
    trainer = make_trainer(
        objective=Objective.CONTRASTIVE,
        contrastive=Contrastive(pair_loss=PairLossForm.SIGMOID, bias=-20.0, inverse_temperature=1.0),
        schedule=Schedule(learning_rate=1e-3, min_learning_rate=1e-3, warmup_steps=-1, steps=1000),
        optimizer=Optimizer(max_gradient_norm=-1.0),
    )
    call = Call(["a", "b"], attract=((0, 1, 1.0),))
    for _ in range(100):  # so far below zero the slope of softplus is 1, so that every update is the whole rate
        call.step(trainer)
    assert trainer.read(BIAS)[0] == pytest.approx(-19.9, abs=1e-3)


@pytest.mark.parametrize("devices", [1, 2])
def test_NUM_11_a_step_without_finite_numbers_changes_nothing(devices: int) -> None:
    trainer = make_trainer(devices=devices, objective=Objective.CONTRASTIVE)
    table = np.array(trainer.read("text.table")).reshape(260, 64)
    poisoned = table.copy()
    poisoned[ord("z")] = np.nan
    trainer.write("text.table", poisoned)
    good = Call(["a", "b", "c", "d"], attract=((0, 1, 1.0), (2, 3, 1.0)))
    assert good.step(trainer).stats.step == 1
    before = digest(trainer)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="contrastive_loss"):
            Call(["a", "z", "c", "d"], attract=good.attract).step(trainer)
        assert digest(trainer) == before
    stats = good.step(trainer).stats
    assert stats.step == 2
    assert np.isfinite(stats.loss)


def test_NUM_11_finite_loss_and_a_gradient_that_is_not() -> None:
    """Huge values that no weight lets through: the loss does not see them, the gradient of that weight overflows."""
    trainer = make_trainer(objective=Objective.CONTRASTIVE)
    trainer.write("blocks.0.norm1", np.full(64, 5e37, np.float32))
    trainer.write("blocks.0.qkv", np.concatenate([np.zeros((128, 64)), np.eye(64)]).astype(np.float32))
    trainer.write("blocks.0.out", np.zeros((64, 64), np.float32))
    before = digest(trainer)
    with pytest.raises(FloatingPointError, match="gradient"):
        Call(["a", "b", "c"], attract=((0, 1, 1.0),)).step(trainer)
    assert digest(trainer) == before


def test_NUM_11_refused_calls_count_draws_but_no_steps() -> None:
    """A refused call takes its random numbers with it: the next call draws those of the call after."""

    def losses(refused: bool) -> list[float]:
        trainer = make_trainer()
        table = np.array(trainer.read("text.table")).reshape(260, 64)
        call = Call(["some text that is long enough to cover", "and one more of them"])
        if refused:
            trainer.write("text.table", np.full_like(table, np.nan))
            with pytest.raises(FloatingPointError, match="masked_text_loss"):
                call.step(trainer)
            trainer.write("text.table", table)
        stats = [call.step(trainer).stats for _ in range(2)]
        assert [one.step for one in stats] == [1, 2]
        return [one.masked_text_loss for one in stats]

    straight, after = losses(False), losses(True)
    assert after[0] != straight[0]


def test_NUM_13_decay_reaches_matrices_only() -> None:
    given: dict[str, Any] = {
        "objective": Objective.CONTRASTIVE,
        "contrastive": Contrastive(pair_loss=PairLossForm.SIGMOID, inverse_temperature=7.0),
        "optimizer": Optimizer(weight_decay=0.1),
        "schedule": Schedule(learning_rate=1e-2, min_learning_rate=1e-2, warmup_steps=-1, steps=1000),
    }
    trainer = make_trainer(**given)
    before = read_all(trainer)
    everything = tuple((row, column, 1.0) for row in range(3) for column in range(3))
    call = Call(["a", "bc", "def"], attract=((0, 1, 1.0),), ignore=everything)
    for _ in range(100):
        assert call.step(trainer).stats.loss == 0
    for name, value in read_all(trainer).items():
        if value.ndim == 2:
            np.testing.assert_allclose(value, before[name] * (1 - 1e-3) ** 100, rtol=1e-4, err_msg=name)
        else:
            np.testing.assert_array_equal(value, before[name], err_msg=name)
