from collections.abc import Sequence
from typing import Final, final

from uform._ext.record import Fields
from uform._types import Buffer, _EdgesLike

@final
class Edges(Fields):
    def __new__(
        cls,
        *,
        offsets: Buffer | Sequence[int] | None = None,
        ids: Buffer | Sequence[int] | None = None,
        weights: Buffer | Sequence[float] | None = None,
    ) -> Edges: ...
    offsets: Final[Buffer | Sequence[int] | None]
    ids: Final[Buffer | Sequence[int] | None]
    weights: Final[Buffer | Sequence[float] | None]

@final
class Relations(Fields):
    def __new__(
        cls,
        *,
        attract: _EdgesLike = None,
        repel: _EdgesLike = None,
        ignore: _EdgesLike = None,
    ) -> Relations: ...
    attract: Final[Edges | None]
    repel: Final[Edges | None]
    ignore: Final[Edges | None]
