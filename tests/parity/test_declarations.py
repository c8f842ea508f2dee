"""`plugin.pxd` says what `plugin.h` says: the same structures with the same members in the same order."""

from __future__ import annotations

import re
from pathlib import Path

from uform.build import get_cython_path, get_include

HEADER = Path(get_include()) / "uform" / "plugin.h"
DECLARATIONS = Path(get_cython_path()) / "uform" / "_ext" / "plugin.pxd"


def header_structures() -> dict[str, list[str]]:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    found = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, flags=re.DOTALL):
        members = []
        for statement in body.split(";"):
            pointer = re.search(r"\(\*(\w+)\)", statement)
            if pointer:
                members.append(pointer.group(1))
                continue
            plain = re.sub(r"\[\w+\]", "", statement)
            members += [re.findall(r"\w+", part)[-1] for part in plain.split(",") if re.search(r"\w", part)]
        found[name] = members
    return found


def declared_structures() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, body in re.findall(r"ctypedef struct (\w+):\n((?:(?: {8}.*)?\n)+)", DECLARATIONS.read_text()):
        members = []
        for line in body.splitlines():
            if line.startswith(" " * 9) or not line.strip() or line.strip().startswith("#"):
                continue
            pointer = re.search(r"\(\*(\w+)\)", line)
            members.append(pointer.group(1) if pointer else re.findall(r"\w+", line)[-1])
        found[name] = members
    return found


def test_structures_are_those_of_the_header() -> None:
    header, declared = header_structures(), declared_structures()
    assert "uform_operations_t" in header
    assert header == {name: declared.get(name) for name in header}


def test_constants_are_those_of_the_header() -> None:
    constants = set(re.findall(r"\b(uform_\w+_k) =", HEADER.read_text()))
    declared = set(re.findall(r"^ +(uform_\w+_k)$", DECLARATIONS.read_text(), flags=re.MULTILINE))
    assert constants - declared == set()
