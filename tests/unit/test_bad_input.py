"""Bad input: every public entry point refuses every kind of wrong value by its field, and nothing is lost by it."""

from __future__ import annotations

import concurrent.futures
import copy
import enum
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import uform
from tests.helpers import bare
from tests.helpers.calls import Call
from tests.helpers.runs import digest, make_trainer, picture, ram, shape
from uform import AmbientScope, LateInteractionSide, Modality, Objective, Scalar

# ---------------------------------------------------------------------------------------------------- wrong values

HUGE = 10**5000  # str() of it raises
NAN, INFINITY = float("nan"), float("inf")


class Unshowable:
    """What repr() raises for."""

    def __repr__(self) -> str:
        raise RuntimeError("not shown")


class Unreadable:
    """What claims to be a number, a path, an array and a sequence, and is none when it is asked."""

    def fail(self, *arguments: Any) -> Any:
        raise RuntimeError("not read")

    __index__ = __float__ = __fspath__ = __array__ = __len__ = __getitem__ = fail


OBJECTS = [object(), Unshowable(), Unreadable(), int, np.ndarray, len]
NOT_REAL: list[Any] = [True, np.True_, "1", b"1", None, [1], (1,), {1}, {1: 1}, np.arange(3), np.array([1.5]), 1j]
NOT_INT = [*NOT_REAL, *OBJECTS, 1.5, NAN, np.float32(1), Decimal(1), Fraction(1)]
NOT_FLOAT = [*NOT_REAL, *OBJECTS, np.array(1.5), np.complex64(1), Decimal(1)]
OUT_OF_RANGE = [HUGE, -HUGE, 2**64, -(2**63) - 1]
NOT_FINITE = [NAN, INFINITY, -INFINITY, HUGE, -HUGE, np.float32(NAN), np.float64(INFINITY)]
NOT_TEXT: list[Any] = [3, 1.5, True, None, b"x", ["x"], np.arange(3), *OBJECTS]
NOT_PATH: list[Any] = [3, 1.5, True, [], ["x"], np.arange(3), "", b"", "a\0b", "\ud800", *OBJECTS]
NOT_CALLABLE: list[Any] = [3, True, "x", [], np.arange(3), Unshowable()]
NOT_SEQUENCE: list[Any] = [3, 1.5, True, "ab", {0, 1}, frozenset((0, 1)), {0: 1, 1: 2}, iter([0, 1]), range, *OBJECTS]


def not_member(enumeration: Any) -> list[Any]:
    """No member, nor the value of one: a member of any other enumeration, names, what is no int."""
    other = Objective if enumeration is not Objective else Scalar
    numbers = [*NOT_INT, -1, 99, HUGE, -HUGE, np.int64(99)]
    return [*numbers, other(0), enumeration(0).name, enum.Enum("Own", "ZERO").ZERO, enumeration]  # type: ignore[attr-defined]


def not_words(highest: int) -> list[Any]:
    """For two contents: no two ints from 0 to `highest`; where one is wrong, it is the second."""
    items = [[0, wrong] for wrong in [*NOT_INT, -1, highest + 1, HUGE, -HUGE, np.int64(-1)]]
    counts: list[Any] = [[], [0], [0, 0, 0], (0,), np.zeros(3, np.uint32), b"\0", range(3)]
    arrays = [np.zeros(2), np.zeros(2, bool), np.zeros((2, 1), np.uint32), np.array(0), np.array(["0", "1"])]
    numbers = [np.array([0, -1]), np.array([0, highest + 1]), np.array([None, 0]), np.zeros(2, complex)]
    return [*NOT_SEQUENCE, *items, *counts, *arrays, *numbers]


def not_members(enumeration: Any) -> list[Any]:
    """For two contents: no two members, nor their values."""
    items = [[0, wrong] for wrong in not_member(enumeration)]
    return [*not_words(len(enumeration) - 1), *items, [enumeration(0)] * 3]


def not_instance(kind: Any) -> list[Any]:
    other = uform.Schedule if kind is not uform.Schedule else uform.Masking
    return [3, True, "x", {}, (), [], np.arange(3), other(), kind, *OBJECTS]


def not_matrix(extents: tuple[int, int]) -> list[Any]:
    """No float32 numbers of two axes."""
    types = [np.zeros(extents, kind) for kind in (np.float64, np.float16, np.int32, bool, complex, object, "U1")]
    axes = [np.zeros(extent, np.float32) for extent in ((), 3, (2, 2, 2), (2, 0))]
    rows = [np.full(extents, number, np.float32) for number in (NAN, INFINITY, -INFINITY)]
    return [None, 3, "x", b"x", [[1.0]], {}, *types, *axes, *rows, *OBJECTS]


