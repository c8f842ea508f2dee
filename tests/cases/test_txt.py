"""TXT: text bytes. A column is a byte of UTF-8; nothing is normalised, and a cut falls where the row ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.runs import digest, make_trainer, ram, read_all, spread
from uform import BatchShape, Modality, Objective


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> uform.Model:
    return model_of(tmp_path_factory.mktemp("txt") / "model.safetensors")


def model_of(path: Path, *, columns: int = 64) -> uform.Model:
    trainer = make_trainer(
        objective=Objective.CONTRASTIVE, batch=BatchShape(max_rows_per_device=4, max_columns_per_row=columns)
    )
    spread(trainer)
    trainer.save(path)
    return uform.Model.init_ram(ram(), path)


def embed(model: uform.Model, *texts: Any) -> np.ndarray:
    return np.array(model.embed([Modality.TEXT] * len(texts), list(texts)).numpy())


def test_TXT_01_lone_surrogate(model: uform.Model) -> None:
    texts = ["good", "a\ud800b", "good as well", "and this"]
    trainer = make_trainer()
    before = digest(trainer)
    with pytest.raises(ValueError, match=r"contents\[1\]"):
        trainer.step([Modality.TEXT] * 4, texts)
    assert digest(trainer) == before
    with pytest.raises(ValueError, match=r"contents\[1\]"):
        embed(model, *texts)
    assert Call([texts[0], *texts[2:]]).step(trainer).stats.step == 1
    # A buffer's bytes are taken as they are, even those that no str encodes to.
    assert np.all(np.isfinite(embed(model, "a\ud800b".encode("utf-8", "surrogatepass"))))


def test_TXT_03_texts_do_not_end_at_a_zero_byte(model: uform.Model) -> None:
    vectors = embed(model, "a\0b", "a", "a\0")
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.linalg.norm(vectors[one] - vectors[other]) > 1e-3
    np.testing.assert_array_equal(embed(model, b"a\0b", b"a", b"a\0"), vectors)


def test_TXT_05_empty_text(model: uform.Model) -> None:
    alone, packed = embed(model, "")[0], embed(model, "before", "", "after")[1]
    assert np.linalg.norm(alone) == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(packed, alone, atol=1e-6)
    for attract in (((0, 1, 1.0),), ((1, 0, 1.0),)):
        trainer = make_trainer(objective=Objective.JOINT)
        stats = Call(["", "candidate", "another"], attract=attract).step(trainer).stats
        assert np.isfinite(stats.loss)
        assert all(np.all(np.isfinite(value)) for value in read_all(trainer, "gradient").values())


@pytest.mark.parametrize("cap", range(11))
def test_TXT_07_a_cap_cuts_bytes(cap: int, tmp_path: Path) -> None:
    """Documented: the cut falls at the row's end even within a character."""
    text = "añ漢😀"
    model = model_of(tmp_path / "model.safetensors", columns=1 + cap)
    cut = text.encode()[:cap]
    np.testing.assert_array_equal(embed(model, text), embed(model, cut))
    trainer = make_trainer(batch=BatchShape(max_rows_per_device=4, max_columns_per_row=1 + cap))
    stats = Call([text, cut]).step(trainer).stats
    assert stats.truncated == (cap < 10)
    assert stats.dropped == 0


def test_TXT_09_composed_and_decomposed_are_different_texts(model: uform.Model) -> None:
    composed, decomposed = bytes.fromhex("636166c3a9"), bytes.fromhex("63616665cc81")
    vectors = embed(model, composed, decomposed, composed.decode(), decomposed.decode())
    assert np.linalg.norm(vectors[0] - vectors[1]) > 1e-3
    np.testing.assert_allclose(vectors[2:], vectors[:2], atol=1e-6)
    trainer = make_trainer(
        objective=Objective.CONTRASTIVE, batch=BatchShape(max_rows_per_device=4, max_columns_per_row=64)
    )
    spread(trainer)
    np.testing.assert_allclose(Call([composed, decomposed]).step(trainer).embeddings, vectors[:2], atol=1e-6)


def test_every_way_to_give_texts_reads_the_same(model: uform.Model) -> None:
    texts = ["zero", "", "naïve 漢字 😀", "a\0b"]
    encoded = [text.encode() for text in texts]
    data = b"".join(encoded)
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.uint64)
    expected = embed(model, *texts)
    strided = [np.repeat(np.frombuffer(one, np.uint8), 2)[::2] for one in encoded]
    given: list[Any] = [
        texts,
        encoded,
        [memoryview(one) for one in encoded],
        [bytearray(one) for one in encoded],
        [np.frombuffer(one, np.uint8) for one in encoded],
        strided,
        (data, offsets),
        (np.frombuffer(data, np.uint8), offsets.astype(np.int64)),
        (bytearray(data), list(map(int, offsets))),
    ]
    pyarrow = pytest.importorskip("pyarrow")
    given += [pyarrow.array(texts), pyarrow.array(encoded, pyarrow.large_binary()), pyarrow.array(["x", *texts])[1:]]
    for contents in given:
        answered = model.embed([Modality.TEXT] * 4, contents)
        np.testing.assert_array_equal(answered.numpy(), expected)
