"""How third parties' plugins are registered, found by entry points, and refused."""

from __future__ import annotations

import ctypes
import enum
import math
import struct
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import uform
from tests.helpers.runs import TINY, make_trainer, ram, resume, shape
from uform._ext import registry

OBJECTIVE, MODALITY = b"uform_objective_plugin_t", b"uform_modality_plugin_t"
ABI_VERSION = 1

# Structures and names that capsules point at, for good.
_kept: list[Any] = []


class Header(ctypes.Structure):
    """How both kinds of plugins begin; what follows are zeros."""

    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("rest", ctypes.c_uint64 * 64),
    )


def capsule(kind: bytes, **fields: Any) -> Any:
    return capsule_of(Header(**{"abi_version": ABI_VERSION, "bytes": ctypes.sizeof(Header), **fields}), kind)


def capsule_of(plugin: ctypes.Structure, kind: bytes) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    _kept.append((plugin, kind))
    return new(ctypes.addressof(plugin), kind, None)


@pytest.mark.parametrize("kind", [OBJECTIVE, MODALITY])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": b"newer", "abi_version": 99}, "plugin newer: built for ABI version 99, this library speaks 1"),
        ({"name": b"shorter", "bytes": 24}, "plugin shorter: its structure has 24 bytes, this library's has"),
        ({"name": b"hollow"}, "plugin hollow: its function derive is missing"),
        ({"name": None}, "plugin: it has no name"),
        ({"name": b"with space"}, "plugin with space: a name has at most 64 letters"),
        ({"name": b"x" * 65}, "a name has at most 64 letters"),
    ],
)
def test_native_plugins_are_checked(kind: bytes, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        uform.register(capsule(kind, **fields))


class Field(ctypes.Structure):
    """`uform_field_t`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("offset", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("count_offset", ctypes.c_size_t),
    )


class Objective(ctypes.Structure):
    """How `uform_objective_plugin_t` begins; its functions are missing."""

    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("taps", ctypes.c_uint32),
        ("capturable", ctypes.c_uint32),
        ("fields", ctypes.POINTER(Field)),
        ("fields_count", ctypes.c_size_t),
        ("config_bytes", ctypes.c_size_t),
        ("rest", ctypes.c_uint64 * 64),
    )


INT32, INT64, DOUBLE, LIST = range(4)


@pytest.mark.parametrize("kind", [OBJECTIVE, MODALITY])  # the tables of both lie at the same place
@pytest.mark.parametrize(
    ("fields", "changes", "message"),
    [
        ([], {"fields_count": 2}, "its fields is null: expected 2, as fields_count says"),
        ([(b"a", DOUBLE, 0)], {"fields_count": 1 << 40}, "its fields_count is 1099511627776: expected at most 4096"),
        ([(b"a", DOUBLE, 0)], {"config_bytes": 1 << 40}, "its config_bytes is 1099511627776: expected at most"),
        ([(b"a", DOUBLE, 0)], {"config_bytes": 0}, "its field a has 8 bytes at 0 of a structure of 0"),
        ([(b"a", DOUBLE, 0)], {"config_bytes": 7}, "its field a has 8 bytes at 0 of a structure of 7"),
        ([(b"a", DOUBLE, 0), (b"b", INT32, 13)], {}, "its field b has 4 bytes at 13 of a structure of 16"),
        ([(b"a", INT64, 1 << 20)], {}, "its field a has 8 bytes at 1048576 of a structure of 16"),
        ([(b"a", INT64, 2**64 - 4)], {}, "its field a has 8 bytes at 18446744073709551612 of a structure of 16"),
        ([(b"a", INT32, 0), (None, INT32, 4)], {}, r"its fields\[1\] has no name"),
        ([(b"", INT32, 0)], {}, r"its fields\[0\] has no name"),
        ([(b"\xff", INT32, 0)], {}, r"the name of its fields\[0\] is not UTF-8"),
        ([(b"a", INT32, 0), (b"a", INT32, 4)], {}, r"its fields\[1\] has the name of one before it, a"),
        ([(b"a", 77, 0)], {}, "its field a has the type 77: expected one of uform_field_type_t"),
        ([(b"a", -1, 0)], {}, "its field a has the type -1: expected one of uform_field_type_t"),
        ([(b"a", DOUBLE, 0), (b"b", INT32, 4)], {}, "its fields a and b share bytes of the structure"),
        ([(b"a", LIST, 0, 3, 12), (b"b", INT32, 12)], {}, "its fields a and b share bytes of the structure"),
        ([(b"a", LIST, 0, 3, 8)], {}, "its fields a and a share bytes of the structure"),
        ([(b"a", LIST, 0, 0, 8)], {}, "its field a has a capacity of 0 entries in a structure of 16 bytes"),
        ([(b"a", LIST, 0, 1 << 62, 8)], {}, "its field a has a capacity of 4611686018427387904 entries in a struct"),
        ([(b"a", LIST, 4, 4, 0)], {}, "its field a has 16 bytes at 4 of a structure of 16"),
        ([(b"a", LIST, 0, 2, 1 << 30)], {}, "its field a has 4 bytes at 1073741824 of a structure of 16"),
        ([(b"a", LIST, 0, 3, 12)], {}, "its function derive is missing"),  # this one is right
    ],
)
def test_tables_of_fields_are_checked(kind: bytes, fields: Any, changes: dict[str, Any], message: str) -> None:
    table = (Field * len(fields))(*fields)
    plugin = Objective(abi_version=ABI_VERSION, bytes=ctypes.sizeof(Objective), name=b"tabled", config_bytes=16)
    if fields:
        plugin.fields, plugin.fields_count = table, len(fields)
    for member, value in changes.items():
        setattr(plugin, member, value)
    _kept.append(table)
    with pytest.raises(ValueError, match=f"plugin tabled: {message}"):
        uform.register(capsule_of(plugin, kind))


def test_other_capsules_and_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="capsule named 'something': expected uform_objective_plugin_t or uform_mod"):
        uform.register(capsule(b"something", name=b"x"))
    with pytest.raises(TypeError, match="plugin is of type int: expected a class with forward_backward"):
        uform.register(3)


def make_class(name: Any, **members: Any) -> Any:
    members.setdefault("forward_backward", lambda self, batch: 0.0)
    members.setdefault("__init__", lambda self, **fields: None)
    return type("Theirs", (), {"name": name, **members})


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ({"name": 3}, TypeError, "Theirs has the name 3"),
        ({"name": "idle", "forward_backward": None}, TypeError, "plugin idle: its method forward_backward is missing"),
        ({"name": "a.b"}, ValueError, "plugin a.b: a name has at most 64 letters, digits, underscores and hyphens"),
        ({"name": "masked"}, ValueError, "plugin masked: the name is taken"),
        ({"name": "image"}, ValueError, "plugin image: the name is taken"),
        ({"name": "choices_loss"}, ValueError, "plugin choices_loss: the name is a field's of TrainerStepStats"),
        ({"name": "loss"}, ValueError, "plugin loss: the name is a field's of TrainerStepStats"),
        ({"name": "f", "fields": 3}, TypeError, "plugin f: fields is of type int: expected a mapping"),
        ({"name": "f", "fields": {"x": "y"}}, TypeError, r"plugin f: fields\['x'\] is 'y'"),
    ],
)
def test_classes_are_checked(members: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        uform.register(make_class(**members))


class Spelled(str):
    """A str of a class of its own."""

    __slots__ = ()


class Names(enum.StrEnum):
    """Members that are str."""

    SPELLED_ENUM = "spelled_enum"


@pytest.mark.parametrize("name", [Spelled("spelled_class"), np.str_("spelled_numpy"), Names.SPELLED_ENUM])
def test_names_of_subclasses_of_str_are_names(name: str) -> None:
    uform.register(make_class(name))
    trainer = make_trainer(plugins={name: None})
    assert list(trainer.describe()["plugins"]) == [str.__str__(name)]


def test_two_of_one_name() -> None:
    theirs = make_class("one_of_two")
    assert uform.register(theirs) is theirs
    uform.register(theirs)  # once more is no matter
    other = make_class("one_of_two")
    other.__qualname__ = "Another"
    with pytest.raises(ValueError, match="plugin one_of_two: the name is taken"):
        uform.register(other)


def test_a_class_defined_anew_takes_the_place_of_the_one_before() -> None:
    """As when a notebook's cell runs again: runs that have begun keep the objects of the former."""

    def cell(loss: float, **fields: float) -> Any:
        def forward_backward(self: Any, batch: Any) -> float:
            np.asarray(batch.bags_gradient)[:] = 0
            return loss

        return uform.register(make_class("cell", forward_backward=forward_backward, fields=fields))

    def loss_of(trainer: uform.Trainer) -> float:
        stats = uform.TrainerStepStats()
        trainer.step([uform.Modality.TEXT], ["a"], stats=stats)
        return stats.extra["cell"]

    cell(1.0, strength=2.0)
    before = make_trainer(plugins={"cell": None})
    cell(3.0, strength=5.0)
    after = make_trainer(plugins={"cell": None})
    assert [loss_of(trainer) for trainer in (before, after, before)] == [1.0, 3.0, 1.0]
    assert [trainer.describe()["plugins"]["cell"]["strength"] for trainer in (before, after)] == [2.0, 5.0]
    for fields in ({}, {"strength": 1}, {"other": 2.0}, {"strength": 2.0, "more": 1.0}):
        with pytest.raises(ValueError, match=r"plugin cell: its class had the fields \['strength'\] when it was"):
            cell(4.0, **fields)
    assert loss_of(make_trainer(plugins={"cell": None})) == 3.0


# ------------------------------------------------------------------------------------------------ entry points

found_by_name = make_class("found_by_name", fields={"strength": 2.0})
found_later = make_class("found_later")


def offer(name: str, value: str, group: str = "uform.objectives") -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{value}", group)


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    installed: list[EntryPoint] = []
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [one for one in installed if one.group == group], raising=True
    )
    return installed


