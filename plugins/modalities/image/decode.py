"""Encoded pictures as arrays of pixels, through Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from PIL import GifImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin, PpmImagePlugin, WebPImagePlugin
except ImportError as missing:
    raise ImportError("encoded images need Pillow: pip install 'uform[image]'") from missing

MODALITY = 1
"""The value of `uform.Modality` whose encoded contents `decode` takes."""

MAX_PIXELS = 1 << 26
"""Larger pictures are refused before any pixel is read: a file of a few bytes may ask for gigabytes."""

Pixels = NDArray[np.uint8]

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_ORIENTATION = 0x0112  # the EXIF tag
# By its value, what turns pixels as stored into pixels as seen.
_TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels.swapaxes(0, 1)[:, ::-1],
    7: lambda pixels: pixels.swapaxes(0, 1)[::-1, ::-1],
    8: lambda pixels: pixels.swapaxes(0, 1)[::-1],
}


def decode(data: Any) -> Pixels:
    """Decodes a PNG, JPEG, WebP, GIF or netpbm file.

    The picture is turned as its EXIF orientation says. A palette becomes colours, CMYK becomes RGB, 16-bit values keep
    their upper byte. Transparency of any kind becomes an alpha channel, which is laid over white by whoever wants none.
    Of an animation the first frame is taken, composited onto its canvas.

    Args:
        data: The file's bytes, through the buffer protocol.

    Returns:
        Pixels `[height, width, channels]`, perhaps strided: grey, grey and alpha, RGB or RGBA.

    Raises:
        ValueError: The bytes are no whole picture of these formats, or one of more than `MAX_PIXELS`; the reason is
            the message.
    """
    encoded = bytes(memoryview(data))
    reader = _reader_of(encoded)
    try:
        with reader(io.BytesIO(encoded)) as picture:
            _check_size(*picture.size)
            picture.load()
            return _turn(_pixels(picture), _orientation(picture))
    except (MemoryError, _RefusedError):
        raise
    except Exception as error:  # Pillow's readers raise whatever a broken file makes them stumble over
        raise ValueError(f"the {reader.format} file is broken: {str(error) or type(error).__name__}") from error


class _RefusedError(ValueError):
    """A reason that is complete as it stands."""


class _Whole(ImageFile.ImageFile):
    """Refuses a file that ends early, whatever `ImageFile.LOAD_TRUNCATED_IMAGES` says."""

    def load_read(self, read_bytes: int) -> bytes:
        """What a reader's `load` asks for the next bytes of pixels."""
        return _not_empty(self.fp.read(read_bytes) if self.fp else b"")


class _Png(PngImagePlugin.PngImageFile):
    """Has chunks to go through, and perhaps a transparent colour."""

    def _open(self) -> None:
        super()._open()
        if "transparency" in self.info:
            self.info["transparency"] = _as_decoded(self.info["transparency"], self.tile[0][3])

    def load_read(self, read_bytes: int) -> bytes:
        """What `load` asks for the next bytes of pixels."""
        return _not_empty(super().load_read(read_bytes))


class _Jpeg(_Whole, JpegImagePlugin.JpegImageFile):
    pass


class _WebP(_Whole, WebPImagePlugin.WebPImageFile):
    pass


class _Gif(_Whole, GifImagePlugin.GifImageFile):
    pass


class _Netpbm(_Whole, PpmImagePlugin.PpmImageFile):
    format = "netpbm"


def _as_decoded(transparent: Any, raw_mode: object) -> Any:
    """A PNG file's transparent grey or colour on the scale of decoded values; Pillow leaves it on the file's."""
    if raw_mode in ("L;2", "L;4"):
        return transparent * (85 if raw_mode == "L;2" else 17)
    if raw_mode == "RGB;16B":
        return tuple(value >> 8 for value in transparent)
    return transparent


def _not_empty(read: bytes) -> bytes:
    if not read:
        raise EOFError("it ends before its pixels do")
    return read


def _reader_of(encoded: bytes) -> type[ImageFile.ImageFile]:
    """By the signature: Pillow knows many more formats, which nobody has asked for."""
    if not encoded:
        raise ValueError("it has no bytes")
    if encoded.startswith(_PNG_SIGNATURE):
        _check_chunks(encoded)
        return _Png
    if encoded.startswith(b"\xff\xd8\xff"):
        return _Jpeg
    if encoded.startswith((b"GIF87a", b"GIF89a")):
        return _Gif
    if encoded.startswith(b"RIFF") and encoded[8:12] == b"WEBP":
        _check_size(*_webp_canvas(encoded))
        return _WebP
    if encoded[:1] == b"P" and encoded[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6"):
        return _Netpbm
    raise ValueError(f"it is no PNG, JPEG, WebP, GIF or netpbm file: it starts with {encoded[:8]!r}")


def _check_chunks(encoded: bytes) -> None:
    """A PNG file goes on to its last chunk, which Pillow does not ask for."""
    place = len(_PNG_SIGNATURE)
    while encoded[place + 4 : place + 8] != b"IEND":
        place += 12 + int.from_bytes(encoded[place : place + 4], "big")
        if place >= len(encoded):
            raise ValueError("the PNG file is broken: it ends before its last chunk")


def _webp_canvas(encoded: bytes) -> tuple[int, int]:
    """Width and height by the header: Pillow's reader makes room for the whole canvas as it opens the file."""

    def number(first: int, last: int) -> int:
        return int.from_bytes(encoded[first:last], "little")

    kind = encoded[12:16]
    if kind == b"VP8X":
        return number(24, 27) + 1, number(27, 30) + 1
    if kind == b"VP8L":
        return (number(21, 25) & 0x3FFF) + 1, (number(21, 25) >> 14 & 0x3FFF) + 1
    return number(26, 28) & 0x3FFF, number(28, 30) & 0x3FFF


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise _RefusedError(f"it has {width} x {height} pixels (width x height): at most {MAX_PIXELS} are decoded")


def _pixels(picture: Image.Image) -> Pixels:
    """The pixels as stored, in one of the four layouts."""
    mode = picture.mode
    if mode.startswith("I"):
        return _upper_bytes(np.asarray(picture), picture.info.get("transparency"))
    if mode == "F":
        raise _RefusedError("its pixels are floating-point numbers")
    has_alpha = mode in ("LA", "PA", "RGBA") or "transparency" in picture.info
    if mode in ("1", "L", "LA"):
        layout = "LA" if has_alpha else "L"
    else:
        layout = "RGBA" if has_alpha else "RGB"
    pixels: Pixels = np.asarray(picture.convert(layout))
    return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels


def _upper_bytes(values: NDArray[Any], transparent: int | None) -> Pixels:
    """16-bit grey, with alpha where one of its values stands for transparency."""
    grey = (values >> 8).astype(np.uint8)
    if transparent is None:
        return grey[:, :, np.newaxis]
    return np.stack([grey, np.where(values == transparent, 0, 255).astype(np.uint8)], axis=-1)


def _turn(pixels: Pixels, orientation: int) -> Pixels:
    return _TURNS[orientation](pixels) if orientation in _TURNS else pixels


def _orientation(picture: Image.Image) -> int:
    """Broken EXIF data is no reason to lose a picture: it is then taken as stored."""
    try:
        return int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # as above
        return 1
