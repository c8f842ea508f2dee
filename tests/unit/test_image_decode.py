"""Encoded pictures as pixels: what `uform_plugins.modalities.image.decode` answers and refuses, without a trainer."""

from __future__ import annotations

import importlib
import io
import random
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import ExifTags, Image, ImageFile, ImageOps

from plugins.modalities.image.decode import MAX_PIXELS, decode


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    memory = io.BytesIO()
    image.save(memory, form, **options)
    return memory.getvalue()


def png(
    width: int, height: int, *, bits: int, kind: int, rows: bytes, extra: bytes = b"", compress: bool = True
) -> bytes:
    """A PNG written by hand: `rows` are the filtered scan lines, `kind` is the colour type."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + extra
        + chunk(b"IDAT", zlib.compress(rows) if compress else rows)
        + chunk(b"IEND", b"")
    )


def transparent(*values: int) -> bytes:
    body = struct.pack(f">{len(values)}H", *values)
    return struct.pack(">I", len(body)) + b"tRNS" + body + struct.pack(">I", zlib.crc32(b"tRNS" + body))


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (height, width, channels), dtype=np.uint8)


def photo() -> Image.Image:
    """A smooth picture that no two turns leave alike."""
    rows, columns = np.mgrid[0:64, 0:96]
    return Image.fromarray(np.stack([rows * 4, columns * 2, rows + columns], axis=-1).astype(np.uint8))


LOSSLESS = [("PNG", {}), ("WEBP", {"lossless": True}), ("PPM", {})]
WHOLE = {
    "PNG": lambda: encode(photo(), "PNG"),
    "JPEG": lambda: encode(photo(), "JPEG", quality=90),
    "progressive JPEG": lambda: encode(photo(), "JPEG", progressive=True),
    "WebP": lambda: encode(photo(), "WEBP"),
    "GIF": lambda: encode(photo(), "GIF"),
    "netpbm": lambda: encode(photo(), "PPM"),
    "plain netpbm": lambda: b"P3\n8 8\n255\n" + b"1 2 3\n" * 64,
}


@pytest.mark.parametrize(("form", "options"), LOSSLESS)
@pytest.mark.parametrize("size", [(1, 1), (7, 1), (1, 7), (31, 17)])
def test_lossless_files_give_their_pixels(form: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    pixels = noise(*size)
    decoded = decode(encode(Image.fromarray(pixels), form, **options))
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, pixels)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_buffer_is_taken(wrap: Callable[[bytes], Any]) -> None:
    data = encode(photo(), "PNG")
    np.testing.assert_array_equal(decode(wrap(data)), np.asarray(photo()))
    spread = np.zeros((len(data), 2), np.uint8)
    spread[:, 0] = np.frombuffer(data, np.uint8)
    np.testing.assert_array_equal(decode(spread[:, 0]), np.asarray(photo()))


def test_what_is_no_buffer_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        decode("a path")
    with pytest.raises(TypeError):
        decode(5)


def test_grey_and_bits_keep_one_channel() -> None:
    grey = noise(5, 9, 1)
    np.testing.assert_array_equal(decode(encode(Image.fromarray(grey[:, :, 0]), "PNG")), grey)
    bits = Image.fromarray(grey[:, :, 0] > 127)
    expected = np.where(grey > 127, 255, 0)
    np.testing.assert_array_equal(decode(encode(bits, "PNG")), expected)
    np.testing.assert_array_equal(decode(encode(bits, "PPM")), expected)


def test_IMG_01_orientation_6() -> None:
    image = Image.new("RGB", (48, 32), (255, 0, 0))
    image.paste((0, 0, 255), (0, 16, 48, 32))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    seen = decode(encode(image, "JPEG", exif=exif, quality=95)).astype(int)
    assert seen.shape == (48, 32, 3)
    assert np.abs(seen[:, :12] - (0, 0, 255)).max() < 12
    assert np.abs(seen[:, -12:] - (255, 0, 0)).max() < 12


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_IMG_01_every_orientation(form: str, orientation: int) -> None:
    """As Pillow turns it; values that EXIF does not define leave it as it is stored."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    data = encode(photo(), form, exif=exif)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode(data), np.asarray(turned))


