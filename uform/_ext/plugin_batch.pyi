from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Never, final

import numpy

class Lease: ...

@final
class PluginArray:
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> str: ...
    def __len__(self) -> int: ...
    def __setitem__(self, key: object, value: object) -> None: ...
    def __array__(self, dtype: object = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, object]: ...

class Pairs(NamedTuple):
    places: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    weights: numpy.ndarray[Any, numpy.dtype[numpy.float32]]

class Arrays(Mapping[str, PluginArray]):
    def __init__(self, arrays: dict[str, PluginArray], of: str) -> None: ...
    def __getitem__(self, name: str) -> PluginArray: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __setitem__(self, name: object, value: object) -> Never: ...
    def __delitem__(self, name: object) -> Never: ...

class PluginBatch:
    bags: PluginArray
    bags_gradient: PluginArray
    numbers: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    attract: Pairs
    repel: Pairs
    ignore: Pairs
    groups: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    modalities: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    sides: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    parameters: Mapping[str, PluginArray]
    parameter_gradients: Mapping[str, PluginArray]
    share: float
    call: int
    device: str