def test_installed_plugins_are_found_by_name(offers: list[EntryPoint]) -> None:
    offers.append(offer("found_by_name", "found_by_name"))
    trainer = make_trainer(plugins={"found_by_name": None})
    assert trainer.describe()["plugins"] == {"found_by_name": {"strength": 2.0}}


def test_two_packages_of_one_name(offers: list[EntryPoint]) -> None:
    offers += [offer("twice", "found_by_name"), offer("twice", "found_later", "uform.modalities")]
    with pytest.raises(ValueError, match=r"plugin twice: more than one package offers it: .*found_by_name and "):
        make_trainer(plugins={"twice": None})


def test_no_plugin_takes_the_name_of_a_field_of_the_stats() -> None:
    fields = [name for name in dir(uform.TrainerStepStats) if not name.startswith("_")]
    assert len(fields) > 10
    for name in fields:
        with pytest.raises(ValueError, match=f"plugin {name}: the name is a field's of TrainerStepStats"):
            uform.register(make_class(name))


def test_two_packages_of_one_name_are_told_of_on_resumption(offers: list[EntryPoint], tmp_path: Path) -> None:
    """Neither is taken: what one saved is not to be read by the other."""
    path = tmp_path / "run.safetensors"
    make_trainer().save(path)
    offers += [offer("both", "found_by_name"), offer("both", "found_later")]
    offers += [offer("found_later", "found_later")] * 2  # one package that is seen twice is one
    told = r"plugin both: more than one package offers it: .*:found_by_name and .*:found_later: neither is loaded"
    opens: list[Callable[[Path], Any]] = [resume, lambda path: uform.Model.init_ram(ram(), path)]
    for open_again in opens:
        with pytest.warns(RuntimeWarning, match=told) as seen:
            open_again(path)
        assert sum("more than one" in str(one.message) for one in seen) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [("nothing_here", "does not load: AttributeError"), ("found_later", "answers a plugin of another name")],
)
def test_what_does_not_load(value: str, message: str, offers: list[EntryPoint]) -> None:
    offers.append(offer(f"broken_{value}", value))
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"plugin broken_{value}: that of .*{message}"):
            make_trainer(plugins={f"broken_{value}": None})
    make_trainer()  # what is not asked for disturbs nobody


