"""IMG: image bytes, end to end: two pictures are seen alike where their embeddings are equal."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import uform
from tests.helpers.runs import make_trainer, picture, ram, spread
from uform import BatchShape, ImageShape, Modality, Objective

Image = pytest.importorskip("PIL.Image")
Vectors = npt.NDArray[np.float32]
COLUMNS = 200


@pytest.fixture(scope="module")
def trainer() -> uform.Trainer:
    made = make_trainer(
        objective=Objective.CONTRASTIVE,
        batch=BatchShape(
            max_rows_per_device=4, max_columns_per_row=COLUMNS, image=ImageShape(patch_side=4, channels=3)
        ),
    )
    spread(made)
    return made


@pytest.fixture(scope="module")
def model(trainer: uform.Trainer, tmp_path_factory: pytest.TempPathFactory) -> uform.Model:
    path = tmp_path_factory.mktemp("img") / "model.safetensors"
    trainer.save(path)
    return uform.Model.init_ram(ram(), path)


def embed(model: uform.Model, *images: Any) -> Vectors:
    """Each by itself, in the same place: what is seen alike embeds alike to the last bit."""
    return np.concatenate([embed_batch(model, image) for image in images])


def embed_batch(model: uform.Model, *images: Any) -> Vectors:
    return np.array(model.embed([Modality.IMAGE] * len(images), list(images)).numpy())


def encode(image: Any, form: str, **options: Any) -> bytes:
    memory = io.BytesIO()
    image.save(memory, form, **options)
    return memory.getvalue()


def pixels_of(data: bytes) -> npt.NDArray[np.uint8]:
    """What Pillow itself makes of a file that needs no care."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def png(width: int, height: int, *, bits: int, kind: int, rows: bytes, extra: bytes = b"") -> bytes:
    """A PNG written by hand: `rows` are the filtered scan lines."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + extra + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def test_IMG_01_orientation() -> None:
    """A 48 x 32 JPEG, top red and bottom blue, of orientation 6: seen 32 x 48, left blue, right red."""
    decode = uform.get_decoder(Modality.IMAGE)
    assert decode is not None
    data = oriented(6)
    seen = np.asarray(decode(0, data, {"patch_side": 4, "channels": 3}))
    assert seen.shape[:2] == (48, 32)
    assert seen[0, 0, 2] > 200 > 50 > seen[0, 0, 0]
    assert seen[0, -1, 0] > 200 > 50 > seen[0, -1, 2]


def two_halves() -> Any:
    image = Image.new("RGB", (48, 32), (255, 0, 0))
    image.paste((0, 0, 255), (0, 16, 48, 32))
    return image


def oriented(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(two_halves(), "JPEG", exif=exif, quality=95)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_IMG_01_embeds_as_the_turned_picture(model: uform.Model, orientation: int) -> None:
    plain = Image.open(io.BytesIO(encode(two_halves(), "JPEG", quality=95)))
    turns = {
        2: "FLIP_LEFT_RIGHT",
        3: "ROTATE_180",
        4: "FLIP_TOP_BOTTOM",
        5: "TRANSPOSE",
        6: "ROTATE_270",
        7: "TRANSVERSE",
        8: "ROTATE_90",
    }
    turned = plain if orientation == 1 else plain.transpose(getattr(Image.Transpose, turns[orientation]))
    vectors = embed(model, oriented(orientation), encode(turned, "PNG"))
    np.testing.assert_array_equal(vectors[0], vectors[1])
    if orientation == 6:
        assert np.linalg.norm(vectors[0] - embed(model, encode(plain, "PNG"))[0]) > 1e-3


@pytest.mark.parametrize("kind", [0, 2], ids=["grey", "colours"])
def test_IMG_03_sixteen_bits_keep_their_upper_byte(model: uform.Model, kind: int) -> None:
    values = [0, 128, 255, 256, 257, 32768, 65280, 65535]
    expected = np.array([0, 0, 0, 1, 1, 128, 255, 255], np.uint8)
    repeated = [value for value in values for _ in range(3 if kind == 2 else 1)]
    line = b"\0" + b"".join(struct.pack(">H", value) for value in repeated)
    data = png(8, 4, bits=16, kind=kind, rows=line * 4)
    vectors = embed(model, data, np.tile(expected, (4, 1)))
    np.testing.assert_array_equal(vectors[0], vectors[1])


def test_IMG_05_cyan_of_CMYK(model: uform.Model) -> None:
    decode = uform.get_decoder(Modality.IMAGE)
    assert decode is not None
    data = encode(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=95)
    seen = np.asarray(decode(0, data, {"patch_side": 4, "channels": 3}))
    np.testing.assert_allclose(seen[8, 8, :3], [0, 255, 255], atol=6)
    cyan = np.zeros((16, 16, 3), np.uint8) + np.array([0, 255, 255], np.uint8)
    red = np.zeros((16, 16, 3), np.uint8) + np.array([255, 0, 0], np.uint8)
    vectors = embed(model, data, cyan, red)
    assert vectors[0] @ vectors[1] > 0.99 > vectors[0] @ vectors[2]


def test_IMG_07_transparency_lies_over_white(model: uform.Model) -> None:
    pixels = np.indices((8, 8)).sum(axis=0, dtype=np.uint8) % 2
    palette = Image.fromarray(pixels, "P")
    palette.putpalette([0, 0, 0, 255, 255, 255] + [0] * 762)
    with_palette = encode(palette, "PNG", transparency=0)
    rgba = np.zeros((8, 8, 4), np.uint8)
    rgba[pixels == 1] = 255
    opaque_black = np.zeros((8, 8, 3), np.uint8)
    opaque_black[pixels == 1] = 255
    all_white = np.full((8, 8, 3), 255, np.uint8)
    vectors = embed(model, with_palette, encode(Image.fromarray(rgba), "PNG"), rgba, all_white, opaque_black)
    for seen in vectors[1:4]:
        np.testing.assert_array_equal(vectors[0], seen)
    assert np.linalg.norm(vectors[0] - vectors[4]) > 1e-3


def test_IMG_09_cut_file(trainer: uform.Trainer, model: uform.Model) -> None:
    good = [encode(Image.fromarray(picture(16, 16, seed=seed)), "JPEG") for seed in range(4)]
    batch = [*good]
    batch[2] = good[2][: len(good[2]) // 2]
    with pytest.raises(ValueError, match=r"contents\[2\]"):
        embed_batch(model, *batch)
    steps = trainer.describe()["step"]
    with pytest.raises(ValueError, match=r"contents\[2\]"):
        trainer.step([Modality.IMAGE] * 4, batch)
    assert trainer.describe()["step"] == steps
    np.testing.assert_allclose(embed_batch(model, *good), embed(model, *good), atol=1e-6)


def test_IMG_11_first_frame_of_an_animation(model: uform.Model) -> None:
    first, second = picture(16, 16, seed=1), picture(16, 16, seed=2)
    second[:12] = first[:12]
    frames = [Image.fromarray(frame).convert("P", palette=Image.Palette.ADAPTIVE) for frame in (first, second)]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=40)
    vectors = embed(model, data, pixels_of(data))
    np.testing.assert_array_equal(vectors[0], vectors[1])


def test_IMG_13_tiny_pictures(model: uform.Model) -> None:
    sizes = [(1, 1), (1, 7), (7, 1), (1, 3), (3, 1)]  # height, width
    strips = [np.arange(0, 210, 30, dtype=np.uint8)[: height * width] + 5 for height, width in sizes]
    files = [encode(Image.fromarray(strip.reshape(size)), "PNG") for strip, size in zip(strips, sizes, strict=True)]
    vectors = embed(model, *files)
    assert np.all(np.isfinite(vectors))
    assert np.linalg.norm(vectors[1] - vectors[2]) > 1e-3
    assert np.linalg.norm(vectors[3] - vectors[4]) > 1e-3
    as_arrays = embed(model, *(strip.reshape(size) for strip, size in zip(strips, sizes, strict=True)))
    np.testing.assert_array_equal(as_arrays, vectors)


def test_IMG_15_huge_picture_is_refused_by_name(model: uform.Model) -> None:
    """400 million pixels in a file of some kilobytes: refused before any is unpacked."""
    side = 20_000
    line = b"\0" + b"\0" * (side // 8)
    data = png(side, side, bits=1, kind=0, rows=line * side)
    assert len(data) < 100_000
    with pytest.raises(ValueError, match=r"contents\[1\]"):
        embed_batch(model, picture(4, 4), data)


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n", b"no picture at all", b"\xff\xd8\xff\xe0" + bytes(40)], ids=range(4)
)
def test_bytes_that_are_no_picture(model: uform.Model, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"contents\[0\]"):
        embed(model, data)


@pytest.mark.parametrize("form", ["PNG", "GIF", "WEBP", "PPM"])
def test_files_and_their_pixels(model: uform.Model, form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    data = encode(Image.fromarray(picture(12, 8, seed=9)), form, **options)
    vectors = embed(model, data, pixels_of(data), np.frombuffer(data, np.uint8), memoryview(data))
    for seen in vectors[1:]:
        np.testing.assert_array_equal(seen, vectors[0])


def test_grey_and_its_colours(model: uform.Model) -> None:
    grey = picture(8, 8, channels=1)
    vectors = embed(model, grey, grey[:, :, 0], np.repeat(grey, 3, axis=2))
    np.testing.assert_array_equal(vectors[1], vectors[0])
    np.testing.assert_array_equal(vectors[2], vectors[0])


def test_strided_pixels(model: uform.Model) -> None:
    wide = picture(16, 32, seed=3)
    views = [wide[::2, ::4], wide[::-1, ::-1], wide.transpose(1, 0, 2), wide[:, :, ::-1], np.asfortranarray(wide)]
    seen = embed(model, *views)
    np.testing.assert_array_equal(seen, embed(model, *(np.ascontiguousarray(view) for view in views)))


def test_a_picture_over_the_row_is_scaled_and_counted(trainer: uform.Trainer) -> None:
    stats = uform.TrainerStepStats()
    trainer.step([Modality.IMAGE] * 2, [picture(300, 150), picture(8, 8)], stats=stats)
    assert (stats.truncated, stats.dropped) == (1, 0)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 3), np.int8),
        np.zeros((4, 4, 5), np.uint8),
        np.zeros((4, 4, 0), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((2, 4, 4, 3), np.uint8),
        np.zeros((), np.uint8),
    ],
    ids=["float32", "int8", "5 channels", "0 channels", "no rows", "4 axes", "no axes"],
)
def test_other_arrays_are_refused(model: uform.Model, array: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"contents\[1\]"):
        embed_batch(model, picture(4, 4), array)
