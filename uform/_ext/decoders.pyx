# cython: language_level=3, annotation_typing=False
"""What turns encoded images, videos and clips into arrays, one a modality."""

from uform._ext.fields cimport as_enum

from uform._ext.enums import Modality

cdef dict _decoders = {}


def set_decoder(modality: Modality, decoder: Callable[[int, Buffer, Mapping[str, int]], Buffer] | None) -> None:
    """Sets what decodes a modality's encoded contents.

    Args:
        modality: whose contents.
        decoder: takes the item's place in the call, its bytes and the modality's shape as the run derived it
            (`{"patch_side": 16, "channels": 3}`), and answers an array as contents take them; None unsets it. What it
            raises reaches the caller as a ValueError that names the item.

    Raises:
        ValueError: the modality is TEXT, whose contents are never encoded.
    """
    modality = as_enum(Modality, modality, "modality")
    if modality == Modality.TEXT and decoder is not None:
        raise ValueError("modality is TEXT: expected IMAGE, VIDEO or AUDIO, since texts are not encoded")
    if decoder is None:
        _decoders.pop(modality, None)
    elif callable(decoder):
        _decoders[modality] = decoder
    else:
        raise TypeError(f"decoder is of type {type(decoder).__name__}: expected a callable or None")


def get_decoder(modality: Modality) -> Callable[[int, Buffer, Mapping[str, int]], Buffer] | None:
    """What decodes a modality's encoded contents; None where nothing does."""
    return _decoders.get(as_enum(Modality, modality, "modality"))


cdef object decode(int modality, Py_ssize_t item, object encoded, object shape):
    """The array that an item's bytes hold."""
    decoder = _decoders.get(modality)
    name = Modality(modality).name.lower()
    if decoder is None:
        raise ValueError(f"contents[{item}] is encoded, and nothing here decodes {name}: give an array, or register a "
                         "decoder with uform.set_decoder")
    try:
        return decoder(item, encoded, shape)
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"contents[{item}] does not decode as {name}: {error or type(error).__name__}") from error
