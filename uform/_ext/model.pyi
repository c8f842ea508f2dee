from collections.abc import Sequence
from typing import Any, Never, final

from uform._ext.arena import Arena, ArenaBuffer
from uform._ext.deferred import DeferredOn, On, Receiver
from uform._ext.enums import LateInteractionSide, Modality, Scalar
from uform._ext.executor import Executor
from uform._ext.rows_tape import RowsTape
from uform._types import _PathLike, _Texts, _Words

@final
class Model(Receiver):
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @classmethod
    def init_ram(cls, executor: Executor, path: _PathLike, /) -> Model: ...
    @classmethod
    def init_vram(cls, executor: Executor, path: _PathLike, /) -> Model: ...
    def on(self, executor: Executor, /) -> On[Model]: ...
    def deferred(self, executor: Executor, /) -> DeferredOn[Model]: ...
    def embed(
        self,
        modalities: Sequence[Modality],
        contents: _Texts,
        /,
        *,
        bags: _Words | None = None,
        arena: Arena | None = None,
        outputs_scalar: Scalar = ...,
    ) -> ArenaBuffer: ...
    def embed_tokens(
        self,
        modalities: Sequence[Modality],
        contents: _Texts,
        /,
        *,
        sides: Sequence[LateInteractionSide] | None = None,
        arena: Arena | None = None,
        outputs_scalar: Scalar = ...,
    ) -> RowsTape: ...
    def describe(self) -> dict[str, Any]: ...

class TokensCall:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> RowsTape: ...
    def _release(self) -> None: ...

class EmbedCall:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> ArenaBuffer: ...
    def _release(self) -> None: ...
