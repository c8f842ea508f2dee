from typing import TypeVar

_P = TypeVar("_P")

def register(plugin: _P) -> _P: ...
