"""Steps of drawn arguments: types, strides, lengths, lone surrogates, huge offsets, NaN weights.

Every one is done or refused by an error of ours, and what is refused leaves every bit of the run as it was. Under
sanitizers (tests/build/test_native.py) the same steps show that the core reads nothing else.
"""

from __future__ import annotations

import array
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import uform
from tests.helpers.runs import digest, make_trainer, picture, shape
from uform import AmbientScope, Contrastive, Modality, Objective

MOST = 5  # items of a call
FUZZ = settings(
    max_examples=120,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
DTYPES = [
    "u1",
    "i1",
    "u2",
    "i2",
    "u4",
    "i4",
    "u8",
    "i8",
    ">u4",
    ">i8",
    "f2",
    "f4",
    "f8",
    "?",
    "c8",
    "O",
    "U1",
    "S1",
    "M8[s]",
]
HUGE = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, -(2**31), -(2**63)]


def pick(draw: st.DrawFn, options: list[Any]) -> Any:
    """One of what may have no hash."""
    return options[draw(st.integers(0, len(options) - 1))]


def cast(numbers: list[Any], dtype: str) -> Any:
    """The numbers in a type; as they are where it does not hold them."""
    try:
        with np.errstate(all="ignore"):
            return np.array(numbers, dtype)
    except (OverflowError, ValueError, TypeError):
        return numbers


@st.composite
def vectors(draw: st.DrawFn, right: list[Any], dtype: str) -> Any:
    """Numbers as lists, arrays and other buffers, right or spoilt in a value, a type, an extent, a stride."""
    numbers = list(right)
    twist = draw(st.sampled_from(["none", "none", "value", "type", "longer", "shorter", "stride", "shape", "list"]))
    if twist == "value" and numbers:
        place = draw(st.integers(0, len(numbers) - 1))
        numbers[place] = draw(st.sampled_from([*HUGE, math.nan, math.inf, -math.inf, None, "x", 1.5, True]))
        return pick(draw, [numbers, cast(numbers, dtype), cast(numbers, "f4"), cast(numbers, "i8")])
    if twist == "type":
        return cast(numbers, draw(st.sampled_from(DTYPES)))
    if twist == "longer":
        return cast([*numbers, draw(st.sampled_from([0, 1, *HUGE]))], dtype)
    if twist == "shorter":
        return cast(numbers[: draw(st.integers(0, max(len(numbers) - 1, 0)))], dtype)
    if twist == "list":
        return pick(draw, [numbers, tuple(numbers), iter(numbers), set(numbers), None, 7, "text", b"bytes"])
    made = cast(numbers, dtype)
    if twist == "none" or not isinstance(made, np.ndarray):
        return made
    if twist == "shape":
        return pick(draw, [made[None], made[:, None], np.array(7, made.dtype), made[:0], made[:0, None]])
    wide = np.repeat(made, 3)
    spaced = np.ndarray(made.shape, made.dtype, np.zeros(made.nbytes + 8, np.uint8), 3)
    spaced[...] = made
    same = np.broadcast_to(made[:1], made.shape)
    return pick(draw, [wide[::3], made[::-1].copy()[::-1], spaced, same, made.data])


@st.composite
def texts(draw: st.DrawFn) -> Any:
    good = draw(st.sampled_from(["", "a", "añ漢😀", "a\0b", "long " * 40, "\ufffd"]))
    odd: list[Any] = ["\ud800", "a\udfffb", 7, None, 1.5, b"\xff\xfe", bytearray(b"ab"), memoryview(b"abcdef")[::2]]
    buffers: list[Any] = [np.zeros((2, 2), np.uint8), np.arange(4.0), array.array("H", [1, 2]), np.zeros(6, "u1")[::-2]]
    return pick(draw, [good, good, good, good.encode(), *odd, *buffers])


@st.composite
def pictures(draw: st.DrawFn) -> Any:
    extents = draw(st.sampled_from([(8, 8, 3), (1, 1, 3), (5, 9, 3), (8, 8), (8, 8, 1), (8, 8, 4), (40, 3, 3)]))
    right = picture(*extents[:2], channels=extents[2] if len(extents) == 3 else 1).reshape(extents)
    empty, cut, wide = right[:0], right[:, :0], right.astype(np.uint16)
    strided = [right[::-1], right[:, ::2], right.swapaxes(0, 1), np.broadcast_to(right[:1, :1], extents)]
    wrong = [empty, cut, wide, right.astype(np.float32), right[None], right.ravel(), b"no picture", np.zeros((0, 0, 3))]
    return pick(draw, [right, right, *strided, *wrong])


