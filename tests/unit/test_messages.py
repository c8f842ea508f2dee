"""Messages that name what the caller gave: its words and variables, not numbers of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.runs import TINY, make_trainer, ram, shape
from uform import Modality, Objective

TEXT = Modality.TEXT


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> uform.Model:
    path = tmp_path_factory.mktemp("model") / "run"
    make_trainer(objective=Objective.CONTRASTIVE, batch=shape(rows=2, columns=64)).save(path)
    return uform.Model.init_ram(ram(), path)


def test_a_bag_over_the_room_is_named_by_its_word_and_first_item(model: uform.Model) -> None:
    words = [7, 8] + [99] * 18
    with pytest.raises(ValueError, match=r"bags\[2\] is 99: the 18 items of that bag hold 738 columns, over the 128"):
        model.embed([TEXT] * 20, ["a" * 40] * 20, bags=words)
    assert model.embed([TEXT] * 20, ["a"] * 20, bags=words).shape == (3, 64)


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/nowhere/libblas.so", "/nowhere/libblas.so: cannot open"), ("libm.so.6", "libm.so.6: it has no cblas_sgemm")],
)
def test_a_wrong_blas_is_told_by_the_variable_that_names_it(
    path: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UFORM_BLAS", path)
    with pytest.raises(OSError, match=rf"UFORM_BLAS is {reason}"):
        uform.Executor.for_ram()


@pytest.mark.parametrize("modality", [Modality.IMAGE, Modality.VIDEO, Modality.AUDIO])
@pytest.mark.parametrize("content", ["a", b"ab", None, np.zeros((2, 2), np.float64)])
def test_a_modality_without_room_is_told_before_its_content_is_looked_at(modality: Modality, content: Any) -> None:
    with pytest.raises(ValueError, match=rf"modalities\[1\] is {modality.name}: the run's batch shape leaves that"):
        make_trainer().step([TEXT, modality], ["a", content])


def test_no_number_has_no_sign() -> None:
    trainer = make_trainer(objective=Objective.CONTRASTIVE)
    for sign in (1.0, -1.0):
        trainer.write("norm", np.copysign(np.full(64, np.nan, np.float32), np.float32(sign)))
        with pytest.raises(FloatingPointError, match=r"^contrastive_loss is nan: the step was refused"):
            trainer.step([TEXT] * 2, ["a", "b"], relations=uform.Relations(attract=([0, 1, 2], [1, 0])))
        vectors = np.copysign(np.full((2, 4), np.nan, np.float32), np.float32(sign))
        with pytest.raises(ValueError, match=r"embeddings\[0\] is not finite: it has nan in column 0"):
            uform.losses.contrastive(ram(), vectors, relations=None)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64, np.float16, np.float64])
def test_arrays_of_any_real_numbers_are_weights_and_targets(kind: Any) -> None:
    """As lists of them are."""
    run: dict[str, Any] = {"objective": Objective.CONTRASTIVE, "choices": uform.Choices(), "seed": 3}
    losses = []
    for numbers in ([1, 0, 2], np.array([1, 0, 2], kind)):
        trainer, stats = make_trainer(**run), uform.TrainerStepStats()
        relations = uform.Relations(attract=([0, 2, 3, 3], [1, 2, 0], numbers))
        rows = [numbers[:2], numbers[:0], numbers[:0]]
        choices = [["yes", "no"], [], []]
        trainer.step(
            [TEXT] * 3, ["a", "b", "c"], relations=relations, choices=choices, choice_targets=rows, stats=stats
        )
        losses.append((stats.contrastive_loss, stats.choices_loss))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("numbers", [b"\1\1", bytearray(2), np.ones(2, bool), np.ones(2, "S2"), np.ones(2, complex)])
def test_bytes_and_truths_are_no_weights(numbers: Any) -> None:
    with pytest.raises(TypeError, match=r"Edges\.weights (is of type|holds items of format).*: expected a sequence of"):
        uform.Edges(offsets=[0, 2], ids=[0, 1], weights=numbers)


def test_the_other_byte_order_is_named() -> None:
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("offsets", {"offsets": np.array([0, 1], ">u8"), "ids": [0]}),
        ("ids", {"offsets": [0, 1], "ids": np.array([0], ">i4")}),
        ("weights", {"offsets": [0, 1], "ids": [0], "weights": np.array([1], ">f4")}),
    )
    for field, given in cases:
        with pytest.raises(TypeError, match=rf"Edges\.{field} holds items of format '>.', in another byte order than"):
            uform.Edges(**given)


@pytest.mark.parametrize("count", [2**60, 2**63, 2**64, 10**5000, -(10**5000)], ids=["60", "63", "64", "10", "-10"])
def test_an_order_of_more_than_an_address_reaches(count: int) -> None:
    for call in (
        lambda: uform.data.order(count, epoch=0),
        lambda: uform.data.batches(count, size=1),
    ):
        with pytest.raises(
            ValueError, match=r"^count is .{1,40}: expected at least \d and less than 1152921504606846976"
        ):
            call()


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 5000, "", 3])
def test_names_that_no_plugin_has(name: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="plugins") as refusal:
        uform.Trainer.init_ram(ram(), **TINY, plugins={name: None})
    assert type(refusal.value) in (ValueError, TypeError)
    assert len(str(refusal.value)) < 200


class Endless:
    """More entries than memory holds."""

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, place: int) -> str:
        return "a"


def test_no_memory_for_entries_is_told_by_the_field() -> None:
    for field in ("bags", "temperature_groups", "sides"):
        given: dict[str, Any] = {field: Endless()}
        with pytest.raises(MemoryError, match=rf"{field} is of type Endless: there is no memory for its entries"):
            make_trainer().step([TEXT], ["a"], **given)


def test_subclasses_of_texts_and_paths_are_what_they_hold(model: uform.Model, tmp_path: Path) -> None:
    class Word(str):
        def encode(self, *arguments: Any) -> bytes:
            raise RuntimeError("not asked")

    trainer = make_trainer(choices=uform.Choices())
    trainer.step([TEXT], [Word("a")], choices=[Word("yes"), Word("no")], choice_targets=[[1, 0]])
    trainer.save(np.bytes_(bytes(tmp_path / "run")))
    assert uform.Model.init_ram(ram(), np.str_(tmp_path / "run")).describe()["hidden"] == 64


def test_a_plugin_that_calls_a_verb_is_told_that_it_is_one() -> None:
    class Caller:
        name = "caller"

        def forward_backward(self, batch: Any) -> float:
            trainer.describe()
            return 0.0

    uform.register(Caller)
    trainer = make_trainer(plugins={"caller": None})
    with pytest.raises(RuntimeError, match="what that calls, progress or a plugin, cannot make another one on it"):
        trainer.step([TEXT], ["a"])
