"""`Model.text_choose`: probabilities of any number of texts' choices, and another run that is trained by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.runs import make_trainer, ram, read_all, shape, spread
from tests.oracle import choices as oracle
from tests.oracle.encoder import encode
from tests.oracle.segment import text_segment
from tests.oracle.step import choice_scores
from uform import Choices, Modality, Objective, RowsTape

TEXTS = ["is it so", "", "what of this one", "x" * 60] * 50
OWN = [["yes", "no"], [], ["a", "bb", "", "dddd"], ["one"]] * 50
BATCH = uform.BatchShape(max_rows_per_device=8, max_columns_per_row=32, max_choices_per_item=4)


@pytest.fixture(scope="module")
def trainer() -> uform.Trainer:
    made = make_trainer(batch=BATCH, choices=Choices(inverse_temperature=3.0))
    spread(made)
    return made


@pytest.fixture(scope="module")
def checkpoint(trainer: uform.Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("choices") / "run.safetensors"
    trainer.save(path)
    return path


@pytest.mark.parametrize("devices", [1, 3])
def test_probabilities_are_the_oracles(trainer: uform.Trainer, checkpoint: Path, devices: int) -> None:
    answer = uform.Model.init_ram(ram(devices), checkpoint).text_choose(TEXTS, OWN)
    assert isinstance(answer, RowsTape)
    assert len(answer) == len(TEXTS)
    np.testing.assert_array_equal(answer.offsets, np.cumsum([0, *map(len, OWN)]))
    assert answer.numpy().dtype == np.float32
    parameters = {name: value.astype(np.float64) for name, value in read_all(trainer).items()}
    for place in (0, 2, 3):
        room = 31 - (1 + sum(1 + len(one) for one in OWN[place]))
        segment = text_segment(TEXTS[place].encode()[:room], choices=[one.encode() for one in OWN[place]])
        expected = oracle.probabilities(choice_scores(parameters, [segment], [encode(parameters, segment)])[0])
        for row in range(place, len(TEXTS), 4):
            np.testing.assert_allclose(answer[row], expected, atol=1e-6)


def test_every_form_says_the_same(checkpoint: Path) -> None:
    model = uform.Model.init_ram(ram(), checkpoint)
    texts, offered = ["first", "second", ""], ["yes", "no", "maybe"]
    expected = model.text_choose(texts, [offered] * 3)
    assert np.allclose(expected.numpy().reshape(3, 3).sum(axis=1), 1, atol=1e-6)
    for given in (
        model.text_choose(texts, offered),
        model.text_choose((b"firstsecond", [0, 5, 11, 11]), (b"yesnomaybe", [0, 3, 5, 10])),
        model.text_choose(pyarrow.array(texts), pyarrow.array(offered)),
        model.text_choose([text.encode() for text in texts], [text.encode() for text in offered]),
        model.on(model.executor).text_choose(texts, offered),
        model.deferred(model.executor).text_choose(texts, offered).result(),
    ):
        np.testing.assert_array_equal(given.numpy(), expected.numpy())
        np.testing.assert_array_equal(given.offsets, [0, 3, 6, 9])


def test_more_choices_than_a_run_trained_with(checkpoint: Path) -> None:
    answer = uform.Model.init_ram(ram(), checkpoint).text_choose(["which"], list("abcdefghij"))
    assert answer[0].shape == (10,)
    assert answer[0].sum() == pytest.approx(1)


def test_nothing_to_choose(checkpoint: Path) -> None:
    model = uform.Model.init_ram(ram(), checkpoint)
    assert len(model.text_choose([], ["a"])) == 0
    nothing: Any
    for nothing in ([], [[], []]):
        answer = model.text_choose(["a", "b"], nothing)
        assert len(answer) == 2
        assert answer.numpy().shape == (0,)


def test_the_answer_lies_in_an_arena(checkpoint: Path) -> None:
    model, arena = uform.Model.init_ram(ram(), checkpoint), uform.Arena.for_ram(4096)
    answer = model.text_choose(["a", "b"], ["yes", "no"], arena=arena)
    np.testing.assert_array_equal(answer.numpy(), model.text_choose(["a", "b"], ["yes", "no"]).numpy())
    used = arena.used
    assert used >= answer.numpy().nbytes
    with pytest.raises(ValueError, match=r"choices\[0\]"):
        model.text_choose(["a"], ["b" * 99], arena=arena)
    assert arena.used == used
    with pytest.raises(MemoryError):
        model.text_choose(["a"] * 2000, ["yes", "no"], arena=arena)


@pytest.mark.parametrize(
    ("texts", "choices", "error", "message"),
    [
        (["a", "b"], [["yes"], ["n" * 40]], ValueError, r"choices\[1\]\[0\]: its 40 bytes do not fit"),
        (["a"], ["yes", "n" * 40], ValueError, r"choices\[1\] of item 0: its 40 bytes do not fit"),
        (["a"], [["yes"], ["no"]], ValueError, "choices has 2 entries: expected 1"),
        (["a"], None, TypeError, "choices is None"),
        ("a", ["yes"], TypeError, "texts is one str"),
        (["a", 3], ["yes"], TypeError, r"texts\[1\] is of type int"),
        (["\ud800"], ["yes"], ValueError, r"texts\[0\] is no text"),
        ((b"ab", [0, 1, 3]), ["yes"], ValueError, r"texts\.offsets\[2\] is 3"),
        (["a"], ["\ud800"], ValueError, r"choices\[0\] is no text"),
    ],
)
def test_refusals(checkpoint: Path, texts: Any, choices: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        uform.Model.init_ram(ram(), checkpoint).text_choose(texts, choices)


def test_a_checkpoint_without_choices(tmp_path: Path) -> None:
    make_trainer(batch=shape()).save(tmp_path / "run.safetensors")
    model = uform.Model.init_ram(ram(), tmp_path / "run.safetensors")
    with pytest.raises(ValueError, match="text_choose: the checkpoint was trained without choices"):
        model.text_choose(["a"], ["yes", "no"])


def test_texts_embed_as_they_do_without_choices(trainer: uform.Trainer, checkpoint: Path) -> None:
    model = uform.Model.init_ram(ram(), checkpoint)
    before = model.embed([Modality.TEXT] * 2, TEXTS[:2]).numpy().copy()
    model.text_choose(TEXTS, OWN)
    np.testing.assert_array_equal(model.embed([Modality.TEXT] * 2, TEXTS[:2]).numpy(), before)


def test_one_model_teaches_another(tmp_path: Path) -> None:
    """A student that sees only a teacher's probabilities comes to answer as the teacher does."""
    letters = ["a", "b", "c"]
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(letters, 6)) for _ in range(24)]
    counts = np.array([[text.count(letter) for letter in letters] for text in texts])

    def student(seed: int) -> uform.Trainer:
        return make_trainer(
            batch=uform.BatchShape(max_rows_per_device=16, max_columns_per_row=32, max_choices_per_item=3),
            objective=Objective.CONTRASTIVE,
            choices=Choices(),
            schedule=uform.Schedule(learning_rate=2e-3, warmup_steps=5, steps=400),
            seed=seed,
        )

    teacher = student(1)
    for _ in range(100):
        Call(texts, choices=letters, choice_targets=counts / 6).step(teacher)
    teacher.save(tmp_path / "teacher.safetensors")
    probabilities = uform.Model.init_ram(ram(), tmp_path / "teacher.safetensors").text_choose(texts, letters)

    pupil, stats = student(2), uform.TrainerStepStats()
    divergences = []
    for _ in range(400):
        pupil.step(
            [Modality.TEXT] * len(texts),
            texts,
            choices=letters,
            choice_targets=(probabilities, probabilities.offsets),
            stats=stats,
        )
        taught = probabilities.numpy()
        entropy = -float(np.sum(taught * np.log(np.maximum(taught, 1e-30)))) / len(texts)
        divergences.append(stats.choices_loss - entropy)
    assert divergences[-1] < 0.1 * divergences[0]
    pupil.save(tmp_path / "pupil.safetensors")
    answers = uform.Model.init_ram(ram(), tmp_path / "pupil.safetensors").text_choose(texts, letters)
    assert np.abs(answers.numpy() - probabilities.numpy()).mean() < 0.05
