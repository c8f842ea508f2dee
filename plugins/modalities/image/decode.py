"""Encoded pictures as arrays of pixels, through Pillow."""

from __future__ import annotations

import io
import threading
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

MODALITY = 1
"""The value of `uform.Modality` whose encoded contents `decode` takes."""

MAX_PIXELS = 89_478_485
"""Larger pictures are refused before their pixels are read: a tiny file may ask for gigabytes."""

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "PPM")

# Pillow keeps the switch that accepts truncated files in a module: it is held while a picture is read.
_strictness = threading.Lock()


def decode(data: Any) -> NDArray[np.uint8]:
    """Decodes PNG, JPEG, WebP, GIF or netpbm bytes.

    The picture is turned as its EXIF orientation says. A palette becomes colours, with alpha where the palette has
    transparency; 16-bit grey keeps its upper byte; of an animation the first frame is taken, composited.

    Args:
        data: The file's bytes, through the buffer protocol.

    Returns:
        Pixels `[height, width, channels]`: grey, grey and alpha, RGB or RGBA.

    Raises:
        ImportError: Pillow is not installed.
        ValueError: The bytes are no whole picture of these formats, or one of more than `MAX_PIXELS`.
    """
    try:
        from PIL import Image, ImageFile, ImageOps
    except ImportError as missing:
        raise ImportError("encoded images need Pillow: pip install 'uform[image]'") from missing
    raw = bytes(data)
    if not raw:
        raise ValueError("the picture has no bytes")
    with _strictness, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lenient, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
        try:
            with Image.open(io.BytesIO(raw), formats=_FORMATS) as picture:
                width, height = picture.size
                if width * height > MAX_PIXELS:
                    raise ValueError(f"a picture of {width} x {height} pixels is over the limit of {MAX_PIXELS}")
                picture.load()
                return _pixels(ImageOps.exif_transpose(picture))
        except Image.DecompressionBombError:
            raise ValueError(f"the picture has more than {MAX_PIXELS} pixels") from None
        except Image.UnidentifiedImageError:
            raise ValueError("the bytes are no PNG, JPEG, WebP, GIF or netpbm picture") from None
        except (OSError, SyntaxError, EOFError, IndexError, KeyError, TypeError) as failure:
            # Pillow's readers raise whatever their parsers stumble over.
            raise ValueError(f"the picture cannot be decoded: {failure}") from failure
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = lenient


def _pixels(picture: Any) -> NDArray[np.uint8]:
    mode = picture.mode
    if mode.startswith("I"):
        # Netpbm and some PNG files of 16 bits come as 32-bit integers.
        return _with_channels(np.clip(np.asarray(picture).astype(np.int64) >> 8, 0, 255))
    if mode == "F":
        raise ValueError("pictures of floating-point values are not taken")
    if mode in ("1", "L", "LA", "La"):
        transparent = mode.startswith("L") and (mode != "L" or "transparency" in picture.info)
        return _with_channels(np.asarray(picture.convert("LA" if transparent else "L")))
    transparent = mode in ("RGBA", "RGBa", "PA") or "transparency" in picture.info
    return _with_channels(np.asarray(picture.convert("RGBA" if transparent else "RGB")))


def _with_channels(values: NDArray[Any]) -> NDArray[np.uint8]:
    pixels = np.ascontiguousarray(values, dtype=np.uint8)
    return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
