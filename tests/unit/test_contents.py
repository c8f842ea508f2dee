"""What a call's items may be given as: every form embeds the same, and what is wrong is refused by its item."""

from __future__ import annotations

import array
import gc
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import uform

TEXTS = ["", "plain", "añ漢😀", "a\0b", "a", "a\0"]
ENCODED = [text.encode() for text in TEXTS]
TEXT, IMAGE, VIDEO, AUDIO = uform.Modality
TWO_TEXTS = [TEXT, TEXT]


class Tape(bytes):
    """A buffer that knows where its texts begin."""

    offsets: Any


class Exotic:
    """An array that is only found through `__array__`, as a tensor of PyTorch is."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._values


def tape_of(texts: list[bytes], offset_type: Any = np.uint64) -> tuple[bytes, Any]:
    return b"".join(texts), np.cumsum([0, *map(len, texts)]).astype(offset_type)


@pytest.fixture(scope="module")
def executor() -> uform.Executor:
    return uform.Executor.for_ram(threads=1)


@pytest.fixture(scope="module")
def trainer(executor: uform.Executor) -> uform.Trainer:
    return uform.Trainer.init_ram(
        executor,
        depth=1,
        hidden=64,
        batch=uform.BatchShape(max_rows_per_device=8, max_columns_per_row=64, image=(4, 3)),
        objective=uform.Objective.CONTRASTIVE,
        schedule=uform.Schedule(learning_rate=-1),
        seed=3,
    )


@pytest.fixture(scope="module")
def model(executor: uform.Executor, trainer: uform.Trainer, tmp_path_factory: pytest.TempPathFactory) -> uform.Model:
    path = tmp_path_factory.mktemp("contents") / "checkpoint.safetensors"
    trainer.save(path)
    return uform.Model.init_ram(executor, path)


@pytest.fixture(scope="module")
def expected(model: uform.Model) -> Any:
    return embed(model, TEXTS)


@pytest.fixture
def decoder() -> Iterator[Callable[[Any], None]]:
    before = uform.get_decoder(IMAGE)
    yield lambda decode: uform.set_decoder(IMAGE, decode)
    uform.set_decoder(IMAGE, before)


def embed(model: uform.Model, contents: Any, modalities: Any = None, **options: Any) -> Any:
    if modalities is None:
        modalities = bytes(len(TEXTS))
    return model.embed(modalities, contents, **options).numpy()


@pytest.mark.parametrize(
    "contents",
    [
        TEXTS,
        np.array(TEXTS, dtype=object),
        [bytes(text) for text in ENCODED],
        [bytearray(text) for text in ENCODED],
        [memoryview(text) for text in ENCODED],
        [np.frombuffer(text, np.uint8) for text in ENCODED],
        [array.array("B", text) for text in ENCODED],
        [Exotic(np.frombuffer(text, np.uint8)) for text in ENCODED],
        [np.repeat(np.frombuffer(text, np.uint8), 2)[::2] for text in ENCODED],
        [np.repeat(np.frombuffer(text, np.uint8), 2)[::-2][::-1] for text in ENCODED],
        tape_of(ENCODED),
        tape_of(ENCODED, np.int64),
        tape_of(ENCODED, np.int32),
        (tape_of(ENCODED)[0], tape_of(ENCODED)[1].tolist()),
        (memoryview(tape_of(ENCODED)[0]), tape_of(ENCODED)[1]),
        (np.frombuffer(tape_of(ENCODED)[0], np.uint8), tape_of(ENCODED)[1]),
        pyarrow.array(TEXTS),
        pyarrow.array(TEXTS, pyarrow.large_string()),
        pyarrow.array(ENCODED, pyarrow.binary()),
        pyarrow.array(ENCODED, pyarrow.large_binary()),
        pyarrow.array(["before", *TEXTS, "after"])[1:-1],
        pyarrow.array(["before", *TEXTS, None], pyarrow.large_string())[1:-1],
        pyarrow.chunked_array([TEXTS[:2], TEXTS[2:]]),
    ],
)
def test_texts_in_every_form_are_the_same(model: uform.Model, expected: Any, contents: Any) -> None:
    assert np.array_equal(embed(model, contents), expected)


def test_a_buffer_with_offsets_is_a_tape(model: uform.Model, expected: Any) -> None:
    tape = Tape(tape_of(ENCODED)[0])
    tape.offsets = tape_of(ENCODED)[1]
    assert np.array_equal(embed(model, tape), expected)


def test_a_tape_may_begin_and_end_within_its_data(model: uform.Model, expected: Any) -> None:
    data, offsets = tape_of(ENCODED)
    assert np.array_equal(embed(model, (b"xyz" + data + b"xyz", offsets + np.uint64(3))), expected)


def test_TXT_03_a_nul_cuts_no_text(expected: Any) -> None:
    assert not np.allclose(expected[3], expected[4])
    assert not np.allclose(expected[4], expected[5])


def test_texts_of_no_items(model: uform.Model) -> None:
    forms: list[Any] = [[], (b"", np.zeros(1, np.uint64)), (b"", [0]), pyarrow.array([], pyarrow.string())]
    for contents in forms:
        assert embed(model, contents, []).shape == (0, 64)


def test_TXT_01_a_lone_surrogate_is_refused_by_its_item(model: uform.Model) -> None:
    with pytest.raises(ValueError, match=r"contents\[1\] is no text: .*surrogates"):
        embed(model, ["good", "a\ud800b", "good", "good"], bytes(4))


HINT = r"a tuple is a tape \(data, offsets\): a sequence of texts is a list"


@pytest.mark.parametrize(
    ("contents", "error", "message"),
    [
        (["a", 1], TypeError, r"contents\[1\] is of type int: expected a text"),
        (["a", None], TypeError, r"contents\[1\] is of type NoneType"),
        (["a", np.zeros(2, np.float32)], TypeError, r"contents\[1\] holds items of format 'f': expected bytes"),
        (["a", np.zeros((2, 2), np.uint8)], ValueError, r"contents\[1\] has 2 axes: expected 1"),
        ("ab", TypeError, "contents is one str: expected a list of texts"),
        (b"ab", TypeError, "contents is one bytes"),
        (3, TypeError, "contents is of type int"),
        (("ab", [0, 1, 2]), TypeError, r"contents\.data is of type str: expected a buffer of bytes"),
        (("a", "b", "c"), ValueError, "contents is a tuple of 3: a tuple is a tape"),
        (("a", "b"), TypeError, rf"contents\.data is of type str: expected a buffer of bytes; {HINT}"),
        ((b"a", b"b"), TypeError, rf"contents\.offsets is of type bytes: expected numbers; {HINT}"),
        ((b"ab", "b"), TypeError, HINT),
        ((np.zeros((4, 4), np.uint8),) * 2, ValueError, HINT),
        ((b"ab", [0, 1.5, 2]), TypeError, r"contents\.offsets\[1\] is 1\.5: expected an int"),
        ((b"ab", [0, -1, 2]), ValueError, r"contents\.offsets\[1\] is -1"),
        ((b"ab", np.array([0, -1, 2])), ValueError, r"contents\.offsets\[1\] is -1: expected an int between 0 and"),
        ((b"ab", np.array([0.0, 1, 2])), TypeError, r"contents\.offsets holds items of format 'd'"),
        ((b"ab", np.zeros((3, 1), np.uint64)), ValueError, r"contents\.offsets has 2 axes"),
        ((b"ab", []), ValueError, r"contents\.offsets has no entries"),
        ((b"ab", [0, 2, 1]), ValueError, r"contents\.offsets\[2\]: 1 is below 2"),
        ((b"ab", [0, 1, 2**63]), ValueError, r"contents\.offsets\[2\]: 9223372036854775808 is past the tape's 2 bytes"),
        ((np.zeros(2, np.float32), [0, 1, 2]), TypeError, r"contents\.data holds items of format 'f'"),
        ((b"ab", None), TypeError, r"contents\.offsets is of type NoneType"),
        (pyarrow.array(["a", None]), ValueError, r"contents\[1\] is null"),
        (pyarrow.array([b"x", None, b"a"])[1:], ValueError, r"contents\[0\] is null"),
        (pyarrow.array([1, 2]), TypeError, "contents is an Arrow array of format 'l'"),
        (pyarrow.array(["a", "a"]).dictionary_encode(), TypeError, "contents is an Arrow array of format"),
    ],
)
def test_wrong_texts_are_refused(model: uform.Model, contents: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        embed(model, contents, bytes(2))


@pytest.mark.parametrize(
    ("modalities", "error", "message"),
    [
        ([0, 4], ValueError, r"modalities\[1\] is 4: expected one of TEXT=0, IMAGE=1, VIDEO=2, AUDIO=3"),
        ([0, -1], ValueError, r"modalities\[1\] is -1"),
        ([0, 2**70], ValueError, r"modalities\[1\] is 1180591620717411303424"),
        ([0, 0.0], TypeError, r"modalities\[1\] is 0\.0: expected a Modality, not float"),
        ([0, False], TypeError, r"modalities\[1\] is False: expected a Modality, not bool"),
        (np.array([0, 300]), ValueError, r"modalities\[1\] is 300"),
        (np.array([0, 1.0]), TypeError, "modalities holds items of format 'd'"),
        (["text", "text"], TypeError, r"modalities\[0\] is 'text'"),
        ("00", TypeError, "modalities is of type str: expected a sequence of Modality"),
        (0, TypeError, "modalities is of type int"),
        ([0], ValueError, "modalities has 1 entries: expected 2, one a content"),
        ([0, 2], ValueError, r"modalities\[1\] is VIDEO: the run's batch shape leaves that modality out"),
    ],
)
def test_wrong_modalities_are_refused(
    model: uform.Model, modalities: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        embed(model, ["a", b"b"], modalities)


@pytest.mark.parametrize("modalities", [[TEXT] * 6, bytes(6), np.zeros(6, np.uint8), np.zeros(6, np.int64), (0,) * 6])
def test_modalities_in_every_form(model: uform.Model, expected: Any, modalities: Any) -> None:
    assert np.array_equal(embed(model, TEXTS, modalities), expected)


@pytest.mark.parametrize(
    "bags",
    [[7, 8, 7, 9, 8, 4_294_967_295], np.array([7, 8, 7, 9, 8, 1], np.uint32), np.array([7, 8, 7, 9, 8, 1], np.int16)],
)
def test_bags_pool_items_with_equal_words(model: uform.Model, expected: Any, bags: Any) -> None:
    pooled = embed(model, TEXTS, bags=bags)
    assert pooled.shape == (4, 64)
    assert np.allclose(pooled[2], expected[3], atol=1e-6)
    assert not np.allclose(pooled[0], expected[0], atol=1e-3)


@pytest.mark.parametrize(
    ("bags", "error", "message"),
    [
        ([0, 1, 2, 3, 4], ValueError, "bags has 5 entries: expected 6"),
        ([0, 1, 2, 3, 4, -5], ValueError, r"bags\[5\] is -5: expected an int between 0 and 4294967295"),
        ([0, 1, 2, 3, 4, 2**32], ValueError, r"bags\[5\] is 4294967296"),
        (np.array([0, 1, 2, 3, 2**32, 5]), ValueError, r"bags\[4\] is 4294967296"),
        (np.arange(6.0), TypeError, "bags holds items of format 'd': expected a sequence of int or a buffer of uint32"),
        (np.arange(6, dtype=">u4"), TypeError, "bags holds items of format '>I'"),
        (np.arange(12, dtype=np.uint32).reshape(6, 2), ValueError, "bags has 2 axes: expected 1"),
        ([0, 1, 2, 3, 4, "5"], TypeError, r"bags\[5\] is '5'"),
        (5, TypeError, "bags is of type int"),
    ],
)
def test_wrong_bags_are_refused(model: uform.Model, bags: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        embed(model, TEXTS, bags=bags)


def pictures() -> Any:
    return np.random.default_rng(5).integers(0, 256, (12, 8, 3), dtype=np.uint8)


def test_images_of_any_strides_are_the_same(model: uform.Model) -> None:
    image = pictures()
    wide = np.zeros((12, 16, 4), np.uint8)
    wide[:, ::2, :3] = image
    forms = [image, np.asfortranarray(image), wide[:, ::2, :3], image[::-1][::-1], memoryview(image), Exotic(image)]
    answers = [embed(model, [form], [IMAGE]) for form in forms]
    assert all(np.array_equal(answer, answers[0]) for answer in answers)
    assert not np.array_equal(embed(model, [image[::-1]], [IMAGE]), answers[0])


def test_a_batch_of_images_is_a_sequence_of_them(model: uform.Model) -> None:
    image = pictures()
    batch = np.stack([image, image[::-1]])
    assert np.array_equal(embed(model, batch, [IMAGE] * 2), embed(model, [image, image[::-1]], [IMAGE] * 2))


def test_modalities_mix(model: uform.Model, expected: Any) -> None:
    image = pictures()
    mixed = embed(model, ["plain", image, TEXTS[2]], [TEXT, IMAGE, TEXT])
    assert np.allclose(mixed[[0, 2]], expected[[1, 2]], atol=1e-6)
    assert np.allclose(mixed[1], embed(model, [image], [IMAGE])[0], atol=1e-6)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (
            np.zeros((4, 4, 3), np.float32),
            ValueError,
            r"contents\[1\] has format 'f' and extents \[4, 4, 3\]: expected uint8",
        ),
        (np.zeros((4, 4, 3), np.int8), ValueError, r"contents\[1\] has format 'b'"),
        (np.zeros((4, 4, 3), bool), ValueError, r"contents\[1\] has format '\?'"),
        (np.zeros((1, 4, 4, 3), np.uint8), ValueError, r"contents\[1\] has format 'B' and extents \[1, 4, 4, 3\]"),
        (np.zeros((), np.uint8), ValueError, r"contents\[1\] has format 'B' and extents \[\]"),
        ("picture.png", TypeError, r"contents\[1\] is of type str: expected uint8 \[height, width\]"),
        (None, TypeError, r"contents\[1\] is of type NoneType"),
        (np.zeros((4, 4), dtype=object), ValueError, r"contents\[1\] has format 'O'"),
    ],
)
def test_wrong_images_are_refused(model: uform.Model, image: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        embed(model, [pictures(), image], [IMAGE, IMAGE])


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_encoded_images_are_decoded(model: uform.Model, decoder: Any, form: Callable[[bytes], Any]) -> None:
    image, seen = pictures(), []

    def decode(item: int, encoded: Any, shape: Mapping[str, int]) -> Any:
        seen.append((item, bytes(encoded), shape["patch_side"], shape["channels"]))
        return image

    decoder(decode)
    answer = embed(model, ["a", form(b"encoded")], [TEXT, IMAGE])
    assert seen == [(1, b"encoded", 4, 3)]
    assert np.array_equal(answer, embed(model, ["a", image], [TEXT, IMAGE]))


def test_encoded_images_on_a_tape_are_decoded(model: uform.Model, decoder: Any) -> None:
    image = pictures()
    decoder(lambda item, encoded, shape: image if bytes(encoded) == b"picture" else None)
    answer = embed(model, tape_of([b"text", b"picture"]), [TEXT, IMAGE])
    assert np.array_equal(answer, embed(model, ["text", image], [TEXT, IMAGE]))
    with pytest.raises(ValueError, match=r"contents\.offsets\[2\] is 9: the tape has 4 bytes"):
        embed(model, (b"text", [0, 4, 9]), [TEXT, IMAGE])
    with pytest.raises(ValueError, match=r"contents\.offsets\[2\] is 1: expected at least 4"):
        embed(model, (b"text", [0, 4, 1]), [TEXT, IMAGE])


def test_what_a_decoder_raises_names_the_item(model: uform.Model, decoder: Any) -> None:
    def decode(item: int, encoded: Any, shape: Mapping[str, int]) -> Any:
        raise OSError("truncated file")

    decoder(decode)
    with pytest.raises(ValueError, match=r"contents\[1\] does not decode as image: truncated file") as caught:
        embed(model, ["a", b"encoded"], [TEXT, IMAGE])
    assert isinstance(caught.value.__cause__, OSError)
    decoder(lambda item, encoded, shape: np.zeros((2, 2), np.float64))
    with pytest.raises(ValueError, match=r"contents\[1\] has format 'd'"):
        embed(model, ["a", b"encoded"], [TEXT, IMAGE])
    decoder(None)
    with pytest.raises(ValueError, match=r"contents\[1\] is encoded, and nothing here decodes image"):
        embed(model, ["a", b"encoded"], [TEXT, IMAGE])
    with pytest.raises(TypeError, match="decoder is of type int: expected a callable or None"):
        decoder(3)


def test_relations_are_checked_when_they_are_made() -> None:
    offsets, ids = np.array([0, 1], np.uint64), np.array([0], np.uint32)
    with pytest.raises(ValueError, match=r"Edges\.offsets is None: expected, since Edges\.ids is given"):
        uform.Edges(ids=ids)
    with pytest.raises(ValueError, match=r"Edges\.ids is None: expected, since Edges\.offsets is given"):
        uform.Edges(offsets=offsets)
    with pytest.raises(ValueError, match=r"Edges\.ids is None: expected, since Edges\.weights is given"):
        uform.Edges(weights=[1.0])
    with pytest.raises(TypeError, match=r"Edges\.ids holds items of format 'f'"):
        uform.Edges(offsets=offsets, ids=ids.astype(np.float32))
    with pytest.raises(TypeError, match=r"Edges\.weights holds items of format '\?': expected .*float32"):
        uform.Edges(offsets=offsets, ids=ids, weights=ids == 0)
    with pytest.raises(TypeError, match=r"Edges\.weights\[0\] is True"):
        uform.Edges(offsets=offsets, ids=ids, weights=[True])
    with pytest.raises(ValueError, match=r"Relations\.ignore\.weights is given"):
        uform.Relations(ignore=(offsets, ids, np.ones(1, np.float32)))
    with pytest.raises(TypeError, match=r"Relations\.attract is of type list: expected Edges or a tuple"):
        uform.Relations(attract=[offsets, ids])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Relations\.repel has 4 fields: Edges have 3"):
        uform.Relations(repel=(offsets, ids, None, None))


def test_edges_answer_what_they_were_given() -> None:
    offsets, ids, weights = np.array([0, 1], np.uint64), [0], np.ones(1)
    relations = uform.Relations(attract=(offsets, ids, weights), repel=uform.Edges(offsets=offsets, ids=ids))
    assert relations.attract is not None
    assert relations.attract.offsets is offsets
    assert relations.attract.ids is ids
    assert relations.attract.weights is weights
    assert relations.repel is not None
    assert relations.repel.weights is None
    assert relations.ignore is None
    assert repr(relations.repel).startswith("Edges(offsets=array(")


def test_edges_compare_by_their_numbers() -> None:
    given: list[Any] = [
        ([0, 1], [0], [0.5]),
        (np.array([0, 1], np.uint64), np.array([0], np.uint32), np.array([0.5], np.float32)),
        (range(2), (0,), np.array([0.5])),
    ]
    made = [uform.Edges(offsets=offsets, ids=ids, weights=weights) for offsets, ids, weights in given]
    assert made[0] == made[1] == made[2]
    assert pickle.loads(pickle.dumps(made[1])) == made[1]
    assert uform.Relations(attract=made[0]) == uform.Relations(attract=given[1])
    assert uform.Relations(attract=made[0]) != uform.Relations(repel=made[0])
    for offsets, ids, weights in (
        ([0, 2], [0, 0], None),
        ([0, 1], [1], [0.5]),
        ([0, 1], [0], [0.25]),
        (*given[0][:2], None),
    ):
        assert made[0] != uform.Edges(offsets=offsets, ids=ids, weights=weights)
    assert made[0] != uform.Edges()
    assert uform.Edges() == uform.Edges()
    assert made[0] != given[0]
    for unhashable in (made[0], uform.Relations()):
        with pytest.raises(TypeError, match="unhashable"):
            hash(unhashable)


def edge_loss(trainer: uform.Trainer, edges: Any) -> float:
    stats = uform.TrainerStepStats()
    trainer.step([TEXT] * 4, ["cat", "dog", "cats", "dogs"], relations=uform.Relations(attract=edges), stats=stats)
    return stats.contrastive_loss


def test_edges_of_any_integers_are_the_same(trainer: uform.Trainer) -> None:
    offsets, ids, weights = [0, 1, 2, 3, 4], [2, 3, 0, 1], [1.0, 0.5, 1.0, 2.0]
    expected = edge_loss(
        trainer, (np.array(offsets, np.uint64), np.array(ids, np.uint32), np.array(weights, np.float32))
    )
    assert expected > 0
    for kind in (np.int64, np.int32, np.uint16, np.int8):
        assert edge_loss(trainer, (np.array(offsets, kind), np.array(ids, kind), np.array(weights))) == expected
    assert edge_loss(trainer, (offsets, ids, weights)) == expected
    assert (
        edge_loss(trainer, (Exotic(np.array(offsets)), np.repeat(np.array(ids, np.uint32), 2)[::2], weights))
        == expected
    )


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (([0, 1, 2, 3], [2, 3, 0]), r"relations\.attract\.offsets has 4 entries, expected 5"),
        (([0, 1, 2, 3, 5], [2, 3, 0, 1]), r"relations\.attract\.offsets\[4\] is 5, expected 4"),
        (([0, 2, 1, 3, 4], [2, 3, 0, 1]), r"relations\.attract\.offsets\[2\] is 1, less than the 2 before it"),
        (([1, 1, 2, 3, 4], [2, 3, 0, 1]), r"relations\.attract\.offsets\[0\] is 1, expected 0"),
        (([0, 1, 2, 3, 2**63], [2, 3, 0, 1]), r"relations\.attract\.offsets\[4\] is 9223372036854775808"),
        (([0, 1, 2, 3, 4], [2, 3, 0, 4]), r"relations\.attract\.ids\[3\] is 4"),
        (([0, 1, 2, 3, 4], [2, 3, 0, 1], [1, 1, 1, np.nan]), r"relations\.attract\.weights\[3\] is nan"),
        (([0, 1, 2, 3, 4], [2, 3, 0, 1], [1, 1, 1, -1]), r"relations\.attract\.weights\[3\] is -1"),
        (([0, 1, 2, 3, 4], [2, 3, 0, 1], [1, 1, 1, 1e300]), r"Relations\.attract\.weights\[3\] is 1e\+300"),
        (([0, 1, 2, 3, 4], [2, 3, 0, 1], [1, 1, 1]), r"relations\.attract\.weights has 3 entries, expected 4"),
        (([], []), r"relations\.attract\.offsets has 0 entries, expected 5"),
    ],
)
def test_wrong_edges_are_refused_before_any_work(trainer: uform.Trainer, edges: Any, message: str) -> None:
    before = trainer.describe()["step"]
    with pytest.raises(ValueError, match=message):
        edge_loss(trainer, edges)
    assert trainer.describe()["step"] == before


def test_groups_and_sides_are_checked(trainer: uform.Trainer) -> None:
    with pytest.raises(ValueError, match="temperature_groups has 1 entries: expected 2"):
        trainer.step(TWO_TEXTS, ["a", "b"], temperature_groups=[0])
    with pytest.raises(ValueError, match="temperature_groups: item 1 has group 1"):
        trainer.step(TWO_TEXTS, ["a", "b"], temperature_groups=[0, 1])
    with pytest.raises(ValueError, match=r"sides\[1\] is 4: expected one of NONE=0, QUERY=1, DOCUMENT=2"):
        trainer.step(TWO_TEXTS, ["a", "b"], sides=[0, 4])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="relations is of type dict: expected Relations, or None"):
        trainer.step(TWO_TEXTS, ["a", "b"], relations={})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stats is of type dict"):
        trainer.step(TWO_TEXTS, ["a", "b"], stats={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choices", "targets", "error", "message"),
    [
        (["yes", "no"], None, ValueError, "choices"),
        ([["yes"], ["no"]], [[1.0], []], ValueError, "choices"),
        (None, [[1.0], []], ValueError, "choice_targets are given without choices"),
        ([["yes"], "no"], None, TypeError, r"choices\[1\] is a text among lists"),
        ([["yes"]], None, ValueError, "choices has 1 entries: expected 2, the choices of each content"),
        ([["yes"], 3], None, TypeError, r"choices\[1\] is of type int"),
        (["yes", "\ud800"], None, ValueError, r"choices\[1\] is no text"),
        ([["a"], ["b", "\ud800"]], None, ValueError, r"choices\[1\]\[1\] is no text"),
        (["yes"], [[1.0]], ValueError, "choice_targets has 1 rows: expected 2, one a content"),
        (["yes"], ([1.0], [0, 1]), ValueError, r"choice_targets\.offsets has 2 entries: expected 3"),
        (["yes"], [["x"], []], TypeError, r"choice_targets\[0\]\[0\] is 'x'"),
    ],
)
def test_choices_are_read_and_refused_where_the_run_has_no_room(
    trainer: uform.Trainer, choices: Any, targets: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        trainer.step(TWO_TEXTS, ["a", "b"], choices=choices, choice_targets=targets)


def test_buffers_are_borrowed_for_the_step_alone(trainer: uform.Trainer) -> None:
    text, bags, ids = bytearray(b"text"), array.array("I", [1, 2]), array.array("I", [1])
    edges = (np.array([0, 1, 1], np.uint64), ids)
    trainer.step(TWO_TEXTS, [text, "other"], bags=bags, relations=uform.Relations(attract=edges))
    text.append(0)  # a bytearray or an array whose buffer is out cannot be resized
    bags.append(3)
    ids.append(0)
    with pytest.raises(ValueError, match=r"contents\[1\]"):
        trainer.step(TWO_TEXTS, [text, "\ud800"], bags=bags[:2])
    text.append(0)


def test_nothing_is_leaked(trainer: uform.Trainer, model: uform.Model) -> None:
    image, text = pictures(), np.frombuffer(b"some text", np.uint8)
    bags, ids = np.zeros(2, np.uint32), np.array([1], np.uint32)
    relations = uform.Relations(attract=(np.array([0, 1, 1], np.uint64), ids))
    watched = [image, text, bags, ids, relations]
    arrow = pyarrow.array(["a", "b"])

    def work() -> None:
        for _ in range(3):
            trainer.step([IMAGE, TEXT], [image, text], bags=bags, relations=relations, arena=uform.Arena.for_ram())
            embed(model, arrow, bytes(2))
            with pytest.raises(ValueError, match="modalities"):
                trainer.step([IMAGE, 9], [image, text], bags=bags, relations=relations)  # type: ignore[list-item]
        gc.collect()

    work()
    before, allocated = [sys.getrefcount(one) for one in watched], pyarrow.total_allocated_bytes()
    work()
    assert [sys.getrefcount(one) for one in watched] == before
    assert pyarrow.total_allocated_bytes() == allocated


def test_first_party_images_are_decoded_when_needed(model: uform.Model, tmp_path: Path) -> None:
    pytest.importorskip("uform_plugins", reason="the package is not installed")
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "picture.png"
    image.fromarray(pictures()).save(path)
    assert np.array_equal(embed(model, [path.read_bytes()], [IMAGE]), embed(model, [pictures()], [IMAGE]))
    with pytest.raises(ValueError, match=r"contents\[0\] does not decode as image"):
        embed(model, [b"no picture"], [IMAGE])


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
def test_what_a_sequence_raises_where_it_is_looked_at_comes_out(trainer: uform.Trainer, raised: type) -> None:
    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise raised("unbound")

        def __len__(self) -> int:
            return 1

        def __getitem__(self, place: int) -> str:
            return "a"

    with pytest.raises(raised, match="unbound"):
        trainer.step([uform.Modality.TEXT], Proxy())  # type: ignore[arg-type]
