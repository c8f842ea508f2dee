"""MSK: the masked objective."""

from __future__ import annotations

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.runs import make_trainer, picture, ram, read_all, shape, spread
from tests.oracle import masks
from uform import Masking, Objective

LN_256 = 5.545177


def uncovered_seed(text: bytes, probability: float) -> int:
    """A seed under which the first call covers nothing of the text."""
    for seed in range(100):
        if not masks.cover_bytes(text, masks.Draws(seed, 0, 0), probability=probability).places.size:
            return seed
    raise AssertionError("every seed covers something")


def test_MSK_01_short_text() -> None:
    call = Call(["abc", ""], attract=((0, 1, 1.0),))
    seed = uncovered_seed(b"abc", 0.15)
    joint = make_trainer(objective=Objective.JOINT, masking=Masking(token_mask_probability=0.15), seed=seed)
    alone = make_trainer(objective=Objective.CONTRASTIVE, seed=seed)
    both, contrastive = call.step(joint), call.step(alone)
    assert both.stats.masked_text_loss == 0
    assert both.stats.loss == both.stats.contrastive_loss == contrastive.stats.contrastive_loss
    for name, gradient in read_all(alone, "gradient").items():
        np.testing.assert_array_equal(joint.read(name, "gradient").reshape(gradient.shape), gradient, err_msg=name)
    masked = make_trainer(masking=Masking(token_mask_probability=0.15), seed=seed)
    stats = call.step(masked).stats
    assert (stats.loss, stats.gradient_norm, stats.step) == (0, 0, 1)


@pytest.mark.parametrize("random_fraction", [-1.0, 1.0])
@pytest.mark.parametrize("probability", [0.01, 0.05])
def test_MSK_03_short_texts_many_draws(probability: float, random_fraction: float) -> None:
    """`floor(p L + u)` may be 0, and then the step has no masked loss; no minimum of one is promised."""
    masking = Masking(
        token_mask_probability=probability,
        replace_fraction=1.0 if random_fraction < 0 else -1.0,
        random_fraction=random_fraction,
    )
    trainer = make_trainer(masking=masking)
    texts = ["abcdefgh"[: 1 + item % 8] for item in range(32)]
    covered = sum(
        masks.cover_bytes(text.encode(), masks.Draws(0, 0, item), probability=probability).places.size
        for item, text in enumerate(texts)
    )
    first = Call(texts).step(trainer).stats
    assert (first.masked_text_loss > 0) == (covered > 0)
    losses = [Call(texts).step(trainer).stats.masked_text_loss for _ in range(31)]  # 1024 draws with the first
    assert np.all(np.isfinite(losses))
    assert all(np.all(np.isfinite(value)) for value in read_all(trainer).values())


def test_MSK_03_the_share_covered_is_the_one_asked_for() -> None:
    for probability in (0.02, 0.3, 0.77):
        lengths = [1 + item % 8 for item in range(400)]
        covered = [
            masks.cover_bytes(b"x" * length, masks.Draws(9, 4, item), probability=probability).places.size
            for item, length in enumerate(lengths)
        ]
        assert sum(covered) / sum(lengths) == pytest.approx(probability, abs=0.03)


def test_MSK_05_mean_over_bytes() -> None:
    """Losses {1} and {3, 3, 3}: the mean over the four is 2.5."""
    logits, targets = np.zeros((4, 256), np.float32), np.array([5, 0, 255, 7], np.uint8)
    logits[np.arange(4), targets] = np.log(255.0 / np.expm1([1.0, 3.0, 3.0, 3.0]))
    assert uform.losses.masked_bytes(ram(), logits, targets).loss == pytest.approx(2.5, rel=1e-5)


def test_MSK_05_mean_over_the_bytes_of_all_devices() -> None:
    contents = ["a", "bcd and twenty bytes more of it", "x", "the last of them"]
    losses = []
    for devices in (1, 2, 4):
        trainer = make_trainer(devices=devices, masking=Masking(token_mask_probability=1.0, replace_fraction=1.0))
        spread(trainer)
        losses.append(Call(contents).step(trainer).stats.masked_text_loss)
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-6)
    each = []
    for content in contents:
        trainer = make_trainer(masking=Masking(token_mask_probability=1.0, replace_fraction=1.0))
        spread(trainer)
        each.append(Call([content]).step(trainer).stats.masked_text_loss)
    lengths = [len(content) for content in contents]
    assert losses[0] == pytest.approx(np.average(each, weights=lengths), rel=1e-5)
    assert abs(losses[0] - np.mean(each)) > 1e-3


def test_MSK_07_uniform_logits() -> None:
    targets = np.arange(7, dtype=np.uint8)
    assert uform.losses.masked_bytes(ram(), np.zeros((7, 256), np.float32), targets).loss == pytest.approx(LN_256)
    trainer = make_trainer(masking=Masking(token_mask_probability=1.0))
    trainer.write("text.table", np.zeros((260, 64), np.float32))
    assert Call(["uniform logits"]).step(trainer).stats.masked_text_loss == pytest.approx(LN_256)


def test_MSK_07_no_bytes_no_loss() -> None:
    none = uform.losses.masked_bytes(ram(), np.zeros((0, 256), np.float32), np.zeros(0, np.uint8))
    assert none.loss == 0
    assert none.gradient.shape == (0, 256)


@pytest.mark.parametrize("ratio", [0.05, 0.5, 0.99, 1.0])
def test_images_keep_a_patch(ratio: float) -> None:
    trainer = make_trainer(batch=shape(images=True), masking=Masking(image_mask_ratio=ratio))
    stats = Call([picture(4, 4), picture(8, 8, seed=1), picture(3, 3, seed=2)]).step(trainer).stats
    # The first has one patch and the third none that is filled: neither is covered.
    assert (stats.masked_image_loss > 0) == (ratio > 0.05)
    assert np.isfinite(stats.masked_image_loss)