CONTENTS: list[Any] = [
    *NOT_SEQUENCE,
    None,
    b"ab",
    bytearray(b"ab"),
    memoryview(b"ab"),
    np.zeros(2, np.uint8),
    {"a": 1, "b": 2}.values(),
    *[
        ["a", wrong]
        for wrong in (3, None, True, 1.5, ["b"], "\ud800", np.zeros(2), np.zeros((2, 2), np.uint8), *OBJECTS)
    ],
    ("a", "b", "c"),
    (b"ab", 3),
    (b"ab", [0, 1.5, 2]),
    (b"ab", [0, -1, 2]),
    (b"ab", [0, HUGE, 2]),
    (b"ab", {0, 1, 2}),
    (b"ab", []),
    (b"ab", [0, 1, 9]),
    (b"ab", [0, 2, 1]),
    ("ab", [0, 1, 2]),
    (np.zeros(2), [0, 1, 2]),
    (None, None),
]
CHOICES: list[Any] = [
    *NOT_SEQUENCE,
    b"ab",
    np.zeros(2, np.uint8),
    [["a"], 3],
    [["a"], [3]],
    [["a"], None],
    [["a"], "b"],
    [["a"], {"b"}],
    [["a"]],
    ["a", "\ud800"],
    (b"ab", 3),
    (b"ab", [0, 1.5]),
    ["yes", "no", "maybe"],  # fit for a run that makes choices; this one makes none
]
TARGETS: list[Any] = [
    *NOT_SEQUENCE,
    [[1.0]],
    [[1.0], 3],
    [[1.0], ["x"]],
    [[1.0], [None]],
    [[1.0], [True]],
    [[1.0], [1e300]],
    [[1.0], [HUGE]],
    [[1.0], {1.0}],
    [[1.0], np.zeros(1, bool)],
    [[1.0], np.zeros((1, 1), np.float32)],
    ([1.0], [0, 1]),
    ([1.0], [0, 1, 1.5]),
    (["x"], [0, 1, 1]),
    ([1.0],),
]


# ---------------------------------------------------------------------------------------------------- what must be


def traces(value: Any) -> set[str]:
    """By which words a message may name a value: itself, its type, its numbers, its extents."""
    found = {type(value).__name__}
    if isinstance(value, np.ndarray):
        found |= {f"{value.ndim} axes", f"has {value.size}", str(value.dtype), str(value.shape), "items of format"}
        return found | {f"is {number}" for number in value.ravel().tolist()} | {"gives no buffer", "not finite"}
    if isinstance(value, str | bytes):
        found |= {"is empty", "the dtype |S1"}
    if isinstance(value, int) and abs(value) >= HUGE:
        return {"int of 16610 bits"}
    if isinstance(value, list | tuple | dict | range | bytes | bytearray):
        found |= {f"has {len(value)}", f"tuple of {len(value)}", "is empty", "has no entries"}
        found |= {trace for entry in value for trace in traces(entry)} if len(value) < 100 else set()
    if isinstance(value, int):
        found |= {"the shape ()"}
    if isinstance(value, enum.Enum):
        found |= {f"is {value.name}"}
    try:
        return found | {repr(value)[:40], str(value)[:40]} - {""}
    except (RuntimeError, ValueError):
        return found


def names(message: str, value: Any) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(trace)}(?!\w)", message) for trace in traces(value))


FIRST = (0, "a", [1.0], ["a"])  # what is right in a list whose second entry is wrong