def test_checkpoints_bring_their_plugins(offers: list[EntryPoint], tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    uform.register(found_later)
    make_trainer(plugins={"found_later": None}).save(path)
    offers.append(offer("absent", "nothing_here"))
    with pytest.warns(RuntimeWarning, match="plugin absent: that of .* does not load: AttributeError"):
        trainer = resume(path)
    assert trainer.describe()["plugins"] == {"found_later": {}}


# ------------------------------------------------------------------------------------------------ configurations


class Configured:
    """Remembers what it was made with."""

    name = "configured"
    fields: ClassVar[Any] = {"strength": 1.5, "count": 3}
    made: ClassVar[dict[str, Any]] = {}

    def __init__(self, **given: Any) -> None:
        Configured.made = given

    def forward_backward(self, batch: uform.PluginBatch) -> float:
        """Nothing."""
        return 0.0


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, {"strength": 1.5, "count": 3}),
        ({}, {"strength": 1.5, "count": 3}),
        ({"strength": 4}, {"strength": 4.0, "count": 3}),
        ({"count": -1, "strength": -0.25}, {"strength": -0.25, "count": -1}),
        (bytes(16), {"strength": 1.5, "count": 3}),
        (struct.pack("dq", 2.5, 7), {"strength": 2.5, "count": 7}),
        (np.array([(2.5, 7)], [("Object", "f8"), ("count", "i8")]), {"strength": 2.5, "count": 7}),
        ({np.str_("strength"): 2}, {"strength": 2.0, "count": 3}),
    ],
)
def test_configurations(config: Any, expected: dict[str, Any], tmp_path: Path) -> None:
    uform.register(Configured)
    trainer = make_trainer(plugins={"configured": config})
    assert Configured.made == expected
    assert trainer.describe()["plugins"] == {"configured": expected}
    trainer.save(tmp_path / "run.safetensors")
    Configured.made = {}
    resume(tmp_path / "run.safetensors")
    assert Configured.made == expected


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"colour": 1}, ValueError, "the plugin has no such field; it has strength, count"),
        ({"count": 1.5}, TypeError, r"plugins\['configured'\]\['count'\] is 1.5"),
        ({"strength": float("nan")}, ValueError, r"plugins\['configured'\]\['strength'\] is nan"),
        (3, TypeError, "expected a mapping from the plugin's fields to values, a buffer"),
        (bytes(3), ValueError, "plugin configured: its configuration has 16 bytes, not 3"),
        *(
            (
                struct.pack("dq", number, 1),
                ValueError,
                f"^plugin configured: strength is {number}: expected a finite number$",
            )
            for number in (math.nan, math.inf, -math.inf)
        ),
        (np.array([None, None]), TypeError, r"plugins\['configured'\] is of type ndarray, which holds objects"),
        (
            np.array([(1.0, None)], [("O", "f8"), ("b", "O")]),
            TypeError,
            r"plugins\['configured'\] is of type ndarray, which holds objects",
        ),
        (np.ma.array([1.5, 2.0]), TypeError, r"plugins\['configured'\] is of type MaskedArray.* masked array"),
        (np.zeros(4)[::2], TypeError, r"plugins\['configured'\] is of type ndarray, which gives no plain buffer"),
    ],
)
def test_bad_configurations(config: Any, error: type[Exception], message: str) -> None:
    uform.register(Configured)
    with pytest.raises(error, match=message):
        make_trainer(plugins={"configured": config})


def test_third_modalities_are_none_of_a_run_without_them() -> None:
    with pytest.raises(ValueError, match=r"modalities\[0\] is 16: expected one of TEXT=0"):
        uform.Trainer.init_ram(ram(), batch=shape(), **TINY).step([16], ["x"])  # type: ignore[list-item]
