"""Objects of every extension type that nothing initialised: each attribute is read, called, set and deleted.

Run as a program, since what is looked for is a crash of the process: `python -m tests.helpers.bare MODULE...`. It
prints each attempt before it is made, and what came of it.
"""

from __future__ import annotations

import copy
import enum
import functools
import gc
import importlib
import pickle
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import uform._ext

ARGUMENTS: tuple[tuple[Any, ...], ...] = ((), (None,), (3,), ("x",), (None, None), ([0], ["a"]), (None, None, None))
# What these do to an object is Python's own business.
SKIPPED = {"__class__", "__init_subclass__", "__new__", "__subclasshook__", "__class_getitem__"}
PROTOCOLS: dict[str, Callable[[Any], object]] = {
    "repr": repr,
    "hash": hash,
    "bool": bool,
    "len": len,
    "iterate": list,
    "equal": lambda made: made == made,
    "item": lambda made: made[0],
    "buffer": memoryview,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}


def modules() -> list[str]:
    """The extension modules; the core's library lies beside them, and is none."""
    return sorted(found.name for found in pkgutil.iter_modules(uform._ext.__path__) if found.name != "libuform")


def types_of(module: str) -> list[type[Any]]:
    """The classes that a module defines, but enumerations and exceptions."""
    members = vars(importlib.import_module(f"uform._ext.{module}")).values()
    return [
        member
        for member in members
        if isinstance(member, type)
        and member.__module__ == f"uform._ext.{module}"
        and not issubclass(member, enum.Enum | BaseException | tuple)
    ]


def attempt(label: str, act: Callable[[], object]) -> None:
    """Says what is tried and what came of it."""
    print(label, end=" ... ", flush=True)
    try:
        act()
        print("done")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")


def touch(made: Any, name: str) -> None:
    """Reads, calls, sets and deletes one attribute."""
    attempt(name, functools.partial(getattr, made, name))
    try:
        member = getattr(made, name)
    except Exception:
        member = None  # what was raised was shown
    if callable(member):
        for arguments in ARGUMENTS:
            attempt(f"{name}{arguments}", functools.partial(member, *arguments))
    attempt(f"{name} = None", functools.partial(setattr, made, name, None))
    attempt(f"del {name}", functools.partial(delattr, made, name))


def walk(kind: Any) -> None:
    """Makes a bare object and does everything to it."""
    print(f"== {kind.__module__}.{kind.__name__}", flush=True)
    try:
        made = kind.__new__(kind)
    except TypeError as error:  # no bare one can be made
        print(f"__new__ ... TypeError: {error}")
        return
    for label, act in PROTOCOLS.items():
        attempt(label, functools.partial(act, made))
    for name in sorted(set(dir(kind)) - SKIPPED):
        touch(made, name)
    del made
    gc.collect()


if __name__ == "__main__":
    for module in sys.argv[1:]:
        for kind in types_of(module):
            walk(kind)
    print("survived")