def refusal(call: Callable[[Any], object], value: Any, field: str) -> None:
    """A wrong value is refused by a message that names the field, the item and the value on one short line."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call(value)
    message = str(caught.value)
    assert type(caught.value) in (TypeError, ValueError), message
    assert field in message
    assert names(message, value), (message, traces(value))
    assert len(message) < 400
    assert "\n" not in message
    if type(value) is list and len(value) == 2 and any(value[0] is first or value[0] == first for first in FIRST):
        assert f"{field}[1]" in message or f"{field}: item 1" in message


@dataclass(frozen=True)
class Entry:
    """One argument of one entry point."""

    name: str  # of the entry point
    field: str  # as messages spell it
    wrong: list[Any]
    call: Callable[[Any], object]

    @property
    def id(self) -> str:
        return f"{self.name}-{self.field}"


VALUE = object()  # stands where the wrong value goes


def calling(function: Callable[..., object], *arguments: Any, **keywords: Any) -> Callable[[Any], object]:
    """The function over these arguments, of which one is the value."""

    def call(value: Any) -> object:
        places = [value if one is VALUE else one for one in arguments]
        return function(*places, **{name: value if one is VALUE else one for name, one in keywords.items()})

    return call


def by_id(entry: Entry) -> str:
    return entry.id


# ---------------------------------------------------------------------------------------------------- configuration

STRUCTURES: list[Any] = [
    uform.ImageShape,
    uform.VideoShape,
    uform.AudioShape,
    uform.BatchShape,
    uform.Masking,
    uform.Contrastive,
    uform.LateInteraction,
    uform.Choices,
    uform.Schedule,
    uform.Optimizer,
    uform.MeshOptions,
    uform.MeshDescription,
]


def not_shape(kind: Any, *tuples: tuple[Any, ...]) -> list[Any]:
    """Neither a shape nor a tuple of its fields; one of no fields is a shape of zeros."""
    return [*[wrong for wrong in not_instance(kind) if not isinstance(wrong, tuple)], *tuples]


WIDTHS = [*NOT_SEQUENCE, b"ab", range(17), range(10**12), *[[0, wrong] for wrong in [*NOT_INT, *OUT_OF_RANGE]]]
JOBS = [wrong for wrong in NOT_TEXT if wrong is not None]
SPECIAL: dict[tuple[Any, str], list[Any]] = {
    (uform.BatchShape, "image"): not_shape(uform.ImageShape, (1, 2, 3), ("x",), (1.5,), (2**31,), ([1],), (None,)),
    (uform.BatchShape, "video"): not_shape(uform.VideoShape, (1,) * 5, (1, "x")),
    (uform.BatchShape, "audio"): not_shape(uform.AudioShape, (1, 2, 3), (True,), (HUGE,)),
    (uform.Contrastive, "matryoshka_dimensions"): WIDTHS,
    (uform.MeshOptions, "directory"): NOT_PATH,
    (uform.MeshOptions, "job"): [*JOBS, "a\0b", "../b", "\ud800"],
    (uform.MeshDescription, "transport"): NOT_TEXT,
    (uform.MeshDescription, "job"): JOBS,
}


def wrong_for(made: Any, name: str) -> list[Any]:
    if (made, name) in SPECIAL:
        return SPECIAL[made, name]
    default = getattr(made(), name)
    if isinstance(default, enum.Enum):
        return not_member(type(default))
    return [*NOT_FLOAT, *NOT_FINITE] if isinstance(default, float) else [*NOT_INT, *OUT_OF_RANGE]


def configuration() -> Iterator[Entry]:
    for made in STRUCTURES:
        for name in made._fields:
            yield Entry(made.__name__, f"{made.__name__}.{name}", wrong_for(made, name), calling(made, **{name: VALUE}))
    for name in uform.TrainerStepStats().__getstate__():
        wrong = [*NOT_FLOAT, *NOT_FINITE]
        if name in ("step", "truncated", "dropped"):
            wrong = [*NOT_INT, *OUT_OF_RANGE, -1]
        elif name == "extra":
            wrong = [3, "x", None, [], {3: 1.0}, {"x": "y"}, {"x": NAN}, {"x": None}, *OBJECTS]
        set_field = calling(setattr, uform.TrainerStepStats(), name, VALUE)
        yield Entry("TrainerStepStats", f"TrainerStepStats.{name}", wrong, set_field)


@pytest.mark.parametrize("entry", list(configuration()), ids=by_id)
def test_configuration(entry: Entry) -> None:
    for value in entry.wrong:
        refusal(entry.call, value, entry.field)


IDS: list[Any] = [
    *NOT_SEQUENCE,
    None,
    *[[0, wrong] for wrong in [*NOT_INT, -1, HUGE]],
    np.zeros(2),
    np.zeros((2, 1), int),
]
WEIGHTS: list[Any] = [
    *NOT_SEQUENCE,
    *[[0, wrong] for wrong in [*NOT_FLOAT, HUGE, -HUGE, 1e300]],
    np.zeros(2, bool),
    b"ab",
    np.zeros((2, 1), np.float32),
    np.array([0, 1e300]),
]
OFFSETS = [0, 2]
EDGES: dict[str, tuple[list[Any], Callable[[Any], tuple[Any, ...]]]] = {
    "offsets": ([*IDS, [0, 2**64]], lambda value: (value, [0, 1])),
    "ids": ([*IDS, [0, 2**32]], lambda value: (OFFSETS, value)),
    "weights": (WEIGHTS, lambda value: (OFFSETS, [0, 1], value)),
}


def edges_with(fields: Callable[[Any], tuple[Any, ...]], value: Any) -> uform.Edges:
    return uform.Edges(**dict(zip(("offsets", "ids", "weights"), fields(value), strict=False)))


def relations_with(edge_set: str, fields: Callable[[Any], tuple[Any, ...]], value: Any) -> uform.Relations:
    return uform.Relations(**{edge_set: fields(value)})


def edge_entries() -> Iterator[Entry]:
    for name, (wrong, fields) in EDGES.items():
        yield Entry("Edges", f"Edges.{name}", wrong, calling(edges_with, fields, VALUE))
        for edge_set in ("attract", "repel", "ignore"):
            call = calling(relations_with, edge_set, fields, VALUE)
            yield Entry("Relations", f"Relations.{edge_set}.{name}", wrong, call)


@pytest.mark.parametrize("entry", list(edge_entries()), ids=by_id)
def test_edges_name_their_set(entry: Entry) -> None:
    for value in entry.wrong:
        refusal(entry.call, value, entry.field)


@pytest.mark.parametrize("edge_set", ["attract", "repel", "ignore"])
def test_sets_of_edges(edge_set: str) -> None:
    wrong = [3, True, "x", {}, [], [[0], []], np.arange(3), uform.Relations(), uform.Edges, *OBJECTS, (1, 2, 3, 4)]
    for value in wrong:
        refusal(calling(uform.Relations, **{edge_set: VALUE}), value, f"Relations.{edge_set}")


@pytest.mark.parametrize("made", [*STRUCTURES, uform.Edges, uform.Relations])
def test_positions_and_unknown_fields(made: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{made.__name__} takes no positional arguments, not 2: name its fields, "):
        made([0], [1])
    with pytest.raises(TypeError, match=f"^{made.__name__} has no field 'colour'"):
        made(colour=3)


def test_statistics_are_made_empty() -> None:
    made: Any = uform.TrainerStepStats
    for call in (lambda: made(3), lambda: made(loss=1.0)):
        with pytest.raises(TypeError, match="TrainerStepStats takes no arguments"):
            call()
    for state in (3, None, {"colour": 1}, {"loss": "x"}, [("loss", 1.0)]):
        with pytest.raises((TypeError, ValueError), match=r"^state |^TrainerStepStats\.loss "):
            uform.TrainerStepStats().__setstate__(state)  # type: ignore[arg-type]


class Whole(int):
    pass


class Real(float):
    pass


class Text(str):
    pass


def test_subclasses_and_numpy_s_numbers_are_taken() -> None:
    for number in (Whole(3), np.int8(3), np.uint64(3), np.array(3)):
        assert uform.Schedule(steps=number).steps == 3  # type: ignore[arg-type]
        assert type(uform.Schedule(steps=number).steps) is int  # type: ignore[arg-type]
    for real in (Real(0.5), np.float32(0.5), np.float16(0.5), Fraction(1, 2), np.longdouble(0.5)):
        assert uform.Schedule(learning_rate=real).learning_rate == 0.5  # type: ignore[arg-type]
    assert uform.Contrastive(negatives=np.int64(1)).negatives is uform.Negatives.NAMED  # type: ignore[arg-type]
    job = uform.MeshOptions(job=Text("run")).job
    assert job == "run"
    assert type(job) is str


# ---------------------------------------------------------------------------------------------------- verbs

ONE: tuple[list[Modality], list[str]] = [Modality.TEXT], ["a text to cover"]
TWO = {"modalities": [Modality.TEXT] * 2, "contents": ["a", "b"]}
HEALTHY = Call(["a", "some text to cover", picture(8, 8)], attract=((0, 1, 1.0), (1, 2, 1.0)))


@pytest.fixture(scope="module")
def twins() -> tuple[uform.Trainer, uform.Trainer]:
    made = [make_trainer(objective=Objective.JOINT, batch=shape(images=True), seed=8) for _ in range(2)]
    return made[0], made[1]


@pytest.fixture(scope="module")
def model(twins: tuple[uform.Trainer, uform.Trainer], tmp_path_factory: pytest.TempPathFactory) -> uform.Model:
    path = tmp_path_factory.mktemp("bad_input") / "checkpoint.safetensors"
    twins[0].save(path)
    return uform.Model.init_ram(ram(), path)


STEP: dict[str, list[Any]] = {
    "modalities": [*not_members(Modality), None],
    "contents": CONTENTS,
    "bags": not_words(2**32 - 1),
    "temperature_groups": [*not_words(2**32 - 1), [0, 1]],
    "sides": [*not_members(LateInteractionSide), [0, 1], [LateInteractionSide.NONE, LateInteractionSide.DOCUMENT]],
    "choices": CHOICES,
    "choice_targets": TARGETS,
    "relations": not_instance(uform.Relations),
    "arena": not_instance(uform.Arena),
    "outputs_scalar": not_member(Scalar),
    "stats": not_instance(uform.TrainerStepStats),
}
EMBED = {name: STEP[name] for name in ("modalities", "contents", "bags", "arena", "outputs_scalar")}


def call_of(verb: Callable[..., object], name: str) -> Callable[[Any], object]:
    """The verb over two texts, with one argument replaced."""

    def call(value: Any) -> object:
        keywords: dict[str, Any] = {**TWO, name: value}
        if name == "choice_targets":
            keywords["choices"] = ["yes"]
        answer = verb(keywords.pop("modalities"), keywords.pop("contents"), **keywords)
        return answer.result() if isinstance(answer, uform.Deferred) else answer

    return call


@pytest.mark.parametrize("name", STEP)
def test_step_refuses_and_goes_on_as_its_twin(twins: tuple[uform.Trainer, uform.Trainer], name: str) -> None:
    """Not even a random draw is lost, and the statistics given along are left alone."""
    asked, twin = twins
    stats = uform.TrainerStepStats()
    stats.step, stats.extra = 77, {"kept": 1.0}
    untouched = copy.copy(stats)
    before = digest(asked)
    verb = asked.step if name == "stats" else lambda *given_, **named: asked.step(*given_, **{"stats": stats, **named})
    for value in STEP[name]:
        refusal(call_of(verb, name), value, name)
        assert stats == untouched
    assert digest(asked) == before
    answers = [HEALTHY.step(trainer) for trainer in (asked, twin)]
    assert answers[0].stats == answers[1].stats
    np.testing.assert_array_equal(answers[0].embeddings, answers[1].embeddings)


@pytest.mark.parametrize("name", STEP)
def test_each_refusal_alone_harms_nothing(twins: tuple[uform.Trainer, uform.Trainer], name: str) -> None:
    asked, twin = twins
    for value in STEP[name]:
        with pytest.raises((TypeError, ValueError)):
            call_of(asked.step, name)(value)
        assert HEALTHY.step(asked).stats == HEALTHY.step(twin).stats


@pytest.mark.parametrize("name", STEP)
def test_deferred_steps_are_refused(twins: tuple[uform.Trainer, uform.Trainer], name: str) -> None:
    asked, _ = twins
    step = asked.deferred(asked.executor).step
    for value in STEP[name]:
        refusal(call_of(step, name), value, name)


@pytest.mark.parametrize("name", EMBED)
def test_embed(model: uform.Model, name: str) -> None:
    before = model.embed(*ONE).numpy().copy()
    for verb in (model.embed, model.on(model.executor).embed, model.deferred(model.executor).embed):
        for value in EMBED[name]:
            refusal(call_of(verb, name), value, name)
    assert np.array_equal(model.embed(*ONE).numpy(), before)


def test_sides_that_nothing_reads_are_refused() -> None:
    """Where something reads them they are taken; sides of NONE say nothing, and nothing is lost."""
    plain, crossed = (
        make_trainer(objective=Objective.CONTRASTIVE, contrastive=uform.Contrastive(ambient_scope=scope))
        for scope in (AmbientScope.EVERY, AmbientScope.CROSS_SIDE)
    )
    texts, sides = [Modality.TEXT] * 2, [LateInteractionSide.NONE, LateInteractionSide.QUERY_AND_DOCUMENT]
    with pytest.raises(ValueError, match=r"sides\[1\] is QUERY_AND_DOCUMENT: expected NONE, since the run has neither"):
        plain.step(texts, ["a", "b"], sides=sides)
    crossed.step(texts, ["a", "b"], sides=sides)
    plain.step(texts, ["a", "b"], sides=[LateInteractionSide.NONE] * 2)


NORM = 64  # values of the parameter `norm`
VALUES: list[Any] = [
    None,
    3,
    "x",
    b"x",
    {},
    iter([0.0] * NORM),
    [object()] * NORM,
    [[1], [1, 2], [3]],
    [HUGE] * NORM,
    np.zeros(NORM - 1),
    np.zeros((NORM, 1)),
    np.full(NORM, 1e300),
    *[np.zeros(NORM, kind) for kind in (bool, complex, "U1", "S1", object, "datetime64[s]", [("x", "f4")])],
    *OBJECTS,
]
VECTORS, LOGITS = np.eye(2, 4, dtype=np.float32), np.zeros((2, 256), np.float32)
NOT_EXECUTOR = not_instance(uform.Executor)
NOT_COUNT = [*NOT_INT, *OUT_OF_RANGE, -1]
LOSS_OPTIONS: dict[str, list[Any]] = {
    "relations": not_instance(uform.Relations),
    "contrastive": not_instance(uform.Contrastive),
    "modalities": not_members(Modality),
    "sides": not_members(LateInteractionSide),
    "temperature_groups": [*not_words(2**32 - 1), [0, 1]],
}
PLUGINS: list[Any] = [
    *[3, "x", [], {"x"}, {3: None}, {"x": 3}, {"x": "y"}, {"\ud800": None}, {"a\0b": None}, {"unknown": None}],
    *[{"x": np.zeros((2, 2))[:, ::2]}, {"masked": b""}],
    *OBJECTS,
]
INIT: dict[str, list[Any]] = {
    "mesh": not_instance(uform.Mesh),
    "resume": NOT_PATH,
    "depth": [*NOT_INT, *OUT_OF_RANGE, -1, 2**31 - 1],
    "hidden": [*NOT_INT, *OUT_OF_RANGE, -64, 63],
    "batch": not_instance(uform.BatchShape),
    "objective": not_member(Objective),
    "masking": not_instance(uform.Masking),
    "contrastive": not_instance(uform.Contrastive),
    "late_interaction": not_instance(uform.LateInteraction),
    "choices": not_instance(uform.Choices),
    "schedule": not_instance(uform.Schedule),
    "seed": NOT_COUNT,
    "progress": NOT_CALLABLE,
    "progress_steps": NOT_COUNT,
    "optimizer": not_instance(uform.Optimizer),
    "plugins": PLUGINS,
}


def entries(trainer: uform.Trainer, folder: Path) -> Iterator[Entry]:
    """Every entry point but `step` and `embed`."""
    yield from trainer_entries(trainer, folder / "never")
    yield from model_entries()
    yield from loss_entries()
    yield from device_entries()
    yield from deferred_entries(trainer)


def trainer_entries(trainer: uform.Trainer, path: Path) -> Iterator[Entry]:
    for name, wrong in INIT.items():
        yield Entry("Trainer.init_ram", name, wrong, calling(make_trainer, **{name: VALUE}))
    yield Entry("Trainer.init_ram", "executor", NOT_EXECUTOR, uform.Trainer.init_ram)
    yield Entry("Trainer.init_vram", "executor", NOT_EXECUTOR, uform.Trainer.init_vram)
    yield Entry("Trainer.on", "executor", NOT_EXECUTOR, trainer.on)
    yield Entry("Trainer.deferred", "executor", NOT_EXECUTOR, trainer.deferred)
    yield Entry("Trainer.read", "name", [*NOT_TEXT, "colour", "\ud800", "a\0b"], trainer.read)
    yield Entry("Trainer.read", "what", [*NOT_TEXT, "colour"], calling(trainer.read, "norm", VALUE))
    yield Entry("Trainer.write", "name", [*NOT_TEXT, "colour"], calling(trainer.write, VALUE, np.zeros(NORM)))
    yield Entry("Trainer.write", "array", VALUES, calling(trainer.write, "norm", VALUE))
    yield Entry("Trainer.save", "path", [*NOT_PATH, None], trainer.save)
    yield Entry("Trainer.save", "progress", NOT_CALLABLE, calling(trainer.save, path, progress=VALUE))
    yield Entry("Trainer.save", "progress_steps", NOT_COUNT, calling(trainer.save, path, progress_steps=VALUE))


def model_entries() -> Iterator[Entry]:
    for name, make in (("Model.init_ram", uform.Model.init_ram), ("Model.init_vram", uform.Model.init_vram)):
        yield Entry(name, "executor", NOT_EXECUTOR, calling(make, VALUE, "x"))
        yield Entry(name, "path", [*NOT_PATH, None], calling(make, ram(), VALUE))


def loss_entries() -> Iterator[Entry]:
    contrastive, masked_bytes = uform.losses.contrastive, uform.losses.masked_bytes
    for name, wrong in LOSS_OPTIONS.items():
        keywords: dict[str, Any] = {"relations": None, name: VALUE}
        yield Entry("losses.contrastive", name, wrong, calling(contrastive, ram(), VECTORS, **keywords))
    unrelated = calling(contrastive, VALUE, VECTORS, relations=None)
    yield Entry("losses.contrastive", "executor", NOT_EXECUTOR, unrelated)
    embedded = calling(contrastive, ram(), VALUE, relations=None)
    yield Entry("losses.contrastive", "embeddings", not_matrix((2, 4)), embedded)
    yield Entry("losses.masked_bytes", "executor", NOT_EXECUTOR, calling(masked_bytes, VALUE, LOGITS, b"ab"))
    narrow = np.zeros((2, 255), np.float32)
    yield Entry(
        "losses.masked_bytes", "logits", [*not_matrix((2, 256)), narrow], calling(masked_bytes, ram(), VALUE, b"ab")
    )
    yield Entry("losses.masked_bytes", "targets", not_words(255), calling(masked_bytes, ram(), LOGITS, VALUE))


def device_entries() -> Iterator[Entry]:
    """Executors, arenas, meshes and decoders."""
    for name in ("devices", "threads"):
        yield Entry("Executor.for_ram", name, NOT_COUNT, calling(uform.Executor.for_ram, **{name: VALUE}))
    yield Entry("Arena.for_ram", "capacity", NOT_COUNT, uform.Arena.for_ram)
    yield Entry("Arena.for_vram", "device", [*NOT_INT, *OUT_OF_RANGE], uform.Arena.for_vram)
    yield Entry("Arena.for_vram", "capacity", NOT_COUNT, calling(uform.Arena.for_vram, 0, VALUE))
    options = uform.MeshOptions()
    yield Entry("Mesh.bootstrap", "executor", NOT_EXECUTOR, calling(uform.Mesh.bootstrap, VALUE, options))
    not_options = not_instance(uform.MeshOptions)
    yield Entry("Mesh.bootstrap", "options", not_options, calling(uform.Mesh.bootstrap, ram(), VALUE))
    not_modality = not_member(Modality)
    yield Entry("get_decoder", "modality", not_modality, uform.get_decoder)
    yield Entry("set_decoder", "modality", [*not_modality, Modality.TEXT], calling(uform.set_decoder, VALUE, print))
    yield Entry("set_decoder", "decoder", NOT_CALLABLE, calling(uform.set_decoder, Modality.AUDIO, VALUE))


def deferred_entries(trainer: uform.Trainer) -> Iterator[Entry]:
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    future.set_result(None)
    deferred = uform.Deferred(future)
    yield Entry("Deferred", "future", [3, None, "x", [], trainer, concurrent.futures.Future, *OBJECTS], uform.Deferred)
    not_timeout = [wrong for wrong in [*NOT_FLOAT, *NOT_FINITE] if wrong is not None]
    yield Entry("Deferred.result", "timeout", not_timeout, deferred.result)
    yield Entry("Deferred.add_done_callback", "callback", [*NOT_CALLABLE, None], deferred.add_done_callback)
    not_receiver = [3, None, "x", uform.Trainer, ram(), *OBJECTS]
    yield Entry("On", "receiver", not_receiver, calling(uform.On, VALUE, ram()))
    yield Entry("On", "executor", NOT_EXECUTOR, calling(uform.On, trainer, VALUE))
    yield Entry("DeferredOn", "receiver", not_receiver, calling(uform.DeferredOn, VALUE, ram()))
    yield Entry("DeferredOn", "executor", NOT_EXECUTOR, calling(uform.DeferredOn, trainer, VALUE))


BARE = uform.Trainer.__new__(uform.Trainer)


@pytest.mark.parametrize("place", [entry.id for entry in entries(BARE, Path())])
def test_entry_points(twins: tuple[uform.Trainer, uform.Trainer], tmp_path: Path, place: str) -> None:
    asked, twin = twins
    entry = next(entry for entry in entries(asked, tmp_path) if entry.id == place)
    for value in entry.wrong:
        refusal(entry.call, value, entry.field)
    assert list(tmp_path.iterdir()) == []
    assert HEALTHY.step(asked).stats == HEALTHY.step(twin).stats


def test_written_values_that_are_not_finite_stay() -> None:
    trainer = make_trainer()
    for number in (NAN, INFINITY, -INFINITY):
        trainer.write("norm", np.full(NORM, number))
        np.testing.assert_array_equal(trainer.read("norm"), np.full(NORM, number, np.float32))
        with pytest.raises(FloatingPointError):
            trainer.step(*ONE)
    for numbers in ([1] * NORM, np.ones(NORM, np.float16), np.ones(NORM, np.int8), tuple(np.ones(NORM))):
        trainer.write("norm", numbers)
        assert np.array_equal(trainer.read("norm"), np.ones(NORM))
        trainer.step(*ONE)


@pytest.mark.parametrize("number", [-INFINITY, INFINITY, NAN, -0.5, 5.0, 4.605171])
def test_written_values_keep_the_bounds_of_updates(number: float) -> None:
    """An inverse temperature of zero would make no loss infinite, and the next update NaN."""
    trainer, name = make_trainer(objective=uform.Objective.CONTRASTIVE), "contrastive.log_inverse_temperature"
    before = trainer.read(name)
    with pytest.raises(ValueError, match=rf"^array\[0\] is {number:.7g}: {name} stays within 0 and 4\.6051702$"):
        trainer.write(name, [number])
    np.testing.assert_array_equal(trainer.read(name), before)


def test_losses_show_one_value_of_a_long_row() -> None:
    vectors = np.zeros((3, 5000), np.float32)
    vectors[1, 4000] = NAN
    with pytest.raises(ValueError, match=r"^embeddings\[1\] is not finite: it has nan in column 4000$"):
        uform.losses.contrastive(ram(), vectors, relations=None)


# ---------------------------------------------------------------------------------------------------- objects


def test_bare_objects_crash_nothing() -> None:
    """What nothing initialised answers or raises; the process goes on, and what is raised says something."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.helpers.bare", *bare.modules()], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr[-2000:]
    lines = ran.stdout.splitlines()
    assert lines[-1] == "survived"
    assert sum(line.startswith("== ") for line in lines) > 30
    for line in lines[:-1]:
        assert line.startswith("== ") or re.search(r" \.\.\. (done|\w+: .+)$", line), line


