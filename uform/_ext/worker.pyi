from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")

class Worker:
    def __init__(self) -> None: ...
    def __del__(self) -> None: ...
    def submit(self, call: Callable[[], _T], /) -> Future[_T]: ...
