"""Choices of a step: every form that they are given in, what is refused, and what a run keeps of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.runs import TINY, digest, make_trainer, picture, ram, read_all, resume, shape, spread
from uform import BatchShape, Choices, Modality, Objective

TEXT, IMAGE = Modality.TEXT, Modality.IMAGE
OFFERED = ["yes", "no", "maybe"]
CALL = Call(
    ["is it so", picture(4, 4), "and this", "say nothing", ""],
    choices=[OFFERED, [], ["a", "b"], OFFERED, ["x", ""]],
    choice_targets=[[0, 1, 0], [], [0.25, 0.75], [], [0, 1]],
)
BATCH = BatchShape(
    max_rows_per_device=8, max_columns_per_row=32, max_segments_per_device=32, image=(4, 3), max_choices_per_item=4
)


def chooser(**fields: Any) -> uform.Trainer:
    trainer = make_trainer(**{"batch": BATCH, "choices": Choices(), **fields})
    spread(trainer)
    return trainer


def stepped(call: Call, **fields: Any) -> float:
    return call.step(chooser(**fields)).stats.choices_loss


def tape(rows: list[list[float]]) -> tuple[Any, Any]:
    values = np.concatenate([np.asarray(row, np.float32) for row in rows])
    return values, np.cumsum([0, *map(len, rows)], dtype=np.uint64)


def test_every_form_says_the_same() -> None:
    rows: Any = CALL.choice_targets
    expected = stepped(CALL)
    assert expected > 0
    for targets in (
        tape(rows),
        uform.RowsTape(*tape(rows)),
        (tape(rows)[0].astype(np.float64), tape(rows)[1].astype(np.int64)),
        [np.asarray(row, np.float16) for row in rows],
        [[0, 1, 0], [], [0.25, 0.75], [0, 0, 0], [0, 1]],
    ):
        assert stepped(replace(CALL, choice_targets=targets)) == expected
    assert stepped(replace(CALL, choices=[[text.encode() for text in own] for own in CALL.choices or ()])) == expected


def test_every_form_of_texts_for_all() -> None:
    rows: Any = [[0, 1, 0], [], [0.25, 0.75, 0], [], [1, 0, 0]]
    data = "".join(OFFERED).encode()
    expected = stepped(replace(CALL, choices=[OFFERED, [], OFFERED, OFFERED, OFFERED], choice_targets=rows))
    for offered in (
        OFFERED,
        (data, np.array([0, 3, 5, 10])),
        pyarrow.array(OFFERED),
        pyarrow.array(OFFERED, pyarrow.large_binary()),
    ):
        trainer = chooser()
        stats = uform.TrainerStepStats()
        trainer.step(CALL.modalities, CALL.contents, choices=offered, choice_targets=rows, stats=stats)
        assert stats.choices_loss == expected


def test_the_loss_is_weighed_in_the_total_alone() -> None:
    one, two = (
        CALL.step(chooser(objective=Objective.CONTRASTIVE, choices=Choices(weight=weight))).stats
        for weight in (1.0, 2.5)
    )
    assert one.choices_loss == two.choices_loss == one.loss
    assert two.loss == pytest.approx(2.5 * one.loss)


def test_abstaining_items_are_not_counted() -> None:
    some = replace(CALL, choice_targets=[[0, 1, 0], [], [0, 0], [0, 0, 0], []])
    assert stepped(some) == pytest.approx(stepped(replace(CALL, choice_targets=[[0, 1, 0], [], [], [], []])))
    silent = replace(CALL, choice_targets=[[]] * 5).step(chooser()).stats
    assert silent.choices_loss == 0
    assert silent.loss == silent.masked_text_loss + silent.masked_image_loss


def test_items_that_are_dropped_do_not_choose() -> None:
    call = Call(["a", "b", "c"], choices=["yes", "no"], choice_targets=[[1, 0], [0, 1], [1, 0]])
    narrow = replace(call, contents=call.contents[:2], choice_targets=[[1, 0], [0, 1]])
    batch = BatchShape(max_rows_per_device=1, max_columns_per_row=32, max_segments_per_device=2, max_choices_per_item=2)
    answer = call.step(chooser(batch=batch))
    assert answer.stats.dropped == 1
    assert answer.stats.choices_loss == stepped(narrow, batch=batch)
    assert not np.any(answer.embeddings[2])


def test_embeddings_pool_the_content_alone(tmp_path: Path) -> None:
    """A choice that nobody attends to changes no embedding: with attention's output off, columns do not mix."""
    trainer = chooser()
    for block in range(TINY["depth"]):
        out = trainer.read(f"blocks.{block}.out")
        trainer.write(f"blocks.{block}.out", np.zeros_like(out))
    trainer.save(tmp_path / "run.safetensors")
    plain = resume(tmp_path / "run.safetensors")
    expected = replace(CALL, choices=None, choice_targets=None).step(plain).embeddings
    # A product of more columns may sum its rows in another order.
    np.testing.assert_allclose(CALL.step(trainer).embeddings, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("choices", "targets", "message"),
    [
        (OFFERED, None, "choices: they are given without choice_targets"),
        ([*OFFERED, "d", "e"], [[]] * 5, "every text is offered 5, but BatchShape.max_choices_per_item is 4"),
        (
            [[], [], list("abcde"), [], []],
            [[]] * 5,
            r"choices\[2\]: the item is offered 5, but BatchShape\.max_choices",
        ),
        ([[], ["a"], [], [], []], [[]] * 5, r"choices\[1\]: the item is offered 1, but it is no text"),
        ([[], [], ["a", "b" * 40], [], []], [[]] * 5, r"choices\[2\]\[1\]: its 40 bytes do not fit"),
        (
            [["a" * 27, "", "b", ""], [], [], [], []],
            [[]] * 5,
            r"choices\[0\]\[2\]: its 1 bytes do not fit, .* 31 columns",
        ),
        (["a", "b" * 40], [[]] * 5, r"choices\[1\] of item 0: its 40 bytes do not fit"),
        (OFFERED, [[1, 0, 0], [], [1, 0], [], []], r"choice_targets\[2\]: it has 2 values, but its item is offered 3"),
        (OFFERED, [[], [1, 0, 0], [], [], []], r"choice_targets\[1\]: it has 3 values, but its item is offered 0"),
        (OFFERED, [[], [], [], [], [0.5, 0.4, 0]], r"choice_targets\[4\]: its values sum to 0\.9"),
        (OFFERED, [[], [], [2, -1, 0], [], []], r"choice_targets\[2\]\[1\]: a probability, not -1"),
        (OFFERED, [[float("nan"), 0, 0], [], [], [], []], r"choice_targets\[0\]"),
        (OFFERED, ([1, 0, 0], [0, 3, 3, 3, 3]), r"choice_targets\.offsets has 5 entries: expected 6"),
        (OFFERED, ([1, 0, 0], [0, 3, 2, 3, 3, 3]), r"choice_targets\.offsets\[2\]: 2 is below 3"),
        (OFFERED, ([1, 0, 0], [0, 3, 3, 3, 3, 4]), r"choice_targets\.offsets\[5\]: 4 is past 3"),
        (OFFERED, ([1, 0, 0], [0, 2, 2, 2, 2, 2]), r"choice_targets\.offsets"),
        ((b"abc", [0, 1, 4]), [[]] * 5, r"choices\.offsets\[2\] is 4"),
        ((b"abc", [0, 2, 1]), [[]] * 5, r"choices\.offsets\[2\] is 1"),
        ([OFFERED], [[]] * 5, "choices has 1 entries: expected 5"),
    ],
)
def test_refusals_leave_no_trace(choices: Any, targets: Any, message: str) -> None:
    trainer = chooser()
    before = digest(trainer), CALL.step(chooser()).stats.choices_loss
    with pytest.raises(ValueError, match=message):
        trainer.step(CALL.modalities, CALL.contents, choices=choices, choice_targets=targets)
    assert (digest(trainer), CALL.step(trainer).stats.choices_loss) == before


