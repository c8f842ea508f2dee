"""Late interaction as a run has it: configuration, budgets, checkpoints, token vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.runs import digest, make_trainer, ram, read_all, resume, shape, unit_vectors
from uform import AmbientScope, Contrastive, LateInteraction, LateInteractionSide, Negatives, Objective, PairLossForm

TEXTS = ["what is a cat", "a cat is an animal", "a dog is another", "is a dog a cat"]
CALL = Call(TEXTS, sides=[1, 2, 2, 3], attract=((0, 1, 1.0), (3, 2, 1.0)))
MODALITIES = [uform.Modality.TEXT] * 4
SIDES = [LateInteractionSide.QUERY, LateInteractionSide.DOCUMENT]


def make(*, devices: int = 1, **fields: Any) -> uform.Trainer:
    return make_trainer(
        devices=devices,
        batch=shape(rows=4, columns=64),
        objective=Objective.CONTRASTIVE,
        late_interaction=LateInteraction(**{"width": 16, **fields}),
    )


def test_zeros_derive() -> None:
    trainer = make_trainer(batch=shape(rows=4, columns=64, segments=10), late_interaction=LateInteraction())
    assert trainer.describe()["late_interaction"] == {
        "weight": 1.0,
        "width": 128,
        "inverse_temperature": 20.0,
        "bias": 0.0,
        "max_query_span": 128,
        "max_query_tokens_per_device": 256,
        "max_documents_per_device": 10,
        "max_document_tokens_per_device": 256,
        "pair_loss": PairLossForm.BALANCED,
    }
    assert make(pair_loss=PairLossForm.SIGMOID).describe()["late_interaction"]["bias"] == -10
    assert make(bias=1e-30).describe()["late_interaction"]["pair_loss"] == PairLossForm.SIGMOID
    assert read_all(trainer)["late_interaction.projection"].shape == (128, 64)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", float("nan")),
        ("width", -8),
        ("width", 12),
        ("inverse_temperature", 0.5),
        ("inverse_temperature", 101.0),
        ("bias", float("inf")),
        ("max_query_span", -1),
        ("max_query_tokens_per_device", -1),
        ("max_documents_per_device", -2),
        ("max_document_tokens_per_device", -3),
    ],
)
def test_wrong_values_are_refused_by_their_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"LateInteraction\.{field} is "):
        make(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "count"),
    [
        ("max_query_tokens_per_device", 28, 29),
        ("max_documents_per_device", 2, 3),
        ("max_document_tokens_per_device", 50, 51),
    ],
)
def test_each_budget_is_refused_by_its_field(field: str, value: int, count: int) -> None:
    trainer = make(**{field: value})
    before = digest(trainer)
    with pytest.raises(ValueError, match=rf"device 0 has {count} .*LateInteraction\.{field}, {value}"):
        CALL.step(trainer)
    assert digest(trainer) == before
    assert trainer.describe()["step"] == 0
    CALL.step(make(**{field: value + 1}))


@pytest.mark.parametrize(
    "field", ["max_query_tokens_per_device", "max_documents_per_device", "max_document_tokens_per_device"]
)
def test_a_budget_over_what_a_batch_can_hold_takes_no_more_memory(field: str) -> None:
    bytes_of = [make(**{field: value}).describe()["planned_bytes_per_device"] for value in (1000, 2**31 - 1)]
    assert bytes_of[0] == bytes_of[1]
    CALL.step(make(**{field: 2**31 - 1}))


def test_what_it_takes_of_contrastive_is_described() -> None:
    """Where the objective itself is no part of the run, these are in force all the same."""
    run: dict[str, Any] = {"batch": shape(rows=4, columns=64), "late_interaction": LateInteraction(width=16)}
    trainer = make_trainer(objective=Objective.MASKED, **run)
    derived = {"negatives": Negatives.AMBIENT, "ambient_repulsion_weight": 1.0, "ambient_scope": AmbientScope.EVERY}
    assert trainer.describe()["contrastive"] == {**derived, "max_edges_per_device": 128}
    given: dict[str, Any] = {
        "ambient_repulsion_weight": 0.3,
        "ambient_scope": AmbientScope.TARGETS,
        "max_edges_per_device": 5,
    }
    trainer = make_trainer(objective=Objective.MASKED, contrastive=Contrastive(**given), **run)
    assert trainer.describe()["contrastive"] == {**given, "negatives": Negatives.AMBIENT}
    assert "contrastive" not in make_trainer(objective=Objective.MASKED).describe()


def test_a_budget_holds_for_each_device() -> None:
    CALL.step(make(devices=2, max_documents_per_device=2))


def test_queries_that_are_cut_are_counted_over_devices() -> None:
    trainer = make(devices=2, max_query_span=5)
    assert CALL.step(trainer).stats.extra == {"late_interaction.cut": 2.0}
    short = Call(["abcd", "a document"], sides=[1, 2], attract=((0, 1, 1.0),))
    assert short.step(trainer).stats.extra == {"late_interaction.cut": 0.0}


def test_a_call_without_sides_has_no_term() -> None:
    stats = Call(TEXTS, attract=CALL.attract).step(make()).stats
    assert stats.late_interaction_loss == 0
    assert stats.loss == stats.contrastive_loss


def test_resuming_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, half = make(), make()
    for _ in range(2):
        CALL.step(whole)
        CALL.step(half)
    half.save(tmp_path / "half")
    again = resume(tmp_path / "half")
    assert again.describe()["late_interaction"] == whole.describe()["late_interaction"]
    for _ in range(2):
        CALL.step(whole)
        CALL.step(again)
    assert digest(again) == digest(whole)


def test_another_width_than_the_checkpoint_s_is_refused(tmp_path: Path) -> None:
    make().save(tmp_path / "run")
    with pytest.raises(ValueError, match=r"16.*24|24.*16"):
        resume(tmp_path / "run", late_interaction=LateInteraction(width=24))
    resume(tmp_path / "run", late_interaction=LateInteraction(max_query_span=7))


def test_the_plan_counts_its_memory() -> None:
    fields: dict[str, Any] = {"depth": 1, "hidden": 64, "batch": shape(rows=4, columns=64)}
    plain = uform.Trainer.plan_ram(ram(), **fields)
    late = uform.Trainer.plan_ram(ram(), late_interaction=LateInteraction(width=16), **fields)
    assert late["planned_bytes_per_device"]["token vectors"] == 2 * 256 * 16 * 4
    assert late["planned_bytes_per_device"]["late_interaction"] > 0
    assert late["parameter_count"] == plain["parameter_count"] + 16 * 64 + 2
    several = uform.Trainer.plan_ram(ram(3), late_interaction=LateInteraction(width=16), **fields)
    assert several["planned_bytes_per_device"]["token vectors"] == 7 * 256 * 16 * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> uform.Model:
    path = tmp_path_factory.mktemp("late") / "run"
    make(max_query_span=6).save(path)
    return uform.Model.init_ram(ram(), path)


def test_token_vectors(model: uform.Model) -> None:
    tape = model.embed_tokens(MODALITIES, TEXTS)
    assert isinstance(tape, uform.RowsTape)
    assert [row.shape for row in tape] == [(1 + len(text), 16) for text in TEXTS]
    sides = [LateInteractionSide(side) for side in (1, 2, 0, 3)]
    cut = model.embed_tokens(MODALITIES, TEXTS, sides=sides)
    assert [len(row) for row in cut] == [6, len(TEXTS[1]) + 1, len(TEXTS[2]) + 1, len(TEXTS[3]) + 1]
    np.testing.assert_array_equal(cut[0], tape[0][:6])
    np.testing.assert_array_equal(cut[3], tape[3])


def test_token_vectors_of_more_than_one_pass(model: uform.Model) -> None:
    many = [f"text number {number} of many, to fill some rows" for number in range(300)]
    tape = model.embed_tokens([uform.Modality.TEXT] * 300, many)
    for number in (0, 150, 299):
        np.testing.assert_allclose(
            tape[number], model.embed_tokens(MODALITIES[:1], many[number : number + 1])[0], atol=1e-5
        )


def test_token_vectors_of_nothing(model: uform.Model) -> None:
    assert len(model.embed_tokens([], [])) == 0


@pytest.mark.parametrize("scalar", list(uform.Scalar))
def test_token_vectors_of_every_type(model: uform.Model, scalar: uform.Scalar) -> None:
    arena = uform.Arena.for_ram()
    tape = model.embed_tokens(MODALITIES, TEXTS, arena=arena, outputs_scalar=scalar)
    assert tape.values.scalar == scalar  # type: ignore[union-attr]
    assert arena.used > 0
    exact = model.embed_tokens(MODALITIES, TEXTS)
    if scalar == uform.Scalar.FLOAT16:
        np.testing.assert_allclose(tape[1], exact[1], atol=1e-3)
    if scalar == uform.Scalar.BIT:
        np.testing.assert_array_equal(np.unpackbits(tape[1], axis=1), exact[1] > 0)


def test_token_vectors_on_several_devices_and_deferred(model: uform.Model, tmp_path: Path) -> None:
    make(max_query_span=6).save(tmp_path / "run")
    other = uform.Model.init_ram(uform.Executor.for_ram(devices=3), tmp_path / "run")  # its thread ends with it
    for found, expected in zip(
        other.deferred(other.executor).embed_tokens(MODALITIES, TEXTS).result(),
        model.embed_tokens(MODALITIES, TEXTS),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_models_without_token_vectors(tmp_path: Path) -> None:
    make_trainer().save(tmp_path / "run")
    plain = uform.Model.init_ram(ram(), tmp_path / "run")
    with pytest.raises(ValueError, match="trained without late interaction"):
        plain.embed_tokens(MODALITIES, TEXTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": [0, 1]}, "offsets has no|offsets\\[1\\] is 1: expected 6"),
        ({"offsets": []}, "offsets has no entries"),
        ({"offsets": [1, 3, 6]}, r"offsets\[0\]: 0, not 1"),
        ({"offsets": [0, 7, 6]}, r"offsets\[2\]: at least 7"),
        ({"offsets": [0, 6, 6]}, "item 1 has a side and 0"),
        ({"sides": [1]}, "sides"),
        ({"sides": [1, 4]}, r"sides\[1\]"),
        ({"late_interaction": LateInteraction(inverse_temperature=0.5)}, "inverse_temperature is 0.5"),
        ({"late_interaction": LateInteraction(max_documents_per_device=-1)}, "max_documents_per_device is -1"),
        ({"contrastive": uform.Contrastive(ambient_scope=uform.AmbientScope.CROSS_MODAL)}, "modalities is None"),
    ],
)
def test_wrong_losses_are_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "offsets": [0, 2, 6],
        "sides": [1, 2],
        "relations": uform.Relations(attract=uform.Edges(offsets=[0, 1, 1], ids=[1])),
    }
    arguments.update(changes)
    with pytest.raises(ValueError, match=message):
        uform.losses.late_interaction(ram(), unit_vectors(6, 4), arguments.pop("offsets"), **arguments)


def test_vectors_that_are_not_finite_are_refused() -> None:
    tokens = unit_vectors(4, 4)
    tokens[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"tokens\[2\] is not finite"):
        uform.losses.late_interaction(ram(), tokens, [0, 2, 4], sides=SIDES, relations=None)


def test_a_budget_of_given_vectors() -> None:
    with pytest.raises(ValueError, match=r"LateInteraction\.max_document_tokens_per_device, 3"):
        uform.losses.late_interaction(
            ram(),
            unit_vectors(6, 4),
            [0, 2, 6],
            sides=SIDES,
            relations=None,
            late_interaction=LateInteraction(max_document_tokens_per_device=3),
        )
