"""Answers in arenas on a GPU: the same bits as in RAM, without a copy to the host, seen by others where they lie."""

from __future__ import annotations

import ctypes
import gc
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.gpu.memory import least_lost
from uform import Modality, Scalar

TEXTS = [f"{word} and {word} again" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
MODALITIES = [Modality.TEXT] * len(TEXTS)
RELATIONS = uform.Relations(attract=(range(len(TEXTS) + 1), [place ^ 1 for place in range(len(TEXTS))]))
HIDDEN = 128
ROW_BYTES = {Scalar.FLOAT32: 512, Scalar.FLOAT16: 256, Scalar.BFLOAT16: 256, Scalar.INT8: 128, Scalar.BIT: 16}
TORCH_TYPES = {"FLOAT32": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "INT8": "int8", "BIT": "uint8"}


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def make(executor: uform.Executor, **changes: Any) -> uform.Trainer:
    init = uform.Trainer.init_vram if executor.kind == "vram" else uform.Trainer.init_ram
    options: dict[str, Any] = {
        "depth": 2,
        "hidden": HIDDEN,
        "objective": uform.Objective.CONTRASTIVE,
        "batch": uform.BatchShape(max_rows_per_device=4, max_columns_per_row=64),
        "seed": 3,
    }
    return init(executor, **(options | changes))


def step(trainer: uform.Trainer, arena: uform.Arena | None, scalar: Scalar = Scalar.FLOAT32, **changes: Any) -> Any:
    call = {"relations": RELATIONS, "arena": arena, "outputs_scalar": scalar} | changes
    return trainer.step(MODALITIES, TEXTS, **call)


@pytest.fixture(scope="module")
def model(gpu: uform.Executor, tmp_path_factory: pytest.TempPathFactory) -> uform.Model:
    path = tmp_path_factory.mktemp("arenas") / "checkpoint"
    make(gpu).save(path)
    return uform.Model.init_vram(gpu, path)


def embed(model: uform.Model, arena: uform.Arena | None = None, scalar: Scalar = Scalar.FLOAT32) -> Any:
    return model.embed(MODALITIES, TEXTS, arena=arena, outputs_scalar=scalar)


def address(buffer: uform.ArenaBuffer) -> int:
    return int(buffer.__cuda_array_interface__["data"][0])


# ---------------------------------------------------------------------------------------------------- arenas


def test_an_arena_grows() -> None:
    arena = uform.Arena.for_vram()
    assert (arena.device, arena.used, arena.capacity) == ("vram:0", 0, 0)
    assert repr(arena) == "<Arena vram:0 used=0 capacity=0>"


def test_absent_gpus_are_named() -> None:
    for device in (77, -1):
        with pytest.raises(uform.DeviceError, match=rf"device: {device} is no GPU: \d+ are visible"):
            uform.Arena.for_vram(device)


def test_a_bounded_arena_names_both_sizes(model: uform.Model) -> None:
    arena = uform.Arena.for_vram(capacity=10_000)
    first = embed(model, arena)
    before = first.numpy()
    embed(model, arena)
    assert (arena.used, arena.capacity) == (8192, 10_000)
    with pytest.raises(MemoryError, match=r"no room for 4096 bytes: 8192 of its 10000 are in use"):
        embed(model, arena)
    assert arena.used == 8192
    np.testing.assert_array_equal(first.numpy(), before)


def test_more_than_the_gpu_has_is_refused() -> None:
    with pytest.raises(MemoryError, match=rf"arena of {2**50} bytes .* {2**50} bytes were asked for, \d+ are free"):
        uform.Arena.for_vram(capacity=2**50)


def test_a_refused_step_takes_no_room(gpu: uform.Executor) -> None:
    trainer, arena = make(gpu), uform.Arena.for_vram(capacity=4096)
    outside = uform.Relations(attract=(range(len(TEXTS) + 1), [99] * len(TEXTS)))
    with pytest.raises(ValueError, match=r"ids\[0\]"):
        step(trainer, arena, relations=outside)
    assert arena.used == 0
    good = trainer.read("norm")
    trainer.write("norm", np.full_like(good, np.inf))
    with pytest.raises(FloatingPointError):
        step(trainer, arena)
    assert arena.used == 0
    trainer.write("norm", good)
    assert np.isfinite(step(trainer, arena).numpy()).all()
    assert arena.used == 4096


@pytest.mark.alone
def test_memory_is_given_back(model: uform.Model, torch: Any) -> None:
    def round_trip() -> None:
        arena = uform.Arena.for_vram(capacity=64 << 20)
        tensor = torch.from_dlpack(embed(model, arena))
        del arena
        assert torch.isfinite(tensor).all()

    round_trip()
    gc.collect()

    def again() -> None:
        for _ in range(10):
            round_trip()
        gc.collect()

    assert least_lost(again) < 4 << 20


# ---------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("scalar", list(Scalar))
@pytest.mark.parametrize("devices", [[0], [0, 0]])
def test_embeddings_are_those_of_ram_bit_for_bit(scalar: Scalar, devices: list[int], tmp_path: Path) -> None:
    executor = uform.Executor.for_vram(devices)
    path = tmp_path / "checkpoint"
    make(executor).save(path)
    model, arena = uform.Model.init_vram(executor, path), uform.Arena.for_vram()
    bags = [5, 1, 5, 2, 3, 1, 9, 4]
    for given in (None, bags):
        call: dict[str, Any] = {"bags": given, "outputs_scalar": scalar}
        there, here = model.embed(MODALITIES, TEXTS, arena=arena, **call), model.embed(MODALITIES, TEXTS, **call)
        assert (there.shape, there.scalar, there.device) == (here.shape, scalar, "vram:0")
        assert there.arena is arena
        assert there.numpy().dtype == here.numpy().dtype
        assert there.numpy().tobytes() == here.numpy().tobytes()
    assert here.numpy().any()


@pytest.mark.parametrize("scalar", list(Scalar))
@pytest.mark.parametrize("devices", [[0], [0, 0], [0, 0, 0]])
def test_a_step_answers_in_either_arena(scalar: Scalar, devices: list[int]) -> None:
    answers = []
    for arena in (uform.Arena.for_vram(), uform.Arena.for_ram()):
        trainer = make(uform.Executor.for_vram(devices))
        answers.append([step(trainer, arena, scalar, bags=[7, 1, 2, 7, 3, 4, 5, 6]).numpy() for _ in range(2)])
    for there, here in zip(*answers, strict=True):
        assert there.shape == (7, ROW_BYTES[scalar] // there.itemsize)
        assert there.tobytes() == here.tobytes()
    assert answers[0][0].any()


@pytest.mark.parametrize("scalar", [Scalar.FLOAT32, Scalar.BIT])
def test_the_row_of_a_dropped_bag_is_zero(gpu: uform.Executor, scalar: Scalar) -> None:
    trainer = make(gpu, batch=uform.BatchShape(max_rows_per_device=2, max_columns_per_row=64))
    arena = uform.Arena.for_vram(capacity=16384)
    stats = uform.TrainerStepStats()
    step(trainer, arena, Scalar.INT8, stats=stats)  # so that its memory is not zero by chance
    arena.reset()
    found = step(trainer, arena, scalar, stats=stats).numpy()
    assert stats.dropped > 0
    assert (~found.any(axis=1)).sum() == stats.dropped


def test_two_gpus_answer_on_either() -> None:
    executor = uform.Executor.for_vram()
    if len(executor.devices) < 2:
        pytest.skip("one GPU is visible: two are needed")
    answers = [step(make(executor), uform.Arena.for_vram(device)).numpy() for device in executor.devices]
    answers.append(step(make(executor), uform.Arena.for_ram()).numpy())
    assert len({answer.tobytes() for answer in answers}) == 1
    with pytest.raises(ValueError, match=r"arena lies in vram:1, which is none of the executor's GPUs, \[0\]"):
        step(make(uform.Executor.for_vram([0])), uform.Arena.for_vram(1))


def test_ram_does_not_answer_on_a_gpu(ram: uform.Executor, tmp_path: Path) -> None:
    trainer, arena = make(ram), uform.Arena.for_vram()
    with pytest.raises(ValueError, match="arena lies in vram:0, and the executor computes in RAM"):
        step(trainer, arena)
    trainer.save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="arena lies in vram:0, and the executor computes in RAM"):
        embed(uform.Model.init_ram(ram, tmp_path / "checkpoint"), arena)
    assert arena.used == 0


def test_no_rows(model: uform.Model, torch: Any) -> None:
    buffer = model.embed([], [], arena=uform.Arena.for_vram())
    assert buffer.shape == buffer.numpy().shape == torch.from_dlpack(buffer).shape == (0, HIDDEN)
    assert address(buffer) == 0


# ---------------------------------------------------------------------------------------------------- host


def test_numpy_copies(model: uform.Model) -> None:
    buffer = embed(model, uform.Arena.for_vram())
    first = buffer.numpy()
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(buffer.numpy(), kept)
    assert len(buffer) == len(TEXTS)
    assert repr(buffer) == "<ArenaBuffer [8, 128] FLOAT32 vram:0>"


def test_nothing_crosses_to_the_host_unasked(model: uform.Model) -> None:
    buffer = embed(model, uform.Arena.for_vram())
    with pytest.raises(BufferError, match="lies in vram:0, which the buffer protocol cannot show"):
        memoryview(buffer)
    with pytest.raises(TypeError, match=r"lies in vram:0: call its numpy\(\)"):
        np.asarray(buffer)


def test_a_buffer_outlives_all_that_made_it(tmp_path: Path) -> None:
    executor, arena = uform.Executor.for_vram([0]), uform.Arena.for_vram()
    trainer = make(executor)
    buffer, expected = step(trainer, arena), step(make(executor), uform.Arena.for_ram()).numpy().copy()
    del executor, trainer, arena
    gc.collect()
    np.testing.assert_array_equal(buffer.numpy(), expected)


def test_a_reset_arena_has_no_buffers(model: uform.Model) -> None:
    arena = uform.Arena.for_vram()
    buffer = embed(model, arena)
    arena.reset()
    assert arena.used == 0
    for use in (buffer.numpy, buffer.__dlpack__, lambda: buffer.__cuda_array_interface__):
        with pytest.raises(ValueError, match="its arena was reset"):
            use()


# ---------------------------------------------------------------------------------------------------- DLPack


@pytest.mark.parametrize("scalar", list(Scalar))
def test_torch_sees_the_memory(model: uform.Model, torch: Any, scalar: Scalar) -> None:
    arena = uform.Arena.for_vram()
    buffer = embed(model, arena, scalar)
    assert buffer.__dlpack_device__() == (2, 0)
    tensor = torch.from_dlpack(buffer)
    assert (tensor.device.type, tensor.device.index, tuple(tensor.shape)) == ("cuda", 0, buffer.shape)
    assert tensor.dtype == getattr(torch, TORCH_TYPES[scalar.name])
    assert tensor.is_contiguous()
    assert tensor.data_ptr() == torch.from_dlpack(buffer).data_ptr()
    assert tensor.data_ptr() % 256 == 0
    if scalar is not Scalar.BFLOAT16:
        assert tensor.data_ptr() == address(buffer)
    bits = tensor.view(torch.uint8).cpu().numpy()
    assert bits.tobytes() == embed(model, scalar=scalar).numpy().tobytes()
    tensor.zero_()
    assert not buffer.numpy().any()


def test_a_tensor_keeps_all_that_it_needs(torch: Any) -> None:
    executor, arena = uform.Executor.for_vram([0]), uform.Arena.for_vram()
    trainer = make(executor)
    buffer = step(trainer, arena)
    expected, tensor = buffer.numpy(), torch.from_dlpack(buffer)
    del executor, trainer, arena, buffer
    gc.collect()
    np.testing.assert_array_equal(tensor.cpu().numpy(), expected)


def test_reset_refuses_while_a_tensor_is_alive(model: uform.Model, torch: Any) -> None:
    arena = uform.Arena.for_vram()
    tensor = torch.from_dlpack(embed(model, arena))
    with pytest.raises(BufferError, match="1 of its buffers are shown"):
        arena.reset()
    del tensor
    gc.collect()
    arena.reset()


def test_reset_waits_for_a_stream_that_still_reads(gpu: uform.Executor, torch: Any) -> None:
    fast = uform.Schedule(learning_rate=1e-2, warmup_steps=1)
    trainer, arena, side = make(gpu, schedule=fast), uform.Arena.for_vram(), torch.cuda.Stream()
    buffer = step(trainer, arena)
    expected, before = buffer.numpy(), address(buffer)
    with torch.cuda.stream(side):
        tensor = torch.from_dlpack(buffer)
        torch.cuda._sleep(300_000_000)
        copy = tensor.clone()
    del tensor
    gc.collect()
    arena.reset()
    after = step(trainer, arena)
    assert address(after) == before
    assert not np.array_equal(after.numpy(), expected)
    np.testing.assert_array_equal(copy.cpu().numpy(), expected)


def test_streams_are_checked(model: uform.Model, torch: Any) -> None:
    buffer = embed(model, uform.Arena.for_vram())
    for stream in (None, -1, 1, 2, torch.cuda.Stream().cuda_stream):
        assert "dltensor" in repr(buffer.__dlpack__(stream=stream))
    for stream in (0, -2):
        with pytest.raises(ValueError, match=f"stream is {stream}: expected None, -1, 1"):
            buffer.__dlpack__(stream=stream)
    for stream in (True, "1", 1.0):
        with pytest.raises(TypeError, match="expected None or an int"):
            buffer.__dlpack__(stream=stream)


def test_a_stream_may_read_at_once(gpu: uform.Executor, torch: Any) -> None:
    trainer, side = make(gpu), torch.cuda.Stream()
    for _ in range(20):
        buffer = step(trainer, uform.Arena.for_vram())
        with torch.cuda.stream(side):
            seen = torch.from_dlpack(buffer).clone()
        side.synchronize()
        np.testing.assert_array_equal(seen.cpu().numpy(), buffer.numpy())


class Managed(ctypes.Structure):
    """The head of DLPack's versioned tensor."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    ]


def read_capsule(capsule: Any) -> Managed:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Managed.from_address(get(capsule, b"dltensor_versioned"))


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1)])
def test_versions(model: uform.Model, version: Any) -> None:
    arena = uform.Arena.for_vram()
    buffer = embed(model, arena)
    capsule = buffer.__dlpack__(max_version=version)
    versioned = version is not None and version >= (1, 0)
    assert ("dltensor_versioned" in repr(capsule)) == versioned
    if versioned:
        head = read_capsule(capsule)
        assert (head.major, head.flags, head.data) == (1, 0, address(buffer))
        assert (head.device_type, head.device_id) == (2, 0)
    with pytest.raises(BufferError):
        arena.reset()
    del capsule
    arena.reset()


def test_copies_are_made_where_they_are_asked_for(model: uform.Model, torch: Any) -> None:
    arena = uform.Arena.for_vram()
    buffer = embed(model, arena)
    expected = buffer.numpy()
    for dl_device, copy, device_type in ((None, True, 2), ((2, 0), True, 2), ((1, 0), None, 1), ((1, 0), True, 1)):
        capsule = buffer.__dlpack__(max_version=(1, 0), dl_device=dl_device, copy=copy)
        head = read_capsule(capsule)
        assert (head.flags, head.device_type, head.device_id) == (2, device_type, 0)
        assert head.data != address(buffer)
        np.testing.assert_array_equal(torch.from_dlpack(capsule).cpu().numpy(), expected)
    for dl_device, copy in ((None, None), (None, False), ((2, 0), None)):
        capsule = buffer.__dlpack__(max_version=(1, 0), dl_device=dl_device, copy=copy)
        assert (read_capsule(capsule).flags, read_capsule(capsule).data) == (0, address(buffer))
        del capsule
    arena.reset()  # copies do not hold it


def test_torch_asks_for_a_copy_in_ram(model: uform.Model, torch: Any) -> None:
    buffer = embed(model, uform.Arena.for_vram())
    if "device" not in inspect.signature(torch.from_dlpack).parameters:
        pytest.skip(f"PyTorch {torch.__version__} asks for no device")
    copied = torch.from_dlpack(buffer, device="cpu")
    assert copied.device.type == "cpu"
    np.testing.assert_array_equal(copied.numpy(), buffer.numpy())


def test_what_cannot_be_handed_over_is_refused(model: uform.Model) -> None:
    buffer = embed(model, uform.Arena.for_vram())
    with pytest.raises(BufferError, match=r"dl_device is \(2, 9\): the buffer lies in vram:0, \(2, 0\)"):
        buffer.__dlpack__(dl_device=(2, 9))
    with pytest.raises(BufferError, match="copy is False: the buffer lies in vram:0, and dl_device asks for RAM"):
        buffer.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(ValueError, match="stream is 0: expected None, -1, 1"):
        buffer.__dlpack__(dl_device=(1, 0), stream=0)


# ---------------------------------------------------------------------------------------------------- CUDA arrays


@pytest.mark.parametrize("scalar", [Scalar.FLOAT32, Scalar.FLOAT16, Scalar.INT8, Scalar.BIT])
def test_the_cuda_array_interface(model: uform.Model, torch: Any, scalar: Scalar) -> None:
    buffer = embed(model, uform.Arena.for_vram(), scalar)
    interface = buffer.__cuda_array_interface__
    assert interface["version"] == 3
    assert interface["shape"] == buffer.shape
    assert interface["typestr"] == np.dtype(buffer.numpy().dtype).str
    assert interface["strides"] is interface["stream"] is None
    assert interface["data"] == (torch.from_dlpack(buffer).data_ptr(), False)
    tensor = torch.as_tensor(buffer, device="cuda")
    assert tensor.data_ptr() == interface["data"][0]
    np.testing.assert_array_equal(tensor.cpu().numpy(), buffer.numpy())


def test_the_cuda_array_interface_has_no_bfloat16(model: uform.Model) -> None:
    buffer = embed(model, uform.Arena.for_vram(), Scalar.BFLOAT16)
    with pytest.raises(TypeError, match="no type for bfloat16: take the buffer through DLPack"):
        buffer.__cuda_array_interface__  # noqa: B018 - reading is what raises
