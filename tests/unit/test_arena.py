"""Arenas and the buffers in them."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.runs import make_trainer

TEXTS = ["cat", "dog", "a cat and a dog"]
MODALITIES = [uform.Modality.TEXT] * 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> uform.Model:
    executor = uform.Executor.for_ram(threads=1)
    batch = uform.BatchShape(max_rows_per_device=4, max_columns_per_row=32)
    path = tmp_path_factory.mktemp("arena") / "checkpoint.safetensors"
    uform.Trainer.init_ram(executor, depth=1, hidden=64, batch=batch).save(path)
    return uform.Model.init_ram(executor, path)


def embed(model: uform.Model, arena: uform.Arena | None = None, scalar: uform.Scalar = uform.Scalar.FLOAT32) -> Any:
    return model.embed(MODALITIES, TEXTS, arena=arena, outputs_scalar=scalar)


@pytest.fixture(scope="module")
def expected(model: uform.Model) -> Any:
    return embed(model).numpy().copy()


def test_arenas_are_made_by_name() -> None:
    with pytest.raises(TypeError, match=r"use Arena\.for_ram\(\)"):
        uform.Arena()
    with pytest.raises(TypeError, match="verbs that take an arena"):
        uform.ArenaBuffer()
    with pytest.raises(ValueError, match="capacity is -1"):
        uform.Arena.for_ram(capacity=-1)
    with pytest.raises(uform.DeviceError):
        uform.Arena.for_vram(device=1000)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        (uform.Arena, ["device", "used", "capacity", "reset", "__repr__"]),
        (
            uform.ArenaBuffer,
            [
                *("arena", "scalar", "shape", "device", "numpy", "__len__", "__array__", "__dlpack__", "__repr__"),
                *("__dlpack_device__", "__cuda_array_interface__"),
            ],
        ),
        (uform.Executor, ["devices", "kind", "threads", "gemm", "gpu_class", "__repr__"]),
    ],
)
def test_what_new_made_alone_says_so(kind: Any, attributes: list[str]) -> None:
    bare = kind.__new__(kind)
    for attribute in attributes:
        with pytest.raises(ValueError, match="is not initialised"):
            getattr(bare, attribute)()


def test_a_bare_buffer_shows_nothing() -> None:
    with pytest.raises(ValueError, match="is not initialised"):
        memoryview(uform.ArenaBuffer.__new__(uform.ArenaBuffer))


def test_a_bounded_arena_names_both_sizes(model: uform.Model) -> None:
    arena = uform.Arena.for_ram(capacity=1000)
    buffer = embed(model, arena)
    assert (arena.used, arena.capacity) == (768, 1000)
    with pytest.raises(MemoryError, match=r"no room for 768 bytes: 768 of its 1000"):
        embed(model, arena)
    assert repr(arena) == "<Arena ram used=768 capacity=1000>"
    assert repr(buffer) == "<ArenaBuffer [3, 64] FLOAT32 ram>"


def test_answers_lie_in_the_arena(model: uform.Model, expected: Any) -> None:
    arena = uform.Arena.for_ram()
    first, second = embed(model, arena), embed(model, arena)
    assert first.arena is second.arena is arena
    assert (first.shape, len(first), first.device, arena.device) == ((3, 64), 3, "ram", "ram")
    assert np.array_equal(first.numpy(), expected)
    assert first.numpy().base is not None
    first.numpy()[:] = 0
    assert not first.numpy().any()
    assert np.array_equal(second.numpy(), expected)


def test_a_view_keeps_its_arena_alive(model: uform.Model, expected: Any) -> None:
    view = embed(model).numpy()
    gc.collect()
    assert np.array_equal(view, expected)


@pytest.mark.parametrize(
    ("scalar", "dtype", "shape"),
    [
        (uform.Scalar.FLOAT32, np.float32, (3, 64)),
        (uform.Scalar.FLOAT16, np.float16, (3, 64)),
        (uform.Scalar.BFLOAT16, np.uint16, (3, 64)),
        (uform.Scalar.INT8, np.int8, (3, 64)),
        (uform.Scalar.BIT, np.uint8, (3, 8)),
    ],
)
def test_scalars(model: uform.Model, expected: Any, scalar: uform.Scalar, dtype: Any, shape: tuple[int, int]) -> None:
    buffer = embed(model, scalar=scalar)
    array = buffer.numpy()
    assert (array.dtype, array.shape, buffer.shape, buffer.scalar) == (dtype, shape, shape, scalar)
    if scalar is uform.Scalar.BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    if scalar is uform.Scalar.BIT:
        assert np.array_equal(np.unpackbits(array, axis=1), expected > 0)
    elif scalar is uform.Scalar.INT8:
        assert np.abs(array / 127 - expected).max() <= 0.5001 / 127
    else:
        assert np.allclose(array, expected, rtol=2**-8, atol=1e-4)


def test_an_outputs_scalar_is_checked(model: uform.Model) -> None:
    with pytest.raises(ValueError, match="outputs_scalar is 5"):
        embed(model, scalar=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="outputs_scalar is 'float16': expected a Scalar"):
        embed(model, scalar="float16")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="arena is of type dict: expected an Arena"):
        embed(model, {})  # type: ignore[arg-type]


def test_the_buffer_protocol(model: uform.Model) -> None:
    view = memoryview(embed(model))
    assert (view.format, view.shape, view.strides, view.nbytes, view.readonly) == ("f", (3, 64), (256, 4), 768, False)
    assert view.c_contiguous
    assert len(bytes(view)) == 768
    assert np.frombuffer(embed(model), np.float32).shape == (192,)


def test_dlpack_hands_the_memory_over(model: uform.Model) -> None:
    arena = uform.Arena.for_ram()
    buffer = embed(model, arena)
    assert buffer.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(buffer)
    assert np.array_equal(array, buffer.numpy())
    assert np.shares_memory(array, buffer.numpy())
    with pytest.raises(BufferError, match="1 of its buffers"):
        arena.reset()
    del array
    gc.collect()
    arena.reset()


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1)])
def test_a_capsule_that_no_one_takes_is_freed(model: uform.Model, version: Any) -> None:
    arena = uform.Arena.for_ram()
    capsule = embed(model, arena).__dlpack__(max_version=version)
    assert ("dltensor_versioned" in repr(capsule)) == (version is not None and version >= (1, 0))
    with pytest.raises(BufferError):
        arena.reset()
    del capsule
    arena.reset()


def test_dlpack_never_copies(model: uform.Model) -> None:
    buffer = embed(model)
    with pytest.raises(BufferError, match="dl_device"):
        buffer.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy is True"):
        buffer.__dlpack__(copy=True)


def test_reset_refuses_while_a_buffer_is_seen(model: uform.Model) -> None:
    arena = uform.Arena.for_ram()
    view = embed(model, arena).numpy()
    with pytest.raises(BufferError, match="1 of its buffers are shown"):
        arena.reset()
    del view
    arena.reset()
    assert arena.used == 0


def test_a_buffer_of_a_reset_arena_is_gone(model: uform.Model, expected: Any) -> None:
    arena = uform.Arena.for_ram()
    buffer = embed(model, arena)
    arena.reset()
    for use in (buffer.numpy, lambda: memoryview(buffer), lambda: np.from_dlpack(buffer)):
        with pytest.raises(ValueError, match="its arena was reset"):
            use()
    assert np.array_equal(embed(model, arena).numpy(), expected)


def test_reset_refuses_while_a_call_is_in_flight(model: uform.Model) -> None:
    arena, gate = uform.Arena.for_ram(), threading.Event()
    # Holds the executor's thread, and with it the call that is deferred after.
    model.executor._submit(lambda: gate.wait(60))
    deferred = model.deferred(model.executor).embed(MODALITIES, TEXTS, arena=arena)
    try:
        with pytest.raises(ValueError, match="1 step that writes into it is in flight"):
            arena.reset()
    finally:
        gate.set()
    buffer = deferred.result(60)
    arena.reset()
    with pytest.raises(ValueError, match="its arena was reset"):
        buffer.numpy()


def test_a_cancelled_call_is_not_in_flight(model: uform.Model) -> None:
    arena, gate = uform.Arena.for_ram(), threading.Event()
    model.executor._submit(lambda: gate.wait(60))
    deferred = model.deferred(model.executor).embed(MODALITIES, TEXTS, arena=arena)
    with pytest.raises(ValueError, match="in flight"):
        arena.reset()
    assert deferred.cancel()
    assert arena.used == 0
    arena.reset()  # the gate is shut: its turn has not come
    gate.set()
    model.deferred(model.executor).embed(MODALITIES, TEXTS).result(60)
    assert deferred.cancel()


@pytest.fixture(scope="module")
def trainer() -> uform.Trainer:
    return make_trainer(objective=uform.Objective.CONTRASTIVE)


ATTRACT = uform.Relations(attract=([0, 1, 2, 3], [1, 2, 0]))


def step(receiver: Any, arena: uform.Arena, **changes: Any) -> Any:
    return receiver.step(MODALITIES, TEXTS, **({"relations": ATTRACT, "arena": arena} | changes))


REFUSED = [
    {"bags": [0, 1]},
    {"temperature_groups": [0]},
    {"relations": uform.Relations(attract=([0, 1], [0]))},
    {"relations": uform.Relations(attract=([0, 1, 2, 3], [1, 2, 9]))},
    {"choices": ["yes", "no"]},
]


@pytest.mark.parametrize("changes", REFUSED)
def test_a_refused_step_takes_no_room(trainer: uform.Trainer, changes: Any) -> None:
    arena = uform.Arena.for_ram(capacity=2 * 768)
    first = step(trainer, arena).numpy().copy()
    for _ in range(3):
        with pytest.raises(ValueError, match=r"entries|ids\[2\]|choices"):
            step(trainer, arena, **changes)
        assert arena.used == 768
    assert step(trainer, arena).shape == first.shape
    assert arena.used == 2 * 768
    arena.reset()


def test_a_step_that_is_not_finite_takes_no_room(trainer: uform.Trainer) -> None:
    arena = uform.Arena.for_ram(capacity=768)
    good = trainer.read("norm")
    trainer.write("norm", np.full_like(good, np.inf))
    for _ in range(2):
        with pytest.raises(FloatingPointError):
            step(trainer, arena)
        assert arena.used == 0
    trainer.write("norm", good)
    assert np.isfinite(step(trainer, arena).numpy()).all()


def test_a_refused_embedding_takes_no_room(model: uform.Model) -> None:
    arena = uform.Arena.for_ram(capacity=768)
    with pytest.raises(ValueError, match=r"bags\[0\] is \d+: the \d+ items of that bag hold"):
        model.embed([uform.Modality.TEXT] * 9, ["x" * 31] * 9, bags=[0] * 9, arena=arena)
    assert arena.used == 0
    assert embed(model, arena).shape == (3, 64)


def test_room_that_a_deferred_call_gives_back_is_used_again(trainer: uform.Trainer) -> None:
    arena, gate = uform.Arena.for_ram(capacity=2 * 768), threading.Event()
    deferred = trainer.deferred(trainer.executor)
    # Holds the executor's thread, so that neither call is over before a third asks for room.
    trainer.executor._submit(lambda: gate.wait(60))
    try:
        refused = step(deferred, arena, relations=uform.Relations(attract=([0, 1, 2, 3], [1, 2, 9])))
        kept = step(deferred, arena)
        roomless = step(deferred, arena)
    finally:
        gate.set()
    with pytest.raises(MemoryError, match="no room for 768 bytes"):
        roomless.result(60)
    with pytest.raises(ValueError, match=r"ids\[2\]"):
        refused.result(60)
    shown = kept.result(60).numpy()
    before = shown.copy()
    assert arena.used == 768
    assert not np.shares_memory(step(trainer, arena).numpy(), shown)
    assert np.array_equal(shown, before)
    assert arena.used == 2 * 768


def test_numpy_takes_a_buffer_as_an_array(model: uform.Model, expected: Any) -> None:
    buffer = embed(model)
    assert np.shares_memory(np.asarray(buffer), buffer.numpy())
    assert np.shares_memory(buffer.__array__(), buffer.numpy())
    assert np.array_equal(np.array(buffer, dtype=np.float64), expected)
    assert not np.shares_memory(buffer.__array__(copy=True), buffer.numpy())


def test_a_buffer_in_ram_has_no_cuda_array_interface(model: uform.Model) -> None:
    buffer = embed(model)
    assert not hasattr(buffer, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="the buffer lies in RAM"):
        buffer.__cuda_array_interface__  # noqa: B018 - reading is what raises


def test_rows_of_no_items(model: uform.Model) -> None:
    buffer = model.embed([], [])
    assert buffer.shape == (0, 64)
    assert buffer.numpy().shape == (0, 64)
    assert np.from_dlpack(buffer).shape == (0, 64)
