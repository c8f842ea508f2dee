"""The oracle's encoder, masked losses, step, optimizer and random numbers: closed forms and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.oracle import encoder, masked, rotary, step
from tests.oracle.contrastive import Form
from tests.oracle.image import patches_of
from tests.oracle.numeric import Array, gradient, logsumexp, softmax, softplus, unit
from tests.oracle.optimizer import AdamW, Schedule, clip, global_norm
from tests.oracle.pairs import classify
from tests.oracle.parameters import BIAS, LOG_INVERSE_TEMPERATURE, TEXT_MASK, depth_of, initialize, inner_width
from tests.oracle.philox import philox4x32
from tests.oracle.relations import Relations, to_bags
from tests.oracle.segment import Segment, text_segment

FORMS = list(Form)
DIGITS = 6e-7


def slope(function: Callable[[Array], Any], point: Array, direction: Array, size: float = 1e-5) -> float:
    """The central difference along a direction."""
    return float(function(point + size * direction) - function(point - size * direction)) / (2 * size)


def test_sums_of_exponentials_survive_any_magnitude() -> None:
    assert logsumexp(np.array([1e4, 1e4])) == pytest.approx(1e4 + np.log(2))
    np.testing.assert_allclose(softmax(np.array([-1e4, -1e4, -2e4])), [0.5, 0.5, 0.0])
    np.testing.assert_allclose(softplus(np.array([-800.0, 0.0, 800.0])), [0.0, np.log(2), 800.0])


def test_NUM_07_zero_vector_stays_zero_with_a_finite_gradient() -> None:
    np.testing.assert_array_equal(unit(np.zeros(3)), np.zeros(3))
    assert np.all(np.isfinite(gradient(lambda x: unit(x)[0], np.zeros(3))))
    np.testing.assert_allclose(unit(np.array([3.0, 4.0])), [0.6, 0.8])


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: list[int], words: list[int]) -> None:
    assert philox4x32(counter, key).tolist() == words


def test_philox_takes_many_counters_at_once() -> None:
    counters = np.arange(24, dtype=np.uint32).reshape(2, 3, 4)
    drawn = philox4x32(counters, [1, 2])
    assert drawn.dtype == np.uint32
    np.testing.assert_array_equal(drawn[1, 2], philox4x32(counters[1, 2], [1, 2]))


def test_MSK_01_nothing_covered() -> None:
    assert masked.masked_bytes(np.zeros((0, 256)), np.zeros(0)) == 0.0
    assert masked.masked_patches(np.zeros((0, 12)), np.zeros((0, 12))) == 0.0
    parameters = initialize(np.random.default_rng(0), depth=1, hidden=64, inner=128)
    result = step.run(parameters, step.Batch([text_segment(b"abc")], masked_weights={"text": 1.0}))
    assert result.loss == 0.0
    assert all(not np.any(gradient) for gradient in result.gradients.values())


def test_MSK_05_mean_over_bytes() -> None:
    peaks = np.log(255.0 / np.expm1([1.0, 3.0, 3.0, 3.0]))
    logits = np.zeros((4, 256))
    logits[np.arange(4), [5, 0, 255, 7]] = peaks
    assert masked.masked_bytes(logits, np.array([5, 0, 255, 7])) == pytest.approx(2.5)


def test_MSK_07_uniform_logits() -> None:
    assert masked.masked_bytes(np.zeros((3, 256)), np.array([0, 1, 255])) == pytest.approx(5.545177, abs=DIGITS)


def test_masked_bytes_gradient_is_softmax_minus_the_target() -> None:
    logits = np.random.default_rng(1).normal(size=(5, 256))
    targets = np.array([0, 9, 9, 255, 128])
    expected = softmax(logits)
    expected[np.arange(5), targets] -= 1.0
    np.testing.assert_allclose(gradient(lambda x: masked.masked_bytes(x, targets), logits), expected / 5, atol=1e-15)


def test_patches_are_normalized_by_themselves() -> None:
    values = np.array([[1.0, -1.0, 1.0, -1.0], [0.5, 0.5, 0.5, 0.5]])
    normal = masked.normalized_patches(values)
    np.testing.assert_allclose(normal[0], values[0] / np.sqrt(1 + 1e-6))
    np.testing.assert_array_equal(normal[1], 0.0)
    assert masked.masked_patches(normal + 0.5, values) == pytest.approx(0.25)


def test_widths() -> None:
    assert [inner_width(hidden) for hidden in (64, 384, 512, 768, 1024)] == [256, 1024, 1408, 2048, 2816]


def test_rotary_angles_share_out_the_pairs() -> None:
    text = rotary.angles((3,))
    np.testing.assert_allclose(text, np.outer([0, 1, 2, 3], 10_000.0 ** (-np.arange(32) / 32)))
    image = rotary.angles((2, 3))
    assert image.shape == (7, 32)
    half = 10_000.0 ** (-np.arange(16) / 16)
    np.testing.assert_allclose(image[0], 0.0)
    np.testing.assert_allclose(image[6], np.concatenate([2 * half, 3 * half]))
    np.testing.assert_allclose(image[2], np.concatenate([1 * half, 2 * half]))
    video = rotary.angles((2, 3, 4))
    third = 10_000.0 ** (-np.arange(12) / 12)
    last = np.concatenate([2 * 10_000.0 ** (-np.arange(8) / 8), 3 * third, 4 * third])
    np.testing.assert_allclose(video[24], last)


def test_rotary_turns_the_pair_k_and_k_plus_32() -> None:
    turn = rotary.angles((4,))[4:]
    for pair in (0, 5, 31):
        vector = np.zeros((1, 64))
        vector[0, pair] = 1.0
        turned = rotary.rotate(vector, turn)
        expected = np.zeros((1, 64))
        expected[0, pair], expected[0, pair + 32] = np.cos(turn[0, pair]), np.sin(turn[0, pair])
        np.testing.assert_allclose(turned, expected)


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    query, key = np.random.default_rng(2).normal(size=(2, 1, 64))
    turns = rotary.angles((9,))
    near = rotary.rotate(query, turns[2:3]) @ rotary.rotate(key, turns[5:6]).T
    far = rotary.rotate(query, turns[6:7]) @ rotary.rotate(key, turns[9:10]).T
    np.testing.assert_allclose(near, far)


def test_PKG_05_attention_of_one_column_is_its_value() -> None:
    qkv = np.random.default_rng(4).normal(size=(1, 3 * 128))
    np.testing.assert_allclose(encoder.attend(qkv, rotary.angles((0,))), qkv[:, 256:])


def test_attention_of_equal_scores_is_the_mean_of_the_values() -> None:
    qkv = np.random.default_rng(4).normal(size=(5, 3 * 64))
    qkv[:, :64] = 0.0
    attended = encoder.attend(qkv, rotary.angles((4,)))
    np.testing.assert_allclose(attended, np.tile(qkv[:, 128:].mean(axis=0), (5, 1)))


def test_attention_with_the_pairs_as_complex_numbers() -> None:
    """Scores are `Re(q conj(k)) / 8` once a pair is one complex number and its turn a factor `exp(i angle)`."""
    grid, hidden = (2, 3), 128
    qkv = np.random.default_rng(8).normal(size=(7, 3 * hidden))
    places = [(0, 0), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    frequency = [10_000.0 ** (-pair / 16) for pair in range(16)]
    turns = np.array([[y * f for f in frequency] + [x * f for f in frequency] for y, x in places])
    expected = np.zeros((7, hidden))
    for head in (0, 1):
        query, key, value = (qkv[:, part * hidden + head * 64 :][:, :64] for part in range(3))
        turned = [(half[:, :32] + 1j * half[:, 32:]) * np.exp(1j * turns) for half in (query, key)]
        scores = np.real(turned[0] @ np.conj(turned[1]).T) / 8
        weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        expected[:, head * 64 :][:, :64] = weights @ value
    np.testing.assert_allclose(encoder.attend(qkv, rotary.angles(grid)), expected, rtol=1e-12)


def test_norm_and_gelu_known_values() -> None:
    np.testing.assert_allclose(encoder.rms_norm(np.array([[3.0, 4.0]]), np.array([1.0, 2.0])) * np.sqrt(12.5), [[3, 8]])
    np.testing.assert_allclose(encoder.gelu(np.array([-1.0, 0.0, 1.0])), [-0.158808, 0.0, 0.841192], atol=DIGITS)


def test_feed_forward_takes_the_gate_from_the_first_rows() -> None:
    up = np.array([[1.0], [2.0], [10.0], [20.0]])
    down = np.array([[1.0, 1.0]])
    expected = encoder.gelu(np.array(0.5)) * 5.0 + encoder.gelu(np.array(1.0)) * 10.0
    np.testing.assert_allclose(encoder.feed_forward(np.array([[0.5]]), up, down), [[expected]])


def parameters_at_large(seed: int = 0, groups: int = 1) -> dict[str, Array]:
    """Two blocks with weights large enough for every term to matter, gains and biases off their initial values."""
    rng = np.random.default_rng(seed)
    parameters = initialize(
        rng,
        depth=2,
        hidden=64,
        inner=128,
        patch_values={"image": 12, "video": 8},
        temperature_groups=groups,
        inverse_temperature=6.0,
        deviation=0.3,
    )
    for name, value in parameters.items():
        if value.ndim == 1:
            parameters[name] = value + rng.normal(0.0, 0.2, value.shape)
    return parameters


def image_segment(bag: int, covered: tuple[int, ...] = (), seed: int = 11) -> Segment:
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    patches = patches_of(pixels, 2)
    places = np.array(covered, dtype=np.int64)
    return Segment("image", bag, content=patches.values, grid=patches.grid, covered=places)


def test_encoding_one_column_by_hand() -> None:
    parameters = parameters_at_large()
    x = parameters["text.table"][256]

    def norm(vector: Array, gain: str) -> Array:
        return vector / np.sqrt(np.dot(vector, vector) / 64 + 1e-6) * parameters[gain]

    for block in ("blocks.0.", "blocks.1."):
        x = x + parameters[block + "out"] @ (parameters[block + "qkv"][128:] @ norm(x, block + "norm1"))
        up = parameters[block + "up"] @ norm(x, block + "norm2")
        x = x + parameters[block + "down"] @ (encoder.gelu(up[:128]) * up[128:])
    np.testing.assert_allclose(encoder.encode(parameters, text_segment(b""))[0], norm(x, "norm"), rtol=1e-12)


def test_content_without_rotary_order_still_depends_on_place() -> None:
    parameters = parameters_at_large()
    states = [encoder.encode(parameters, text_segment(text)) for text in (b"abc", b"acb")]
    assert np.max(np.abs(states[0][0] - states[1][0])) > 1e-3


def test_covered_patches_hide_their_values() -> None:
    parameters = parameters_at_large()
    segment = image_segment(0, covered=(1, 4))
    altered = segment.content.copy()
    altered[[1, 4]] += 1.0
    hidden = encoder.encode(parameters, replace(segment, content=altered))
    np.testing.assert_array_equal(encoder.encode(parameters, segment), hidden)


def test_pooling_is_the_unit_mean_over_all_columns_of_a_bag() -> None:
    parameters = parameters_at_large()
    segments = [text_segment(b"ab", bag=1), image_segment(0), text_segment(b"", bag=1), text_segment(b"xyz", bag=3)]
    states = [encoder.encode(parameters, segment) for segment in segments]
    embeddings = encoder.pool(states, segments)
    together = np.concatenate([states[0], states[2]]).sum(axis=0)
    np.testing.assert_allclose(embeddings[1], together / np.linalg.norm(together))
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), [1, 1, 0, 1])


def test_pictures_are_cut_in_the_order_y_x_channel() -> None:
    pixels = np.arange(3 * 4 * 2, dtype=np.uint8).reshape(3, 4, 2) * 10
    patches = patches_of(pixels, 2)
    assert patches.grid == (2, 2)
    assert patches.whole.tolist() == [True, True, False, False]
    raw = np.round((patches.values + 1.0) * 127.5).astype(int)
    assert raw[1].tolist() == [40, 50, 60, 70, 120, 130, 140, 150]
    assert raw[2].tolist() == [160, 170, 180, 190, 160, 170, 180, 190]


def joint_batch(form: Form) -> step.Batch:
    """Text, images and a video in five bags, masks of every kind, relations with every class, two temperatures."""
    segments = [
        text_segment(b"anchor", bag=0, covered=np.array([1, 2, 4]), replacements=np.array([TEXT_MASK, 7, ord("o")])),
        image_segment(1, covered=(0, 3)),
        text_segment(b"", bag=2),
        text_segment("añ".encode(), bag=2, covered=np.array([0]), replacements=np.array([TEXT_MASK])),
        image_segment(3, seed=12),
        Segment("video", 4, np.random.default_rng(5).uniform(-1, 1, (8, 8)), (2, 2, 2), covered=np.array([1, 5])),
    ]
    relations = Relations(
        attract=((0, 1, 1.0), (0, 4, 2.0), (1, 0, 1.0), (2, 1, 1.0)), repel=((1, 4, 0.5),), ignore=((0, 5, 1.0),)
    )
    pairs = classify(5, to_bags(relations, [segment.bag for segment in segments]), ambient_weight=0.7)
    term = step.ContrastiveTerm(pairs=pairs, form=form, groups=(0, 1, 0, 0, 1), prefixes=(16, 64))
    return step.Batch(segments, contrastive=term, masked_weights={"text": 1.0, "image": 0.5, "video": 2.0})


@pytest.mark.parametrize("form", FORMS)
def test_step_finite_differences_by_every_parameter(form: Form) -> None:
    rng = np.random.default_rng(6)
    parameters, batch = parameters_at_large(groups=2), joint_batch(form)
    result = step.run(parameters, batch)
    assert set(result.gradients) == set(parameters)
    for name, value in parameters.items():
        direction = rng.normal(size=value.shape)

        def loss_at(x: Array, name: str = name) -> Array:
            return step.total_loss({**parameters, name: x}, batch)

        numeric = slope(loss_at, value, direction, size=1e-6)
        exact = float(np.sum(result.gradients[name] * direction))
        assert exact == pytest.approx(numeric, rel=1e-5, abs=1e-7), name
        assert bool(np.any(result.gradients[name])) == (name != BIAS or form == Form.SIGMOID), name


def test_step_adds_up_its_terms() -> None:
    parameters, batch = parameters_at_large(groups=2), joint_batch(Form.RANKED)
    result = step.run(parameters, batch)
    assert set(result.losses) == {"text", "image", "video", "contrastive"}
    terms = result.losses
    total = terms["contrastive"] + terms["text"] + 0.5 * terms["image"] + 2.0 * terms["video"]
    assert result.loss == pytest.approx(total)
    alone = step.run(parameters, replace(batch, masked_weights={}))
    assert alone.loss == pytest.approx(terms["contrastive"])
    assert not np.any(alone.gradients["image.head"])
    untaught = step.run(parameters, replace(batch, contrastive=None))
    assert untaught.loss == pytest.approx(result.loss - terms["contrastive"])
    assert not np.any(untaught.gradients[LOG_INVERSE_TEMPERATURE])


def test_byte_embeddings_learn_from_both_ends() -> None:
    parameters = parameters_at_large()
    segment = text_segment(b"q", covered=np.array([0]), replacements=np.array([TEXT_MASK]))
    table = step.run(parameters, step.Batch([segment], masked_weights={"text": 1.0})).gradients["text.table"]
    touched = np.flatnonzero(np.any(table != 0, axis=1))
    assert touched.tolist() == [*range(256), 256, TEXT_MASK]


def test_PKG_07_covered_columns_weigh_alike_whatever_their_item() -> None:
    parameters = parameters_at_large()
    long = text_segment(b"seven b", bag=0, covered=np.arange(7), replacements=np.full(7, TEXT_MASK))
    short = text_segment(b"ab", bag=1, covered=np.arange(2), replacements=np.full(2, TEXT_MASK))
    loss = {
        name: step.run(parameters, step.Batch(segments, masked_weights={"text": 1.0})).loss
        for name, segments in (("long", [long]), ("short", [replace(short, bag=0)]), ("both", [long, short]))
    }
    assert loss["both"] == pytest.approx((7 * loss["long"] + 2 * loss["short"]) / 9)


def test_OPT_01_schedule() -> None:
    schedule = Schedule(learning_rate=1.0, min_learning_rate=0.0, warmup_steps=10, steps=100)
    rates = [schedule.rate(at) for at in (5, 10, 40, 55, 100, 1000)]
    np.testing.assert_allclose(rates, [0.5, 1, 0.75, 0.5, 0, 0], atol=1e-15)
    floored = Schedule(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=0, steps=10)
    np.testing.assert_allclose([floored.rate(at) for at in (5, 10, 11)], [0.55, 0.1, 0.1])


def test_clip_holds_the_global_norm() -> None:
    gradients = {"a": np.array([[3.0]]), "b": np.array([4.0])}
    assert global_norm(gradients) == 5.0
    assert global_norm(clip(gradients, 1.0)) == pytest.approx(1.0)
    assert clip(gradients, 6.0)["a"] == 3.0


def test_first_update_by_hand() -> None:
    parameters = {"matrix": np.array([[2.0]]), "gain": np.array([2.0])}
    gradients = {"matrix": np.array([[0.3]]), "gain": np.array([0.4])}
    updated = AdamW().update(parameters, gradients, rate=0.1)
    assert updated["matrix"][0, 0] == pytest.approx(2.0 - 0.1 * (0.3 / (0.3 + 1e-6) + 0.01 * 2.0))
    assert updated["gain"][0] == pytest.approx(2.0 - 0.1 * 0.4 / (0.4 + 1e-6))


def test_second_update_by_hand() -> None:
    optimizer = AdamW(decay=0.0, max_norm=10.0)
    value = {"gain": np.array([0.0])}
    for gradient_value in (1.0, -2.0):
        value = optimizer.update(value, {"gain": np.array([gradient_value])}, rate=1.0)
    first = (0.9 * 0.1 - 0.1 * 2.0) / (1 - 0.9**2)
    second = (0.98 * 0.02 + 0.02 * 4.0) / (1 - 0.98**2)
    assert value["gain"][0] == pytest.approx(-1.0 / (1.0 + 1e-6) - first / (np.sqrt(second) + 1e-6))


def test_NUM_13_only_matrices_decay() -> None:
    parameters = initialize(np.random.default_rng(0), depth=1, hidden=64, inner=128, patch_values={"image": 12})
    still = {name: np.zeros_like(value) for name, value in parameters.items()}
    updated = AdamW(decay=0.1).update(parameters, still, rate=1.0)
    for name, value in parameters.items():
        np.testing.assert_allclose(updated[name], value * (0.9 if value.ndim == 2 else 1.0))


def test_NUM_01_temperature_stays_within_its_range_and_leaves_the_cap() -> None:
    optimizer = AdamW()
    parameters = {LOG_INVERSE_TEMPERATURE: np.array([np.log(1 / 0.07), 0.05])}
    for _ in range(200):
        parameters = optimizer.update(parameters, {LOG_INVERSE_TEMPERATURE: np.array([-0.5, 0.5])}, rate=0.1)
    np.testing.assert_allclose(parameters[LOG_INVERSE_TEMPERATURE], [4.605170, 0.0], atol=DIGITS)
    for _ in range(40):
        parameters = optimizer.update(parameters, {LOG_INVERSE_TEMPERATURE: np.array([0.5, -0.5])}, rate=0.1)
    assert parameters[LOG_INVERSE_TEMPERATURE][0] < 4.6
    assert parameters[LOG_INVERSE_TEMPERATURE][1] > 0.0


def test_initial_values() -> None:
    parameters = initialize(np.random.default_rng(0), depth=8, hidden=128, patch_values={"image": 48})
    assert depth_of(parameters) == 8
    assert np.std(parameters["blocks.3.up"]) == pytest.approx(0.02, rel=0.02)
    assert np.std(parameters["blocks.3.down"]) == pytest.approx(0.005, rel=0.02)
    assert parameters["blocks.0.qkv"].shape == (384, 128)
    assert parameters["image.head"].shape == (48, 128)
    np.testing.assert_array_equal(parameters["norm"], 1.0)