def test_verbs_of_bare_objects_say_what_to_use() -> None:
    trainer, model = BARE, uform.Model.__new__(uform.Model)
    calls: dict[str, list[Callable[[], object]]] = {
        "the trainer is not initialised": [
            trainer.describe,
            lambda: trainer.step(*ONE),
            lambda: trainer.save("x"),
            lambda: trainer.read("norm"),
            lambda: trainer.write("norm", [1.0]),
        ],
        "receiver is a Trainer that is not initialised": [lambda: trainer.on(ram()), lambda: trainer.deferred(ram())],
        "the model is not initialised": [model.describe, lambda: model.embed(*ONE)],
        "receiver is a Model that is not initialised": [lambda: model.on(ram()), lambda: model.deferred(ram())],
        "the mesh is not initialised": [uform.Mesh.__new__(uform.Mesh).describe],
        "the Deferred is not initialised": [
            uform.Deferred.__new__(uform.Deferred).result,
            uform.Deferred.__new__(uform.Deferred).done,
            uform.Deferred.__new__(uform.Deferred).cancel,
            lambda: uform.Deferred.__new__(uform.Deferred).add_done_callback(print),
        ],
    }
    for message, refused in calls.items():
        for call in refused:
            with pytest.raises(ValueError, match=message):
                call()
    receivers: list[Any] = [uform.On, uform.DeferredOn]
    for kind in receivers:
        with pytest.raises(AttributeError, match=f"step: the {kind.__name__} is not initialised"):
            _ = kind.__new__(kind).step
    unmade: list[Any] = [uform.Trainer, uform.Model, uform.Mesh]
    for made in unmade:
        with pytest.raises(TypeError, match=rf"{made.__name__}\(\) is not how"):
            made(3, depth=4)