def test_the_fields_derive() -> None:
    trainer = make_trainer(batch=shape(), choices=Choices())
    described = trainer.describe()
    assert described["choices"] == {"weight": 1.0, "inverse_temperature": 1.0, "label_smoothing": 0.0}
    assert described["batch"]["max_choices_per_item"] == 16
    by_room = make_trainer(batch=BATCH).describe()
    assert by_room["choices"] == described["choices"]
    assert by_room["batch"]["max_choices_per_item"] == 4
    assert "choices" not in make_trainer(batch=shape()).describe()
    given = make_trainer(choices=Choices(weight=-1, inverse_temperature=0.5, label_smoothing=-1)).describe()
    assert given["choices"] == {"weight": 0.0, "inverse_temperature": 0.5, "label_smoothing": 0.0}
    assert {"choices.vector", "choices.log_inverse_temperature"} <= {one["name"] for one in described["parameters"]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"choices": Choices(weight=1e39)}, r"Choices\.weight is 1e\+39"),
        ({"choices": Choices(inverse_temperature=0.009)}, r"Choices\.inverse_temperature is 0\.009"),
        ({"choices": Choices(inverse_temperature=101)}, r"Choices\.inverse_temperature is 101"),
        ({"choices": Choices(inverse_temperature=-1)}, r"Choices\.inverse_temperature is -1"),
        ({"choices": Choices(label_smoothing=1.5)}, r"Choices\.label_smoothing is 1\.5"),
        ({"choices": Choices(), "batch": BatchShape(max_choices_per_item=-1)}, "BatchShape.max_choices_per_item is 0"),
    ],
)
def test_settings_are_refused_by_their_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(**fields)


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"objective": Objective.JOINT, "choices": Choices(label_smoothing=0.1)}
    call = replace(CALL, attract=((0, 1, 1.0), (1, 0, 1.0)))
    straight, half = chooser(**fields), chooser(**fields)
    for trainer, steps in ((straight, 6), (half, 3)):
        for _ in range(steps):
            call.step(trainer)
    half.save(tmp_path / "half.safetensors")
    resumed = resume(tmp_path / "half.safetensors")
    for _ in range(3):
        call.step(resumed)
    assert digest(resumed) == digest(straight)
    assert resumed.describe()["choices"] == straight.describe()["choices"]


