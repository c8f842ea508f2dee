"""Checkpoints with something wrong in them: refused by name, in bounded memory, or opened as exactly what they say."""

from __future__ import annotations

import json
import math
import random
import re
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.checkpoints import CheckpointFile, Place, Tensor, places, put, take_out, value_at, write_raw
from tests.helpers.runs import make_trainer, ram, resume, shape
from uform import Contrastive, Masking, Objective, PairLossForm, Schedule

Opening = Callable[[Path], Any]

ROOM = 1 << 30  # bytes that opening any of these files may take
MISSING = object()
WRONG = [
    MISSING,
    None,
    True,
    "text",
    "",
    -1,
    0,
    1,
    100,
    0.5,
    -0.5,
    1e30,
    -1e30,
    5e-324,
    math.nan,
    math.inf,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32 + 8,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    [],
    [1, 2],
    [8, 8],
    [64, 8],
    [0],
    [-1],
    ["depth"],
    list(range(1, 40)),
    {},
    {"nested": {"object": 1}},
]
PLUGINS = ("modalities", "objectives")


def open_model(path: Path) -> uform.Model:
    return uform.Model.init_ram(ram(), path)


OPENINGS: list[Opening] = [resume, open_model]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> CheckpointFile:
    """A run with every section, some of its fields given and some derived."""
    path = tmp_path_factory.mktemp("whole") / "whole.safetensors"
    trainer = make_trainer(
        objective=Objective.JOINT,
        batch=shape(images=True),
        contrastive=Contrastive(matryoshka_dimensions=[8, 64], temperature_groups=2),
        schedule=Schedule(steps=200),
    )
    for _ in range(2):
        Call(["a text", "another"], attract=((0, 1, 1.0),)).step(trainer)
    trainer.save(path)
    return CheckpointFile.read(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "foreign.safetensors"


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Whoever believes a size that only a file claims runs into this limit."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def refusal_of(opening: Opening, path: Path) -> str | None:
    """The message of a refusal, which names the file; None where the file was opened."""
    refusal: Exception
    try:
        opening(path)
    except (ValueError, OSError, MemoryError) as failure:
        refusal = failure
    else:
        return None
    assert path.name in str(refusal)
    assert "plan: parameters " in str(refusal) or not isinstance(refusal, MemoryError)
    return str(refusal)


def parses(value: object) -> bool:
    """Whether the value is JSON at all, in the 64 bits that it is read into."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    return not isinstance(value, float) or math.isfinite(value)


def shows(message: str, value: object) -> bool:
    """Whether a message shows the value: of a list or an object, what is wrong with it."""
    if isinstance(value, dict):
        return any(part in message for part in ("is missing", "{", *value))
    spellings = [json.dumps(value, separators=(",", ":"))[:100]]
    if isinstance(value, int | float):
        spellings.append(f"{value:g}")
    if isinstance(value, list):
        spellings += [str(entry) for entry in value] + [f"{len(value)} entries"]
    return any(spelling in message for spelling in spellings)


def as_described(trainer: uform.Trainer, place: Place) -> Any:
    """What a run says of a place in its configuration."""
    names = {"masked": "masking"}
    described = trainer.describe()
    if place[0] == "network":
        return value_at(described, place[1:])
    if place[0] == "modalities":
        return value_at(described["batch"], place[1:])
    if place[0] == "objectives":
        return value_at(described, (names.get(place[1], place[1]), *place[2:]))
    return value_at(described, place)


def test_the_whole_file_opens(whole: CheckpointFile, path: Path) -> None:
    whole.write(path)
    trainer = resume(path)
    assert open_model(path).describe()["step"] == trainer.describe()["step"] == 2
    again = path.with_name("again")
    trainer.save(again)
    assert CheckpointFile.read(again) == whole
    assert len(list(places(whole.configuration))) > 45


def test_every_value_of_the_configuration(whole: CheckpointFile, path: Path) -> None:
    """Each with each wrong value: refused with the file's, the field's name and the value, or taken for what it is."""
    given = whole.configuration
    refused = opened = 0
    for place in places(given):
        for value in WRONG:
            if value is MISSING:
                configuration = take_out(given, place)
            elif type(value) is type(value_at(given, place)) and value == value_at(given, place):
                continue
            else:
                configuration = put(given, place, value)
            whole.with_configuration(configuration).write(path)
            for opening in OPENINGS:
                case = f"{opening.__name__} with {'.'.join(place)} = {'missing' if value is MISSING else value!r}"
                message = refusal_of(opening, path)
                if message is None:
                    opened += 1
                    check_taken(opening(path), place, value, configuration, case)
                    continue
                refused += 1
                named = place[:2][-1] if value is MISSING and place[0] in PLUGINS else place[-1]
                if (place[-1], value) == ("max_edges_per_device", 2**31 - 1):
                    assert re.search(r"staging \d+, .*contrastive \d", message)  # a size like another, but too large
                    continue
                assert named in message or not parses(value), f"{case}: {message}"
                assert value is MISSING or shows(message, value) or not parses(value), f"{case}: {message}"
    assert refused > 2000
    assert opened > 50


def check_taken(opened: object, place: Place, value: object, configuration: Any, case: str) -> None:
    """What is not refused is what the file says, and nothing else changes."""
    if not isinstance(opened, uform.Trainer):
        return
    if place[0] == "given":
        return  # which fields were given changes no value
    if value is MISSING or value == {}:
        assert place[0] in PLUGINS, case  # a field that a plugin has learnt since derives
        return
    assert as_described(opened, place) == value, case
    others = [other for other in places(configuration) if len(other) > 1 and other[0] != "given"]
    for other in others:
        known = value_at(configuration, other)
        if other[:2] != ("modalities", "text") and not isinstance(known, dict):
            assert as_described(opened, other) == known, f"{case}: {other}"


def test_members_that_no_version_knows(whole: CheckpointFile, path: Path) -> None:
    given = whole.configuration
    for place in [(), *places(given)]:
        if not isinstance(value_at(given, place), dict):
            continue
        whole.with_configuration(put(given, (*place, "unheard_of"), 1)).write(path)
        for opening in OPENINGS:
            message = refusal_of(opening, path)
            assert message is not None, place
            assert "unheard_of" in message


def test_plugins_that_are_not_registered(whole: CheckpointFile, path: Path) -> None:
    """Training needs every plugin; inference leaves objectives out, so one that is not here does not matter."""
    given = put(whole.configuration, ("objectives", "their_loss"), {"sharpness": 3})
    whole.with_configuration(put(given, ("given", "objectives", "their_loss"), [])).write(path)
    with pytest.raises(ValueError, match=rf"{path.name}.*objectives\.their_loss: no objective"):
        resume(path)
    assert open_model(path).describe()["plugins"] == {"their_loss": {"sharpness": 3}}
    given = put(whole.configuration, ("modalities", "smell"), {})
    whole.with_configuration(put(given, ("given", "modalities", "smell"), [])).write(path)
    for opening in OPENINGS:
        with pytest.raises(ValueError, match=rf"{path.name}.*modalities\.smell: no modality"):
            opening(path)


def test_names_out_of_a_file_are_made_fit_to_read(whole: CheckpointFile, path: Path) -> None:
    for name in ("", "\0\n\x1b", "n" * 100_000, "Ü" * 500):
        given = put(whole.configuration, ("objectives", name), {})
        whole.with_configuration(put(given, ("given", "objectives", name), [])).write(path)
        with pytest.raises(ValueError, match=path.name) as refusal:
            resume(path)
        assert "no objective of this name" in str(refusal.value)
        assert len(str(refusal.value)) < 1000
        assert str(refusal.value).isprintable()


def test_other_metadata(whole: CheckpointFile, path: Path) -> None:
    for key in ("format", "configuration"):
        for value in (None, "", "uform.checkpoint.2", "[]", "{}", "{", "[" * 1000, '{"network": {}, "network": {}}'):
            metadata = dict(whole.metadata) if value is None else {**whole.metadata, key: value}
            if value is None:
                del metadata[key]
            CheckpointFile(metadata, whole.tensors).write(path)
            for opening in OPENINGS:
                assert refusal_of(opening, path) is not None, (key, value)
    CheckpointFile({**whole.metadata, "comment": "metadata of others do not matter"}, whole.tensors).write(path)
    assert [refusal_of(opening, path) for opening in OPENINGS] == [None, None]


def spoilt_tensors(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Other types and shapes; the bytes fit where they can, so that only what they mean is wrong."""
    count = math.prod(tensor.shape)
    spoilt = {
        "another type of the same size": Tensor("I32" if tensor.dtype == "F32" else "I64", tensor.shape, tensor.data),
        "another type of another size": Tensor("U8", tensor.shape, tensor.data),
        "an unknown type": Tensor("F4", tensor.shape, tensor.data),
        "one axis more": Tensor(tensor.dtype, [*tensor.shape, 1], tensor.data),
        "a huge extent": Tensor(tensor.dtype, [2**40, *tensor.shape], tensor.data),
        "extents that overflow": Tensor(tensor.dtype, [2**33, 2**33], tensor.data),
        "a negative extent": Tensor(tensor.dtype, [-1], tensor.data),
        "twice as long": Tensor(tensor.dtype, [2, *tensor.shape], tensor.data * 2),
        "no values": Tensor(tensor.dtype, [0, *tensor.shape], b""),
    }
    if len(tensor.shape) == 2:
        spoilt["turned round"] = Tensor(tensor.dtype, tensor.shape[::-1], tensor.data)
        spoilt["flat"] = Tensor(tensor.dtype, [count], tensor.data)
    if name.startswith("run."):
        spoilt["a list"] = Tensor(tensor.dtype, [1], tensor.data)
    return {case: other for case, other in spoilt.items() if other != tensor}


def read_by_models(name: str) -> bool:
    """Inference reads weights of the encoder and the modalities, and not those that only training needs."""
    return not name.startswith(("optimizer.", "contrastive.", "image.head"))


def test_every_tensor(whole: CheckpointFile, path: Path) -> None:
    for name, tensor in whole.tensors.items():
        others = {case: {**whole.tensors, name: other} for case, other in spoilt_tensors(name, tensor).items()}
        others["missing"] = {known: other for known, other in whole.tensors.items() if known != name}
        for case, tensors in others.items():
            CheckpointFile(whole.metadata, tensors).write(path)
            message = refusal_of(resume, path)
            assert message is not None, (name, case)
            assert name in message, (name, case)
            inference = refusal_of(open_model, path)
            if read_by_models(name) or wrong_in_itself(case):
                assert inference is not None, (name, case)
                assert name in inference, (name, case)
            else:
                assert inference is None, (name, case, inference)


def wrong_in_itself(case: str) -> bool:
    """What the header itself gives away, whoever reads the tensor."""
    return case in {
        "another type of another size",
        "an unknown type",
        "a huge extent",
        "extents that overflow",
        "a negative extent",
    }


def test_a_tensor_too_many(whole: CheckpointFile, path: Path) -> None:
    """A run would lose it with its next checkpoint; inference reads what it needs."""
    for name in ("blocks.1.norm1", "optimizer.first_moment.run.step", "\0", "n" * 10_000):
        CheckpointFile(whole.metadata, {**whole.tensors, name: Tensor("F32", [2], bytes(8))}).write(path)
        with pytest.raises(ValueError, match=path.name) as refusal:
            resume(path)
        assert "is none of this run's" in str(refusal.value)
        assert len(str(refusal.value)) < 1000
        assert open_model(path).describe()["step"] == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e30])