def test_calls_run_once(twins: tuple[uform.Trainer, uform.Trainer], model: uform.Model) -> None:
    trainer, twin = twins
    step = uform.Trainer._calls["step"](trainer, *ONE)
    assert step() is None
    embed = uform.Model._calls["embed"](model, *ONE)
    embed()
    for call in (step, embed):
        with pytest.raises(ValueError, match="the call was not prepared, or has run"):
            call()
    twin.step(*ONE)
    assert HEALTHY.step(trainer).stats == HEALTHY.step(twin).stats


def test_what_lives_in_this_process_is_not_pickled(
    twins: tuple[uform.Trainer, uform.Trainer], model: uform.Model
) -> None:
    executor = model.executor
    pending = model.deferred(executor).embed(*ONE)
    pending.result()
    mesh = uform.Mesh.bootstrap(executor, uform.MeshOptions())
    arena = uform.Arena.for_ram()
    buffer = model.embed(*ONE, arena=arena)
    lived = (twins[0], model, mesh, executor, arena, buffer, pending, model.on(executor), model.deferred(executor))
    for made in lived:
        for twist in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=f"{type(made).__name__} cannot be pickled or copied"):
                twist(made)


# ---------------------------------------------------------------------------------------------------- anything

ANYTHING = settings(max_examples=60, deadline=None, database=None)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from(
        [Unreadable(), int, len, 10**400, -(10**400), *Modality, *Objective, *Scalar, Decimal(1), Fraction(1, 3)]
    ),
)
kinds = st.one_of(arrays_of.scalar_dtypes(), st.just(np.dtype(object)))
arrays = kinds.flatmap(
    lambda kind: (
        arrays_of.arrays(kind, arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
        if kind.kind != "O"
        else st.just(np.array([None, 0]))
    )
)
anything = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        | st.lists(inner, max_size=3).map(iter)
    ),
    max_leaves=5,
)


