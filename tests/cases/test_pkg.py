"""PKG: packing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.reference import relative_error
from tests.helpers.runs import make_trainer, picture, read_all, shape, spread
from uform import Masking, Objective

ITEMS: list[Any] = ["the item", picture(8, 12, seed=1), b"\x00\xff", ""]


def trainer_of(**fields: Any) -> uform.Trainer:
    given: dict[str, Any] = {
        "objective": Objective.CONTRASTIVE,
        "depth": 2,
        "batch": shape(rows=4, columns=64, images=True),
        **fields,
    }
    trainer = make_trainer(**given)
    spread(trainer)
    return trainer


def embed(*contents: Any, **fields: Any) -> npt.NDArray[np.float32]:
    return Call(list(contents)).step(trainer_of(**fields)).embeddings


@pytest.mark.parametrize("item", ITEMS, ids=["text", "image", "bytes", "empty"])
def test_PKG_01_an_item_alone_and_among_others(item: Any) -> None:
    alone = embed(item)[0]
    packed = embed("before it", item, picture(12, 8, seed=2))[1]
    np.testing.assert_allclose(packed, alone, atol=1e-5)
    changed = embed("BEFORE it", item, picture(12, 8, seed=3))[1]
    np.testing.assert_array_equal(changed, packed)


@pytest.mark.parametrize("item", ITEMS, ids=["text", "image", "bytes", "empty"])
def test_PKG_01_neighbours_of_other_lengths(item: Any) -> None:
    alone = embed(item)[0]
    for neighbours in (["x" * 60], ["x"] * 11, [picture(16, 16)], ["y" * length for length in range(9)]):
        packed = embed(*neighbours, item, *neighbours)[len(neighbours)]
        np.testing.assert_allclose(packed, alone, atol=1e-5)


def test_PKG_01_neighbours_get_no_gradient() -> None:
    """The one row does not see the last text, whose bytes must not move."""
    trainer = trainer_of(objective=Objective.CONTRASTIVE)
    Call(["abc", "abd", "cde", "xyz"], attract=((0, 1, 1.0),), ignore=((0, 3, 1.0),)).step(trainer)
    table = read_all(trainer, "gradient")["text.table"]
    assert all(np.any(table[ord(letter)]) for letter in "abcde")
    assert not any(np.any(table[ord(letter)]) for letter in "xyz")


@pytest.mark.parametrize("objective", list(Objective))
def test_PKG_03_slack_is_never_read(objective: Objective) -> None:
    """All memory of a run is filled with NaN by a refused step over full rows; then few columns are in use."""
    settings: dict[str, Any] = {"objective": objective, "batch": shape(rows=4, columns=64, images=True)}
    call = Call(["thirteen byte", picture(8, 4, seed=5), "x"], attract=((0, 1, 1.0), (1, 0, 1.0)), repel=((0, 2, 1.0),))
    poisoned, fresh = trainer_of(**settings), trainer_of(**settings)
    healthy = read_all(poisoned)
    for name, value in healthy.items():
        if not name.endswith("log_inverse_temperature"):  # which has bounds
            poisoned.write(name, np.full_like(value, np.nan))
    full = Call(["x" * 63, "y" * 63, picture(28, 28), picture(28, 28, seed=1)], attract=((0, 1, 1.0), (2, 3, 1.0)))
    for trainer in (poisoned, fresh):
        with pytest.raises(FloatingPointError) if trainer is poisoned else nullcontext():
            full.step(trainer)
    spread(fresh)
    for trainer in (poisoned, fresh):
        for name, value in healthy.items():
            trainer.write(name, value)
    answers = [call.step(trainer) for trainer in (poisoned, fresh)]
    np.testing.assert_array_equal(answers[0].embeddings, answers[1].embeddings)
    assert answers[0].stats.loss == answers[1].stats.loss
    assert np.isfinite(answers[0].stats.gradient_norm)
    expected = read_all(fresh, "gradient")
    for name, gradient in read_all(poisoned, "gradient").items():
        np.testing.assert_array_equal(gradient, expected[name], err_msg=name)


def test_PKG_05_segments_of_one_column() -> None:
    """Nothing to attend to but itself: attention is the value, so the embedding has a closed form."""
    trainer = make_trainer(objective=Objective.JOINT)
    spread(trainer)
    answer = Call(["", "", ""], attract=((0, 1, 1.0),)).step(trainer)
    assert np.isfinite(answer.stats.loss)
    assert all(np.all(np.isfinite(value)) for value in read_all(trainer, "gradient").values())
    fresh = make_trainer(objective=Objective.JOINT)
    spread(fresh)
    given = {name: value.astype(np.float64) for name, value in read_all(fresh).items()}

    def norm(x: Any, gain: str) -> Any:
        return x / np.sqrt(np.mean(x * x) + 1e-6) * given[gain]

    x = given["text.table"][256]
    value = (given["blocks.0.qkv"] @ norm(x, "blocks.0.norm1"))[128:]
    x = x + given["blocks.0.out"] @ value
    gate, up = np.split(given["blocks.0.up"] @ norm(x, "blocks.0.norm2"), 2)
    gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    x = norm(x + given["blocks.0.down"] @ (gelu * up), "norm")
    assert relative_error(answer.embeddings, np.stack([x / np.linalg.norm(x)] * 3)) < 1e-5


def test_PKG_05_tiny_segments_beside_a_long_one() -> None:
    batch = uform.BatchShape(max_rows_per_device=2, max_columns_per_row=257)
    trainer = make_trainer(objective=Objective.JOINT, batch=batch)
    call = Call(["", "a", "bc", "d" * 256], attract=((0, 1, 1.0), (2, 3, 1.0)))
    answer = call.step(trainer)
    assert answer.stats.dropped == answer.stats.truncated == 0
    assert np.isfinite(answer.stats.loss)
    assert all(np.all(np.isfinite(value)) for value in read_all(trainer, "gradient").values())


def test_PKG_07_a_bag_weighs_columns_and_packs_as_it_pools() -> None:
    """Items of 7 and 2 bytes in one bag: the mean over their 8 + 3 columns, neighbours or not."""
    trainer = trainer_of()
    together = Call(["seven b", "2b", "neighbour"], bags=[5, 5, 6]).step(trainer).embeddings[0]
    unpacked = Call(["seven b", "2b"], bags=[0, 0]).step(trainer_of()).embeddings[0]
    np.testing.assert_allclose(together, unpacked, atol=1e-6)
    parts = embed("seven b", "2b")
    # Unit vectors have lost the lengths, but two counts of columns leave one plane and one side of it.
    weights, *_ = np.linalg.lstsq(parts.T.astype(np.float64), together.astype(np.float64), rcond=None)
    np.testing.assert_allclose(parts.T @ weights, together, atol=1e-5)
    assert np.all(weights > 0)
    assert weights[0] > weights[1]


def test_PKG_07_masked_losses_weigh_bytes_and_pack_alike() -> None:
    def stats(*contents: str) -> float:
        trainer = trainer_of(
            objective=Objective.MASKED, masking=Masking(token_mask_probability=1.0, replace_fraction=1.0)
        )
        return Call(list(contents)).step(trainer).stats.masked_text_loss

    assert stats("seven b", "2b") == pytest.approx((7 * stats("seven b") + 2 * stats("2b")) / 9, rel=1e-5)


def test_what_finds_no_room_is_dropped_with_its_edges() -> None:
    """One row of 8 columns, taken by the first item: its bag pools the rest, the other bag is zero and has no pairs."""
    little = shape(rows=1, columns=8)
    trainer = trainer_of(batch=little)
    call = Call(["abcdefg", "x", "another bag"], bags=[4, 4, 9], attract=((0, 2, 1.0), (2, 0, 1.0)))
    answer = call.step(trainer)
    assert (answer.stats.dropped, answer.stats.truncated) == (2, 1)
    assert answer.stats.contrastive_loss == 0
    np.testing.assert_allclose(answer.embeddings[0], Call(["abcdefg"]).step(trainer_of(batch=little)).embeddings[0])
    np.testing.assert_array_equal(answer.embeddings[1], 0)


def test_drops_are_counted_until_they_are_read() -> None:
    trainer = trainer_of(batch=shape(rows=2, columns=8, segments=3))
    texts = ["a", "b", "c", "d", "e"]
    trainer.step([uform.Modality.TEXT] * 5, texts)
    assert Call(texts).step(trainer).stats.dropped == 4
    assert Call(texts[:3]).step(trainer).stats.dropped == 0


@pytest.mark.parametrize(
    ("batch", "kept"),
    [
        (shape(rows=4, columns=8, segments=2), 2),
        (shape(rows=4, columns=8, segments=8, bags=3), 3),
        (shape(rows=1, columns=6, segments=8), 3),
    ],
    ids=["segments", "bags", "columns"],
)
@pytest.mark.parametrize("devices", [1, 2])
def test_every_bound_of_the_batch_drops(batch: uform.BatchShape, kept: int, devices: int) -> None:
    answer = Call(["a", "b", "c", "d", "e", "f", "g", "h"]).step(trainer_of(batch=batch, devices=devices))
    assert answer.stats.dropped == 8 - kept * devices
    np.testing.assert_array_equal(np.any(answer.embeddings, axis=1), [place < kept * devices for place in range(8)])


def test_losses_count_only_what_was_kept() -> None:
    """The third pair finds no room: the others' losses and the divisor are as if it had not come."""
    contents = ["a", "bc", "d", "ef", "dropped one", "dropped two"]
    attract = ((0, 1, 1.0), (2, 3, 1.0), (4, 5, 1.0))
    whole = Call(contents, attract=attract).step(trainer_of(batch=shape(rows=2, columns=16, segments=4)))
    fewer = Call(contents[:4], attract=attract[:2]).step(trainer_of(batch=shape(rows=2, columns=16, segments=4)))
    assert whole.stats.dropped == 2
    assert whole.stats.contrastive_loss == fewer.stats.contrastive_loss
    assert whole.stats.gradient_norm == fewer.stats.gradient_norm
