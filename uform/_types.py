"""What arguments may be, by the names that signatures use."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer as _Memory

    from uform._ext.relations import Edges

# Anything with the buffer protocol; a sequence of numbers is converted.
Buffer: TypeAlias = "_Memory | Sequence[int] | Sequence[float]"

_PathLike: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"

# Called with (done, total) from the calling thread; False cancels.
_Progress: TypeAlias = Callable[[int, int], "bool | None"]

# Values end to end, and where each row begins.
_Tape: TypeAlias = "tuple[Buffer, Buffer]"

# A sequence of contents, a tape of texts, a buffer with `.offsets`, or an Arrow array of strings or bytes.
_Texts: TypeAlias = "Sequence[Any] | _Tape | _Memory | SupportsArrow"

_Words: TypeAlias = "Sequence[int] | _Memory"

_EdgesLike: TypeAlias = "Edges | tuple[Buffer | None, ...] | None"

if TYPE_CHECKING:
    from typing import Protocol

    class SupportsArrow(Protocol):
        """An array of the Arrow C data interface."""

        def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
            """Its schema and its array, as capsules."""