def refused_by(call: Callable[[], object]) -> str | None:
    """The type and the message of what is raised for a wrong value; None where the value is taken."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def taken_or_refused(call: Callable[[], object], fields: tuple[str, ...]) -> None:
    """Whatever is given is taken, or refused by a message that names its field."""
    message = refused_by(call)
    if message is not None:
        assert message.startswith(("TypeError: ", "ValueError: ")), message
        assert any(field in message for field in fields), message
        assert len(message) < 600


@seed(21)
@ANYTHING
@given(made=st.sampled_from(STRUCTURES), data=st.data())
def test_constructors_take_or_refuse_anything(made: Any, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(made._fields), min_size=1, max_size=3, unique=True))
    fields = {name: data.draw(anything) for name in chosen}
    taken_or_refused(lambda: made(**fields), tuple(f"{made.__name__}.{name}" for name in chosen))


@seed(22)
@ANYTHING
@given(offsets=anything, ids=anything, weights=anything, name=st.sampled_from(["attract", "repel", "ignore"]))
def test_relations_take_or_refuse_anything(offsets: Any, ids: Any, weights: Any, name: str) -> None:
    taken_or_refused(lambda: uform.Edges(offsets=offsets, ids=ids, weights=weights), ("Edges.",))
    taken_or_refused(lambda: uform.Relations(**{name: (offsets, ids, weights)}), (f"Relations.{name}.",))
    taken_or_refused(lambda: uform.Relations(**{name: ids}), (f"Relations.{name}",))


@pytest.fixture(scope="module")
def alone() -> uform.Trainer:
    """A run that takes what it is given, and so has no twin."""
    return make_trainer(objective=Objective.JOINT, batch=shape(images=True))


@pytest.fixture(scope="module")
def undecodable() -> Iterator[None]:
    """Nothing is decoded, whatever is installed."""

    def decode(item: int, encoded: Any, shape: Any) -> Any:
        raise OSError("no picture")

    before = uform.get_decoder(Modality.IMAGE)
    uform.set_decoder(Modality.IMAGE, decode)
    yield
    uform.set_decoder(Modality.IMAGE, before)


@seed(23)
@ANYTHING
@given(name=st.sampled_from(list(STEP)), value=anything)
def test_step_takes_or_refuses_anything(alone: uform.Trainer, name: str, value: Any) -> None:
    expected = (name, "one a content", "choices is of type")  # targets may be fit, but here no choices are made
    taken_or_refused(lambda: call_of(alone.step, name)(value), expected)


@seed(24)
@ANYTHING
@given(kinds=st.lists(st.integers(0, 1), min_size=2, max_size=2), contents=st.lists(anything, min_size=2, max_size=2))
def test_contents_of_any_kind_are_taken_or_refused(
    alone: uform.Trainer, undecodable: None, kinds: list[int], contents: list[Any]
) -> None:
    taken_or_refused(lambda: alone.step(kinds, contents), ("contents[",))  # type: ignore[arg-type]


@seed(25)
@ANYTHING
@given(name=st.sampled_from(list(EMBED)), value=anything)
def test_embed_takes_or_refuses_anything(model: uform.Model, name: str, value: Any) -> None:
    taken_or_refused(lambda: call_of(model.embed, name)(value), (name, "one a content"))


@seed(26)
@ANYTHING
@given(name=st.sampled_from(["embeddings", "logits", "targets", *LOSS_OPTIONS]), value=anything)
def test_losses_take_or_refuse_anything(name: str, value: Any) -> None:
    contrastive, masked_bytes = uform.losses.contrastive, uform.losses.masked_bytes
    calls: dict[str, Callable[[], object]] = {
        "embeddings": lambda: contrastive(ram(), value, relations=None),
        "logits": lambda: masked_bytes(ram(), value, b"ab"),
        "targets": lambda: masked_bytes(ram(), LOGITS, value),
    }
    other: dict[str, Any] = {"relations": None, name: value}
    taken_or_refused(
        calls.get(name, lambda: contrastive(ram(), VECTORS, **other)), (name, "one a content", "one a row")
    )
