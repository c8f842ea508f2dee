"""Checkpoints taken apart and put together again with something wrong in them, without our own reader or writer."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIGURATION = "configuration"
METADATA = "__metadata__"

Place = tuple[str, ...]  # of a value in the configuration: the keys that lead to it


@dataclass
class Tensor:
    """One tensor: its type and shape as the header spells them, and its bytes."""

    dtype: str
    shape: list[int]
    data: bytes


@dataclass
class CheckpointFile:
    """Everything that a checkpoint holds."""

    metadata: dict[str, str]
    tensors: dict[str, Tensor]

    @classmethod
    def read(cls, path: Path) -> CheckpointFile:
        content = path.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
        metadata = header.pop(METADATA)
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[name] = Tensor(entry["dtype"], entry["shape"], data[begin:end])
        return cls(metadata, tensors)

    def copy(self) -> CheckpointFile:
        return copy.deepcopy(self)

    @property
    def configuration(self) -> dict[str, Any]:
        """A copy: `with_configuration` puts it back."""
        found: dict[str, Any] = json.loads(self.metadata[CONFIGURATION])
        return found

    def with_configuration(self, configuration: object) -> CheckpointFile:
        return CheckpointFile({**self.metadata, CONFIGURATION: json.dumps(configuration)}, self.tensors)

    def write(self, path: Path) -> None:
        header: dict[str, Any] = {METADATA: self.metadata}
        begin = 0
        for name, tensor in self.tensors.items():
            end = begin + len(tensor.data)
            header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
            begin = end
        write_raw(path, json.dumps(header).encode(), b"".join(tensor.data for tensor in self.tensors.values()))


def write_raw(path: Path, header: bytes, data: bytes) -> None:
    """A file of any header and data, whatever they are worth."""
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def places(value: object, before: Place = ()) -> Iterator[Place]:
    """Every value of nested objects, sections before what they hold."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield (*before, key)
            yield from places(member, (*before, key))


def value_at(configuration: Any, place: Place) -> Any:
    """The value at a place; KeyError where there is none."""
    for key in place:
        configuration = configuration[key]
    return configuration


def put(configuration: Any, place: Place, value: object) -> Any:
    """A copy with another value at a place."""
    changed = copy.deepcopy(configuration)
    value_at(changed, place[:-1])[place[-1]] = value
    return changed


def take_out(configuration: Any, place: Place) -> Any:
    """A copy without the value at a place."""
    changed = copy.deepcopy(configuration)
    del value_at(changed, place[:-1])[place[-1]]
    return changed