def test_values_that_no_run_has(whole: CheckpointFile, path: Path, value: float) -> None:
    """At the first, a middle and the last place of each tensor of weights and moments."""
    for name, tensor in whole.tensors.items():
        if tensor.dtype != "F32":
            continue
        count = len(tensor.data) // 4
        for place in sorted({0, count // 2, count - 1}):
            values = np.frombuffer(tensor.data, np.float32).copy()
            values[place] = value
            spoilt = Tensor(tensor.dtype, tensor.shape, values.tobytes())
            CheckpointFile(whole.metadata, {**whole.tensors, name: spoilt}).write(path)
            if name.startswith("optimizer.second_moment."):
                wrong = not value >= 0  # a square past float32 is one that a run may leave
            elif name == "contrastive.log_inverse_temperature":
                wrong = not 0 <= value <= math.log(100)
            else:
                wrong = not math.isfinite(value)
            message = refusal_of(resume, path)
            assert (message is not None) == wrong, (name, place)
            if message is not None:
                assert f"{name}: its value {place} is {value:g}" in message
                if name == "contrastive.log_inverse_temperature" and math.isfinite(value):
                    assert message.endswith(": it stays within 0 and 4.6051702")
            assert (refusal_of(open_model, path) is not None) == (wrong and read_by_models(name)), (name, place)


def test_counters_that_no_run_has(whole: CheckpointFile, path: Path) -> None:
    for name, value in (
        ("run.step", 3),  # in two calls
        ("run.step", 2**64 - 1),
        ("run.calls", 1),
        ("run.calls", 2**56),
        ("run.seed", 1),  # the configuration has another
    ):
        counter = Tensor("U64", [], struct.pack("<Q", value))
        CheckpointFile(whole.metadata, {**whole.tensors, name: counter}).write(path)
        for opening in OPENINGS:
            with pytest.raises(ValueError, match=path.name) as refusal:
                opening(path)
            assert name in str(refusal.value)
            assert str(value) in str(refusal.value)


def test_offsets(whole: CheckpointFile, path: Path) -> None:
    """Any two ranges of the header exchanged, shifted, doubled, turned round."""
    whole.write(path)
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, data = content[8 : 8 + length].decode(), content[8 + length :]
    step, calls = '"data_offsets": [0, 8]', '"data_offsets": [8, 16]'
    assert step in header
    assert calls in header
    for changed in (
        header.replace(step, calls),
        header.replace(step, '"data_offsets": [8, 0]'),
        header.replace(step, '"data_offsets": [0, 9]'),
        header.replace(step, '"data_offsets": [1, 9]'),
        header.replace(step, '"data_offsets": [-8, 0]'),
        header.replace(step, '"data_offsets": [0]'),
        header.replace(step, '"data_offsets": [0.0, 8.0]'),
        header.replace(step, f'"data_offsets": [{2**64 - 8}, {2**64 - 1}]'),
        header.replace(step, f'"data_offsets": [{len(data)}, {len(data) + 8}]'),
    ):
        write_raw(path, changed.encode(), data)
        for opening in OPENINGS:
            with pytest.raises(OSError, match=path.name):
                opening(path)


def test_mutated_headers(whole: CheckpointFile, path: Path) -> None:
    """Three thousand headers, each with a few bytes overwritten: a refusal that names the file, or a run."""
    whole.write(path)
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    first = content.index(b'"configuration"')
    last = content.index(b'"run.step"')
    draw = random.Random(17)
    alphabet = b'0123456789{}[]",:\\-+.eEtrufalsn \0\x80\xff'
    refused = opened = 0
    with path.open("r+b", buffering=0) as file:
        for trial in range(3000):
            header = bytearray(content[:end])
            # The length, the whole header, or digits of the configuration, which still parses then.
            begin, stop = [(0, 8), (8, end), (first, last), (first, last)][trial % 4]
            for _ in range(1 + draw.randrange(3)):
                place = draw.randrange(begin, stop)
                if trial % 4 == 3:
                    digits = [at for at in range(place, stop) if header[at : at + 1].isdigit()] or [place]
                    header[digits[0]] = draw.choice(b"0123456789")
                else:
                    header[place] = draw.choice(alphabet)
            file.seek(0)
            file.write(header)
            for opening in OPENINGS:
                if refusal_of(opening, path) is None:
                    opened += 1
                else:
                    refused += 1
    assert refused > 4000
    assert opened > 50


@pytest.mark.parametrize("item", [b"[],", b"0,", b'"",', b"[[[[]]]],"])
def test_headers_of_many_values(path: Path, item: bytes) -> None:
    """A header takes many times its length once it is parsed: its length is bounded, and so is that."""
    start, end = b'{"__metadata__":[', b"0]}"
    for length in (16 << 20, 99_999_999):
        header = start + item * ((length - len(start) - len(end)) // len(item)) + end
        write_raw(path, header, b"")
        for opening in OPENINGS:
            with pytest.raises(OSError, match=path.name):
                opening(path)


def test_a_file_of_zeros_derives_nothing(whole: CheckpointFile, path: Path) -> None:
    """A size of zero is no size to derive: it is refused by name."""
    given = whole.configuration
    for place in (
        ("network", "depth"),
        ("network", "hidden"),
        ("batch", "max_rows_per_device"),
        ("batch", "max_segments_per_device"),
        ("batch", "max_columns_per_row"),
        ("batch", "max_bags_per_device"),
        ("schedule", "steps"),
        ("optimizer", "epsilon"),
        ("modalities", "image", "patch_side"),
        ("modalities", "image", "channels"),
        ("objectives", "masked", "token_mean_span"),
        ("objectives", "contrastive", "temperature_groups"),
        ("objectives", "contrastive", "inverse_temperature"),
        ("objectives", "contrastive", "max_edges_per_device"),
        ("objectives", "contrastive", "pair_loss"),
    ):
        whole.with_configuration(put(given, place, 0)).write(path)
        for opening in OPENINGS:
            with pytest.raises(ValueError, match=path.name) as refusal:
                opening(path)
            assert place[-1] in str(refusal.value)


def test_true_zeros_come_back(path: Path) -> None:
    """Zeros that were asked for are values, and no field to derive."""
    trainer = make_trainer(
        objective=Objective.JOINT,
        batch=shape(images=True),
        masking=Masking(
            token_mask_probability=-1,
            replace_fraction=-1,
            random_fraction=-1,
            image_mask_ratio=-1,
            text_weight=-1,
            image_weight=-1,
        ),
        contrastive=Contrastive(pair_loss=PairLossForm.SIGMOID, bias=1e-30, ambient_repulsion_weight=-1),
        schedule=Schedule(min_learning_rate=-1, warmup_steps=-1),
        optimizer=uform.Optimizer(beta1=-1, beta2=-1, weight_decay=-1, max_gradient_norm=-1),
    )
    trainer.save(path)
    assert resume(path).describe() == trainer.describe()