@st.composite
def edges(draw: st.DrawFn, items: int, *, weighted: bool) -> Any:
    counts = draw(st.lists(st.integers(0, 2), min_size=items, max_size=items))
    offsets = [0, *np.cumsum(counts, dtype=int).tolist()]
    ids = draw(st.lists(st.integers(0, max(items - 1, 0)), min_size=offsets[-1], max_size=offsets[-1]))
    taken = (draw(vectors(offsets, "u8")), draw(vectors(ids, "u4")))
    if not weighted or draw(st.booleans()):
        return taken
    return (*taken, draw(vectors([1.0] * len(ids), "f4")))


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """A step's arguments; relations as a tuple of the sets, which are only made when the step is tried."""
    items = draw(st.integers(0, MOST))
    if draw(st.booleans()):
        words = draw(st.lists(st.binary(max_size=40), min_size=items, max_size=items))
        places = np.cumsum([0, *map(len, words)], dtype=int).tolist()
        joined = b"".join(words)
        data = pick(
            draw, [joined, joined, bytearray(joined), np.frombuffer(joined * 2, "u1")[::2], "text", np.zeros(3)]
        )
        contents: Any = (data, draw(vectors(places, "u8")))
        kinds = [0] * items
    else:
        kinds = draw(st.lists(st.integers(0, 1), min_size=items, max_size=items))
        contents = [draw(pictures() if kind else texts()) for kind in kinds]
    given_: dict[str, Any] = {}
    if draw(st.booleans()):
        given_["bags"] = draw(vectors([item // 2 for item in range(items)], "u4"))
    if draw(st.booleans()):
        given_["temperature_groups"] = draw(vectors([item % 2 for item in range(items)], "u4"))
    if draw(st.booleans()):
        given_["sides"] = draw(vectors([item % 4 for item in range(items)], "u1"))
    if draw(st.booleans()):
        given_["relations"] = {
            name: draw(edges(items, weighted=name != "ignore"))
            for name in draw(st.sets(st.sampled_from(["attract", "repel", "ignore"])))
        }
    return (draw(vectors(kinds, "u1")), contents), given_


@pytest.fixture(scope="module", params=[1, 2])
def trainer(request: pytest.FixtureRequest) -> Iterator[uform.Trainer]:
    made = make_trainer(
        devices=request.param,
        objective=Objective.JOINT,
        batch=shape(rows=4, columns=32, segments=4, images=True),
        contrastive=Contrastive(temperature_groups=2, ambient_scope=AmbientScope.CROSS_SIDE),
    )
    yield made
    made.close()


@seed(11)
@FUZZ
@given(call=calls())
def test_a_step_is_done_or_refused_with_nothing_lost(
    trainer: uform.Trainer, call: tuple[tuple[Any, Any], dict[str, Any]]
) -> None:
    positional, named = call
    before, counted = digest(trainer), trainer.describe()["step"]
    arena = uform.Arena.for_ram()
    try:
        if "relations" in named:
            named = {**named, "relations": uform.Relations(**named["relations"])}
        answered = trainer.step(*positional, **named, arena=arena)
    except (ValueError, TypeError):
        assert digest(trainer) == before
        assert trainer.describe()["step"] == counted
        assert arena.used == 0
        return
    assert answered is not None
    assert np.isfinite(answered.numpy()).all()
    assert trainer.describe()["step"] == counted + 1


def test_the_run_goes_on(trainer: uform.Trainer) -> None:
    """After all of the above, a step is what the same step is on a run that was refused nothing."""
    contents = ["a", "b", picture(8, 8)]
    modalities = [Modality.TEXT, Modality.TEXT, Modality.IMAGE]
    stats = uform.TrainerStepStats()
    trainer.step(modalities, contents, relations=uform.Relations(attract=([0, 1, 2, 2], [1, 0])), stats=stats)
    assert math.isfinite(stats.loss)
    assert stats.step == trainer.describe()["step"]