def test_what_a_resumed_run_may_change(tmp_path: Path) -> None:
    chooser().save(tmp_path / "run.safetensors")
    changed = resume(
        tmp_path / "run.safetensors",
        choices=Choices(weight=3, label_smoothing=0.2),
        batch=BatchShape(max_choices_per_item=9),
    ).describe()
    assert changed["choices"] == {"weight": 3.0, "inverse_temperature": 1.0, "label_smoothing": 0.2}
    assert changed["batch"]["max_choices_per_item"] == 9
    with pytest.raises(ValueError, match=r"choices\.inverse_temperature: the checkpoint has 1"):
        resume(tmp_path / "run.safetensors", choices=Choices(inverse_temperature=2))
    make_trainer().save(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match=r"BatchShape\.max_choices_per_item: the checkpoint has no choices"):
        resume(tmp_path / "none.safetensors", batch=BatchShape(max_choices_per_item=9))


def test_the_plan_counts_them() -> None:
    def planned(**fields: Any) -> Any:
        given: dict[str, Any] = {**TINY, "batch": BATCH, **fields}
        return uform.Trainer.plan_ram(ram(), **given)["planned_bytes_per_device"], make_trainer(**given).describe()

    bytes_of, described = planned(choices=Choices())
    assert bytes_of == described["planned_bytes_per_device"]
    assert bytes_of["choices"] > 0
    rooms = [
        BatchShape(max_rows_per_device=8, max_columns_per_row=32, max_choices_per_item=most) for most in (1, 4, 999)
    ]
    sizes = [planned(batch=room)[0]["choices"] for room in rooms]
    assert sizes[0] < sizes[1] < sizes[2]
    assert sizes[2] < 8 * 32 * (2 * 4 * 64 + 64)  # a choice takes a column, so there are no more of them


def test_training_learns_to_choose() -> None:
    """Which of three letters a text repeats: after some steps the right one is probable."""
    trainer = make_trainer(
        choices=Choices(),
        objective=Objective.CONTRASTIVE,
        schedule=uform.Schedule(learning_rate=3e-3, warmup_steps=5, steps=200),
    )
    texts, rows = ["aaaa", "bbbb", "cccc"] * 4, np.eye(3)[np.arange(12) % 3]
    losses = [
        Call(texts, choices=["a", "b", "c"], choice_targets=rows).step(trainer).stats.choices_loss for _ in range(120)
    ]
    assert losses[0] == pytest.approx(np.log(3), abs=0.1)
    assert losses[-1] < 0.05
    moved = read_all(trainer)["choices.log_inverse_temperature"][0]
    assert 0 < moved <= np.log(100)
