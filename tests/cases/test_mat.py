"""MAT: matryoshka prefixes."""

from __future__ import annotations

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call, pairs_both_ways, relate
from tests.helpers.reference import relative_error
from tests.helpers.runs import make_trainer, ram, read_all, spread, unit_vectors
from uform import Contrastive, Objective, PairLossForm

FORMS = [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID]


@pytest.mark.parametrize("form", FORMS)
def test_MAT_01_order_of_prefixes_means_nothing(form: PairLossForm) -> None:
    vectors, relations = unit_vectors(8, 256), relate(8, attract=pairs_both_ways(4))
    answers = [
        uform.losses.contrastive(
            ram(),
            vectors,
            relations=relations,
            contrastive=Contrastive(matryoshka_dimensions=dimensions, pair_loss=form),
        )
        for dimensions in ([64, 256, 128], [256, 128, 64], (128, 64, 64, 256))
    ]
    for answer in answers[1:]:
        assert answer.loss == answers[0].loss
        np.testing.assert_array_equal(answer.gradient, answers[0].gradient)
        np.testing.assert_array_equal(answer.row_losses, answers[0].row_losses)


def test_MAT_01_in_a_step() -> None:
    described = []
    gradients = []
    for dimensions in ([16, 64, 32], [64, 32, 16]):
        trainer = make_trainer(
            objective=Objective.CONTRASTIVE, contrastive=Contrastive(matryoshka_dimensions=dimensions)
        )
        Call(["a", "bc", "def", "ghij"], attract=pairs_both_ways(2)).step(trainer)
        described.append(list(trainer.describe()["contrastive"]["matryoshka_dimensions"]))
        gradients.append(read_all(trainer, "gradient"))
    assert described == [[16, 32, 64]] * 2
    for name, gradient in gradients[0].items():
        np.testing.assert_array_equal(gradients[1][name], gradient)


@pytest.mark.parametrize("form", FORMS)
def test_MAT_03_prefixes_and_shares_of_the_batch(form: PairLossForm) -> None:
    """Eight items, two on each of four devices: the gradients are those of all eight on one."""
    call = Call([f"{word} text" for word in "abcdefgh"], attract=pairs_both_ways(4))
    gradients = []
    for devices in (1, 4):
        trainer = make_trainer(
            devices=devices,
            objective=Objective.CONTRASTIVE,
            contrastive=Contrastive(matryoshka_dimensions=[64, 16], pair_loss=form),
        )
        spread(trainer)
        call.step(trainer)
        gradients.append(read_all(trainer, "gradient"))
    for name, gradient in gradients[0].items():
        assert relative_error(gradients[1][name], gradient) < 1e-4, name


def test_the_full_width_is_only_scored_where_it_is_listed() -> None:
    vectors = unit_vectors(4, 16)
    alone = uform.losses.contrastive(
        ram(),
        vectors,
        relations=relate(4, attract=((0, 1, 1.0),)),
        contrastive=Contrastive(matryoshka_dimensions=[5]),
    )
    assert np.all(alone.gradient[:, 5:] == 0)
    assert np.any(alone.gradient[:, :5])