def test_broken_EXIF_leaves_the_picture_as_stored() -> None:
    for exif in (b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff", b""):
        data = encode(photo(), "PNG", exif=exif or None)
        np.testing.assert_array_equal(decode(data), np.asarray(photo()))


VALUES = [0, 128, 255, 256, 257, 32768, 65280, 65535]
UPPER = [0, 0, 0, 1, 1, 128, 255, 255]


def test_IMG_03_sixteen_bit_grey() -> None:
    line = b"\0" + struct.pack(">8H", *VALUES)
    assert decode(png(8, 1, bits=16, kind=0, rows=line))[0, :, 0].tolist() == UPPER
    netpbm = b"P5 8 1 65535\n" + struct.pack(">8H", *VALUES)
    assert decode(netpbm)[0, :, 0].tolist() == UPPER


def test_IMG_03_sixteen_bit_colours_and_alpha() -> None:
    colours = b"\0" + struct.pack(">24H", *np.repeat(VALUES, 3))
    assert decode(png(8, 1, bits=16, kind=2, rows=colours))[0, :, 1].tolist() == UPPER
    with_alpha = b"\0" + struct.pack(">32H", *np.repeat(VALUES, 4))
    assert decode(png(8, 1, bits=16, kind=6, rows=with_alpha))[0, :, 3].tolist() == UPPER
    grey = b"\0" + struct.pack(">16H", *np.repeat(VALUES, 2))
    np.testing.assert_array_equal(decode(png(8, 1, bits=16, kind=4, rows=grey))[0, :, [0, -1]], [UPPER, UPPER])


def test_IMG_05_CMYK_with_the_Adobe_marker() -> None:
    cyan = decode(encode(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=95)).astype(int)
    assert cyan.shape == (16, 16, 3)
    assert np.abs(cyan - (0, 255, 255)).max() < 8
    dark = decode(encode(Image.new("CMYK", (16, 16), (0, 0, 0, 255)), "JPEG", quality=95))
    assert dark.max() < 8


def test_IMG_07_palette_transparency() -> None:
    image = Image.new("P", (4, 2), 1)
    image.putpalette([0, 0, 0, 255, 255, 255])
    image.paste(0, (0, 0, 2, 2))
    expected = np.full((2, 4, 4), 255, np.uint8)
    expected[:, :2] = 0
    for transparency in (0, b"\x00\xff"):
        np.testing.assert_array_equal(decode(encode(image, "PNG", transparency=transparency)), expected)
    np.testing.assert_array_equal(decode(encode(image, "GIF", transparency=0)), expected)
    np.testing.assert_array_equal(decode(encode(image, "PNG")), expected[:, :, [0, 0, 0]])
    half = encode(image, "PNG", transparency=b"\x80\xff")
    assert decode(half)[0, 0].tolist() == [0, 0, 0, 128]


@pytest.mark.parametrize(
    ("data", "alpha"),
    [
        (png(8, 1, bits=1, kind=0, rows=b"\0\x55", extra=transparent(1)), [255, 0] * 4),
        (png(4, 1, bits=2, kind=0, rows=b"\0\x1b", extra=transparent(1)), [255, 0, 255, 255]),
        (png(2, 1, bits=4, kind=0, rows=b"\0\x3c", extra=transparent(12)), [255, 0]),
        (png(2, 1, bits=8, kind=0, rows=b"\0\x07\x08", extra=transparent(7)), [0, 255]),
        (png(2, 1, bits=16, kind=0, rows=b"\0\x01\x00\x01\x01", extra=transparent(256)), [0, 255]),
        (png(2, 1, bits=8, kind=2, rows=b"\0\x01\x02\x03\x00\x00\x00", extra=transparent(1, 2, 3)), [0, 255]),
        (png(1, 2, bits=16, kind=2, rows=b"\0\1\0\2\0\3\0\0\1\0\2\0\4\0", extra=transparent(256, 512, 768)), [0, 255]),
    ],
    ids=["1 bit", "2 bits", "4 bits", "8 bits", "16 bits", "colour", "16-bit colour"],
)
def test_IMG_07_a_transparent_value(data: bytes, alpha: list[int]) -> None:
    decoded = decode(data)
    assert decoded.shape[2] in (2, 4)
    assert decoded[:, :, -1].ravel().tolist() == alpha


def test_alpha_is_kept_as_it_is() -> None:
    for channels, mode in ((2, "LA"), (4, "RGBA")):
        pixels = noise(6, 5, channels)
        np.testing.assert_array_equal(decode(encode(Image.fromarray(pixels, mode=None), "PNG")), pixels)
        assert Image.fromarray(pixels).mode == mode


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("form", WHOLE)
def test_IMG_09_truncated(form: str, lenient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the process told Pillow about such files elsewhere."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    data = WHOLE[form]()
    assert decode(data).shape[2] == 3
    for share in (0.1, 0.5, 0.9):
        with pytest.raises(ValueError, match=r"file is broken: ."):
            decode(data[: int(len(data) * share)])


@pytest.mark.parametrize("lenient", [False, True])
def test_IMG_09_pixels_end_within_a_whole_PNG(lenient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    rows = b"".join(b"\0" + row.tobytes() for row in noise(64, 64, 1))
    data = png(64, 64, bits=8, kind=0, rows=zlib.compress(rows)[:2000], compress=False)
    with pytest.raises(ValueError, match="the PNG file is broken: it ends before its pixels do"):
        decode(data)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"hello, world", b"II*\0" + bytes(100), b"BM" + bytes(100), b"P7\n"]
)
def test_other_bytes_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it has no bytes|it is no PNG, JPEG, WebP, GIF or netpbm file"):
        decode(data)


@pytest.mark.parametrize("form", WHOLE)
def test_only_the_signature_is_a_broken_file(form: str) -> None:
    with pytest.raises(ValueError, match=r"file is broken: ."):
        decode(WHOLE[form]()[:12])


def test_IMG_11_the_first_frame_composited() -> None:
    first = Image.new("P", (16, 12), 0)
    first.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    second = first.copy()
    second.paste(1, (3, 4, 7, 8))
    for disposal in (0, 1, 2):
        data = encode(first, "GIF", save_all=True, append_images=[second], disposal=disposal, duration=50)
        pillow = Image.open(io.BytesIO(data))
        assert getattr(pillow, "n_frames", 1) == 2
        np.testing.assert_array_equal(decode(data), np.asarray(pillow.convert("RGB")))


def test_IMG_11_a_first_frame_smaller_than_its_canvas() -> None:
    data = bytearray(encode(Image.new("P", (4, 4), 1), "GIF"))
    data[6:10] = struct.pack("<HH", 9, 7)  # the canvas; the frame keeps its own size
    pillow = Image.open(io.BytesIO(bytes(data)))
    assert pillow.size == (9, 7)
    decoded = decode(bytes(data))
    assert decoded.shape[:2] == (7, 9)
    np.testing.assert_array_equal(decoded[:, :, :3], np.asarray(pillow.convert("RGB")))


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_IMG_11_other_animations(form: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    data = encode(frames[0], form, save_all=True, append_images=frames[1:], duration=50, lossless=True)
    assert decode(data)[0, 0, :3].tolist() == [255, 0, 0]


def test_IMG_13_thin_pictures_keep_their_axes() -> None:
    for width, height in ((1, 1), (7, 1), (1, 7), (3, 1), (1, 3)):
        assert decode(encode(Image.new("RGB", (width, height)), "PNG")).shape == (height, width, 3)
        assert decode(encode(Image.new("L", (width, height)), "PNG")).shape == (height, width, 1)


BOMBS = {
    "PNG": png(20_000, 20_000, bits=1, kind=0, rows=b""),
    "netpbm": b"P4 20000 20000\n",
    "GIF": b"GIF89a" + struct.pack("<HHBBB", 20_000, 20_000, 0, 0, 0) + encode(Image.new("L", (1, 1)), "GIF")[13:],
    "WebP VP8X": b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\x1f\x4e\0" * 2 + bytes(20),
    "WebP VP8L": b"RIFF\x1e\0\0\0WEBPVP8L\x0a\0\0\0\x2f" + struct.pack("<I", 16_000 | 16_000 << 14) + bytes(20),
    "WebP VP8": b"RIFF\x1e\0\0\0WEBPVP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 16_000, 16_000) + bytes(20),
}


@pytest.mark.parametrize("form", BOMBS)
@pytest.mark.parametrize("limit", [Image.MAX_IMAGE_PIXELS, None], ids=["Pillow warns", "Pillow silenced"])
def test_IMG_15_huge(form: str, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"\d+ x \d+ pixels .*: at most {MAX_PIXELS} are decoded"):
            decode(BOMBS[form])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_random_damage_is_refused_or_decoded() -> None:
    """Nothing but a ValueError ever comes out, whatever is broken."""
    chance = random.Random(11)
    for make in WHOLE.values():
        whole = make()
        for _ in range(40):
            data = bytearray(whole)
            for _ in range(chance.randint(1, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            try:
                decoded = decode(data)
            except ValueError:
                continue
            assert decoded.dtype == np.uint8
            assert decoded.shape[2] in (1, 2, 3, 4)


def test_floating_point_netpbm_is_refused() -> None:
    with pytest.raises(ValueError, match="it is no PNG, JPEG, WebP, GIF or netpbm file"):
        decode(b"Pf\n1 1\n-1.0\n\0\0\0\0")


def test_without_Pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "plugins.modalities.image.decode")
    with pytest.raises(ImportError, match=r"pip install 'uform\[image\]'"):
        importlib.import_module("plugins.modalities.image.decode")
