from typing import Final, Never, final

from uform._ext.enums import GPUClass, MultimemTier
from uform._ext.executor import Executor
from uform._ext.record import Record
from uform._types import _PathLike

@final
class MeshOptions(Record):
    def __new__(
        cls,
        *,
        host_domain_index: int = 0,
        host_domain_count: int = 0,
        directory: _PathLike | None = None,
        job: str | None = None,
        timeout_seconds: float = 0.0,
    ) -> MeshOptions: ...
    host_domain_index: Final[int]
    host_domain_count: Final[int]
    directory: Final[_PathLike | None]
    job: Final[str | None]
    timeout_seconds: Final[float]

@final
class MeshDescription(Record):
    def __new__(
        cls,
        *,
        host_domain_index: int = 0,
        host_domain_count: int = 0,
        devices_per_host: int = 0,
        world_size: int = 0,
        gpu_class: GPUClass = ...,
        multimem_tier: MultimemTier = ...,
        transport: str = "",
        job: str | None = None,
    ) -> MeshDescription: ...
    host_domain_index: Final[int]
    host_domain_count: Final[int]
    devices_per_host: Final[int]
    world_size: Final[int]
    gpu_class: Final[GPUClass]
    multimem_tier: Final[MultimemTier]
    transport: Final[str]
    job: Final[str | None]

@final
class Mesh:
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def options(self) -> MeshOptions: ...
    @classmethod
    def bootstrap(cls, executor: Executor, options: MeshOptions, /) -> Mesh: ...
    def describe(self) -> MeshDescription: ...
