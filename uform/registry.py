"""The first-party plugins' Python parts, imported when first needed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from uform._ext.decoders import get_decoder, set_decoder
from uform._ext.enums import Modality
from uform._types import Buffer


def _decode_image(item: int, encoded: Buffer, shape: Mapping[str, int]) -> Any:
    """An image file as uint8 `[height, width, channels]`, with the channels that it has."""
    decoder = import_module("uform_plugins.modalities.image.decode")
    return decoder.decode(encoded)


def register_first_party() -> None:
    """Sets the decoders of this package where nothing else decodes yet."""
    if get_decoder(Modality.IMAGE) is None:
        set_decoder(Modality.IMAGE, _decode_image)
