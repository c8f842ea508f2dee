from typing import Any, ClassVar, TypeVar

_Made = TypeVar("_Made")

def _rebuild(made: type[_Made], fields: dict[str, Any]) -> _Made: ...

class Fields:
    _fields: ClassVar[tuple[str, ...]]

class Record(Fields):
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
