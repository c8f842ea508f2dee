from typing import ClassVar, Final, final

from uform._ext.record import Fields
from uform._types import Buffer, _EdgesLike

@final
class Edges(Fields):
    def __new__(
        cls,
        *,
        offsets: Buffer | None = None,
        ids: Buffer | None = None,
        weights: Buffer | None = None,
    ) -> Edges: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
    offsets: Final[Buffer | None]
    ids: Final[Buffer | None]
    weights: Final[Buffer | None]

@final
class Relations(Fields):
    def __new__(
        cls,
        *,
        attract: _EdgesLike = None,
        repel: _EdgesLike = None,
        ignore: _EdgesLike = None,
    ) -> Relations: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
    attract: Final[Edges | None]
    repel: Final[Edges | None]
    ignore: Final[Edges | None]
