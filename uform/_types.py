"""What arguments may be, by the names that signatures use."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy

from uform._ext.relations import Edges


class Exporter(Protocol):
    """Anything with the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Its memory."""


class SupportsArrow(Protocol):
    """An array of the Arrow C data interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Its schema and its array, as capsules."""


class SupportsDLPack(Protocol):
    """An array that DLPack hands over."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """A capsule over its memory."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """The type and the index of its device."""


# NumPy says only from Python 3.12 on that its arrays have the protocol.
Memory: TypeAlias = Exporter | numpy.ndarray[Any, Any]

# Sequences of numbers are converted.
Buffer: TypeAlias = Memory | Sequence[int] | Sequence[float]

_PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

# Called with (done, total) from the calling thread; False cancels.
_Progress: TypeAlias = Callable[[int, int], bool | None]

# Values end to end, and where each row begins.
_Tape: TypeAlias = tuple[Buffer, Buffer]

# A sequence of contents, a tape of texts, a buffer with `.offsets`, or an Arrow array of strings or bytes.
_Texts: TypeAlias = Sequence[Any] | _Tape | Memory | SupportsArrow

_Words: TypeAlias = Sequence[int] | Memory

_EdgesLike: TypeAlias = Edges | tuple[Buffer | None, ...] | None
