"""What arenas hold seen by other libraries, without a copy, and for how long it lives."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import uform
from tests.helpers.runs import HIDDEN, TINY, hold, shape
from uform import Modality, Scalar

TEXTS = ["cat", "dog", "a cat and a dog"]
MODALITIES = [Modality.TEXT] * len(TEXTS)
ROW_BYTES = 4 * HIDDEN


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    saved = tmp_path_factory.mktemp("exports") / "checkpoint"
    uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), **TINY, batch=shape(segments=200)).save(saved)
    return saved


@pytest.fixture
def model(path: Path) -> uform.Model:
    return uform.Model.init_ram(uform.Executor.for_ram(threads=1), path)


def embed(model: uform.Model, arena: uform.Arena | None = None, scalar: Scalar = Scalar.FLOAT32) -> uform.ArenaBuffer:
    return model.embed(MODALITIES, TEXTS, arena=arena, outputs_scalar=scalar)


def address_of(buffer: uform.ArenaBuffer) -> int:
    return int(buffer.numpy().ctypes.data)


DTYPES = {"FLOAT32": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "INT8": "int8", "BIT": "uint8"}


@pytest.mark.parametrize("scalar", Scalar)
def test_pytorch_shares_the_memory(model: uform.Model, scalar: Scalar) -> None:
    torch = pytest.importorskip("torch")
    arena = uform.Arena.for_ram()
    buffer = embed(model, arena, scalar)
    tensor = torch.from_dlpack(buffer)
    assert (tensor.data_ptr(), tuple(tensor.shape)) == (address_of(buffer), buffer.shape)
    assert tensor.dtype == getattr(torch, DTYPES[scalar.name])
    with pytest.raises(BufferError, match="1 of its buffers"):
        arena.reset()
    tensor[0, 0] = 7
    assert np.from_dlpack(buffer)[0, 0] == 7 if scalar is not Scalar.BFLOAT16 else tensor[0, 0] == 7
    del tensor
    gc.collect()
    arena.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scalar", Scalar)
def test_jax_shares_the_memory(model: uform.Model, scalar: Scalar) -> None:
    numpy_of_jax = pytest.importorskip("jax.numpy")
    arena = uform.Arena.for_ram()
    buffer = embed(model, arena, scalar)
    array = numpy_of_jax.from_dlpack(buffer)
    assert (array.unsafe_buffer_pointer(), array.shape) == (address_of(buffer), buffer.shape)
    assert array.dtype.name == DTYPES[scalar.name]
    with pytest.raises(BufferError, match="1 of its buffers"):
        arena.reset()
    del array
    gc.collect()
    arena.reset()


@pytest.mark.parametrize("scalar", [Scalar.FLOAT32, Scalar.FLOAT16, Scalar.INT8, Scalar.BIT])
def test_usearch_indexes_the_rows_as_they_are(model: uform.Model, scalar: Scalar) -> None:
    index = pytest.importorskip("usearch.index")
    rows = embed(model, scalar=scalar).numpy()
    metric = index.MetricKind.Hamming if scalar is Scalar.BIT else index.MetricKind.IP
    kind = {Scalar.FLOAT32: "f32", Scalar.FLOAT16: "f16", Scalar.INT8: "i8", Scalar.BIT: "b1"}[scalar]
    built = index.Index(ndim=HIDDEN, metric=metric, dtype=kind)
    built.add(np.arange(len(rows)), rows)
    np.testing.assert_array_equal(built.search(rows, 1).keys[:, 0], np.arange(len(rows)))


def test_numpy_views_lie_at_a_cache_line(model: uform.Model) -> None:
    """What JAX, and vector instructions, ask of memory that is shared."""
    arena = uform.Arena.for_ram()
    for scalar in Scalar:
        assert address_of(embed(model, arena, scalar)) % 64 == 0


def test_an_arena_grows_and_what_it_holds_stays(model: uform.Model) -> None:
    arena, held = uform.Arena.for_ram(), []
    count = 300  # some 230 KB: past the first block and those after it
    for _ in range(count):
        held.append(embed(model, arena).numpy())
    assert arena.used == count * len(TEXTS) * ROW_BYTES
    assert arena.capacity == 0
    places = sorted(view.ctypes.data for view in held)
    assert all(later - earlier >= 3 * ROW_BYTES for earlier, later in itertools.pairwise(places))
    for view in held[1:]:
        np.testing.assert_array_equal(view, held[0])


def test_a_reset_arena_hands_the_same_memory_out_again(model: uform.Model) -> None:
    arena = uform.Arena.for_ram(capacity=4 * 3 * ROW_BYTES)
    first = [address_of(embed(model, arena)) for _ in range(4)]
    for _ in range(3):
        with pytest.raises(MemoryError, match="no room for 768 bytes: 3072 of its 3072"):
            embed(model, arena)
        arena.reset()
        assert [address_of(embed(model, arena)) for _ in range(4)] == first


def test_a_buffer_outlives_all_that_it_came_from(path: Path) -> None:
    executor = uform.Executor.for_ram(threads=2)
    model = uform.Model.init_ram(executor, path)
    arena = uform.Arena.for_ram()
    kept = embed(model, arena)
    expected = kept.numpy().copy()
    taken = model.deferred(executor).embed(MODALITIES, TEXTS, arena=arena).result(60)
    del executor, model, arena
    gc.collect()
    np.testing.assert_array_equal(kept.numpy(), expected)
    np.testing.assert_array_equal(np.from_dlpack(taken), expected)
    kept.arena.reset()


def test_a_buffer_made_by_one_thread_is_let_go_of_by_another(model: uform.Model) -> None:
    """Its memory goes with its last view, whichever thread that is on, and however many write at once."""
    arena, made, start = uform.Arena.for_ram(), [], threading.Barrier(4)

    def make() -> None:
        start.wait(60)
        for _ in range(20):
            buffer = embed(model, arena)
            made.append(buffer.numpy())

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({view.ctypes.data for view in made}) == 80
    for view in made[1:]:
        np.testing.assert_array_equal(view, made[0])
    del view
    with pytest.raises(BufferError, match="80 of its buffers"):
        arena.reset()
    letting_go = threading.Thread(target=made.clear)
    letting_go.start()
    letting_go.join(60)
    gc.collect()
    arena.reset()
    assert arena.used == 0


def test_an_arena_goes_with_its_last_buffer(model: uform.Model) -> None:
    view = embed(model).numpy()
    owner = view
    while owner.base is not None and not isinstance(owner.base, memoryview):
        owner = owner.base
    gone = weakref.ref(owner)
    del owner, view
    gc.collect()
    assert gone() is None


def test_a_call_in_flight_keeps_its_arena(model: uform.Model) -> None:
    """Nobody but the call knows the arena while it waits for its turn; its answer then keeps it."""
    gate, expected = hold(model.executor), None
    deferred = model.deferred(model.executor).embed(MODALITIES, TEXTS, arena=uform.Arena.for_ram())
    gc.collect()
    gate.set()
    expected = embed(model).numpy()
    np.testing.assert_array_equal(deferred.result(60).numpy(), expected)
