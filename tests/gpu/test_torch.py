"""`uform.torch` on tensors of a GPU: what PyTorch's own operations give in float64, on any stream, however used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
import uform.torch
from tests.gpu.memory import least_lost
from tests.gpu.test_training import make, step
from uform import AmbientScope, LateInteractionSide, Modality, Objective, PairLossForm

torch: Any = pytest.importorskip("torch")

PAIRS, WIDTH, SCALE, BIAS = 48, 64, 12.0, -6.0
QUERY, DOCUMENT = 7, 21  # tokens of each
TYPES = [torch.float32, torch.bfloat16]
# By how much a gradient may be off: the tolerance policy's for a step's, and bfloat16's own rounding besides.
BOUND = {torch.float32: 2e-2, torch.bfloat16: 2e-2 + 2**-9}

pytestmark = pytest.mark.usefixtures("gpu")


def unit(rows: int, seed: int, dtype: Any, device: str = "cuda") -> Any:
    """Unit vectors as `dtype` holds them, which ask for their gradient."""
    values = np.random.default_rng(seed).normal(size=(rows, WIDTH))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return torch.from_numpy(values).to(device=device, dtype=dtype).requires_grad_()


def one_way(count: int) -> uform.Relations:
    """Each of the first `count` items attracts the one so many later."""
    offsets = np.minimum(np.arange(2 * count + 1), count).astype(np.uint64)
    return uform.Relations(attract=(offsets, np.arange(count, 2 * count, dtype=np.uint32)))


def ranking(gpu: uform.Executor, vectors: Any, **learned: Any) -> Any:
    form = uform.Contrastive(inverse_temperature=SCALE, ambient_scope=AmbientScope.TARGETS)
    return uform.torch.contrastive(gpu, vectors, relations=one_way(PAIRS), contrastive=form, **learned)


def ranking_of_torch(vectors: Any, scale: Any = SCALE) -> Any:
    wide = vectors.double()
    scores = scale * wide[:PAIRS] @ wide[PAIRS:].T
    return torch.nn.functional.cross_entropy(scores, torch.arange(PAIRS, device=vectors.device))


def sigmoid(gpu: uform.Executor, vectors: Any, **learned: Any) -> Any:
    return uform.torch.contrastive(
        gpu,
        vectors,
        relations=one_way(PAIRS),
        contrastive=uform.Contrastive(
            inverse_temperature=SCALE, ambient_scope=AmbientScope.CROSS_MODAL, pair_loss=PairLossForm.SIGMOID
        ),
        modalities=[Modality.IMAGE] * PAIRS + [Modality.TEXT] * PAIRS,
        **learned,
    )


def sigmoid_of_torch(vectors: Any, scale: Any, bias: Any) -> Any:
    wide = vectors.double()
    signs = 2 * torch.eye(PAIRS, device=vectors.device, dtype=torch.float64) - 1
    scores = scale * wide[:PAIRS] @ wide[PAIRS:].T + bias
    return torch.nn.functional.softplus(-signs * scores).sum() / PAIRS


def late(gpu: uform.Executor, tokens: Any, **learned: Any) -> Any:
    counts = [QUERY] * PAIRS + [DOCUMENT] * PAIRS
    return uform.torch.late_interaction(
        gpu,
        tokens,
        np.cumsum([0, *counts]),
        sides=[LateInteractionSide.QUERY] * PAIRS + [LateInteractionSide.DOCUMENT] * PAIRS,
        relations=one_way(PAIRS),
        late_interaction=uform.LateInteraction(inverse_temperature=SCALE),
        **learned,
    )


def late_of_torch(tokens: Any, scale: Any = SCALE) -> Any:
    wide = tokens.double()
    queries, documents = wide[: PAIRS * QUERY], wide[PAIRS * QUERY :]
    similar = queries.view(PAIRS, 1, QUERY, WIDTH) @ documents.view(1, PAIRS, DOCUMENT, WIDTH).transpose(2, 3)
    scores = scale * similar.amax(3).mean(2)
    return torch.nn.functional.cross_entropy(scores, torch.arange(PAIRS, device=tokens.device))


def check_same(ours: Any, theirs: Any, bound: float, *tensors: Any) -> None:
    """The same value, and gradients of the tensors' own types and places."""
    assert ours.dtype == torch.float32
    assert ours.device == tensors[0].device
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-3)
    of_ours, of_theirs = (torch.autograd.grad(loss, tensors) for loss in (ours, theirs))
    for tensor, one, other in zip(tensors, of_ours, of_theirs, strict=True):
        assert (one.dtype, one.device, one.shape) == (tensor.dtype, tensor.device, tensor.shape)
        assert float((one.double() - other.double()).norm()) <= bound * float(other.double().norm())


@pytest.mark.parametrize("dtype", TYPES)
def test_contrastive_is_that_of_autograd(gpu: uform.Executor, dtype: Any) -> None:
    vectors = unit(2 * PAIRS, 1, dtype)
    check_same(ranking(gpu, vectors), ranking_of_torch(vectors), BOUND[dtype], vectors)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("place", ["cuda", "cpu"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_learned_scalars_may_lie_anywhere(gpu: uform.Executor, shape: tuple[int, ...], place: str, dtype: Any) -> None:
    vectors = unit(2 * PAIRS, 2, dtype)
    scale = torch.full(shape, SCALE, device=place).requires_grad_()
    bias = torch.full(shape, BIAS, device=place).requires_grad_()
    theirs = sigmoid_of_torch(vectors, scale.to("cuda").view(()), bias.to("cuda").view(()))
    ours = sigmoid(gpu, vectors, inverse_temperature=scale, bias=bias)
    check_same(ours, theirs, BOUND[dtype], vectors, scale, bias)


@pytest.mark.parametrize("dtype", TYPES)
def test_late_interaction_is_that_of_autograd(gpu: uform.Executor, dtype: Any) -> None:
    tokens = unit(PAIRS * (QUERY + DOCUMENT), 3, torch.bfloat16).detach().to(dtype).requires_grad_()
    scale = torch.tensor(SCALE, device="cuda", requires_grad=True)
    check_same(late(gpu, tokens, inverse_temperature=scale), late_of_torch(tokens, scale), BOUND[dtype], tokens, scale)


@pytest.mark.parametrize("dtype", TYPES)
def test_masked_bytes_are_cross_entropy(gpu: uform.Executor, dtype: Any) -> None:
    logits = torch.randn(301, 256, generator=torch.Generator().manual_seed(4)).cuda().to(dtype).requires_grad_()
    targets = (torch.arange(301, device="cuda") * 7 % 256).to(torch.uint8)
    theirs = torch.nn.functional.cross_entropy(logits.double(), targets.long())
    ours = uform.torch.masked_bytes(gpu, logits, targets)
    check_same(ours, theirs, 1e-4 if dtype is torch.float32 else 2**-8, logits)


def make_loss(name: str, gpu: uform.Executor, dtype: Any) -> tuple[Callable[[Any], Any], Any]:
    """A loss of one tensor, and that tensor."""
    if name == "contrastive":
        return lambda values: ranking(gpu, values), unit(2 * PAIRS, 5, dtype).detach()
    if name == "late_interaction":
        return lambda values: late(gpu, values), unit(PAIRS * (QUERY + DOCUMENT), 6, dtype).detach()
    targets = torch.arange(96, device="cuda", dtype=torch.uint8)
    return lambda values: uform.torch.masked_bytes(gpu, values, targets), unit(384, 7, dtype).detach().view(96, 256)


NAMES = ["contrastive", "late_interaction", "masked_bytes"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_side_stream_is_kept_to(gpu: uform.Executor, name: str, dtype: Any) -> None:
    """The values are written late on a stream of their own, and the gradient is read there."""
    loss_of, good = make_loss(name, gpu, dtype)
    expected = good.clone().requires_grad_()
    value = loss_of(expected)
    value.backward()
    given, side = torch.zeros_like(good).requires_grad_(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        with torch.no_grad():
            given.copy_(good)
        found = loss_of(given)
        found.backward()
        seen = given.grad.clone()
    side.synchronize()
    assert found.item() == value.item()
    assert torch.equal(seen, expected.grad)


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_is_used_twice(gpu: uform.Executor, name: str) -> None:
    loss_of, good = make_loss(name, gpu, torch.float32)
    once = good.clone().requires_grad_()
    loss_of(once).backward()
    twice = good.clone().requires_grad_()
    loss = loss_of(twice)
    loss.backward(retain_graph=True)
    (2 * loss).backward()
    torch.testing.assert_close(twice.grad, 3 * once.grad)
    both = good.clone().requires_grad_()
    (loss_of(both) + 0.5 * loss_of(both * 1)).backward()
    torch.testing.assert_close(both.grad, 1.5 * once.grad)
    [first] = torch.autograd.grad(loss_of(both), both, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        first.sum().backward()


@pytest.mark.parametrize("dtype", TYPES)
def test_nothing_is_copied(gpu: uform.Executor, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss reads the tensor's own memory, and the saved gradient is what the loss answered."""
    seen: list[Any] = []
    answer = uform.losses.contrastive

    def watched(executor: uform.Executor, values: Any, **given: Any) -> Any:
        seen.append(values.data_ptr())
        found = answer(executor, values, **given)
        seen.append(torch.from_dlpack(found.gradient).data_ptr())
        return found

    vectors = unit(2 * PAIRS, 8, dtype)
    ranking(gpu, vectors)
    monkeypatch.setattr(uform.losses, "contrastive", watched)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = ranking(gpu, vectors)
    assert torch.cuda.max_memory_allocated() - before < vectors.nbytes  # the scalar alone
    [saved] = loss.grad_fn.saved_tensors
    assert seen == [vectors.data_ptr(), saved.data_ptr()]


@pytest.mark.alone
def test_memory_is_given_back(gpu: uform.Executor) -> None:
    vectors = unit(2 * PAIRS, 9, torch.float32)
    ranking(gpu, vectors).backward()
    held = torch.cuda.memory_allocated()

    def again() -> None:
        for _ in range(20):
            ranking(gpu, vectors).backward()

    assert least_lost(again) < 4 << 20
    assert torch.cuda.memory_allocated() == held


def test_a_network_learns_through_it(gpu: uform.Executor) -> None:
    torch.manual_seed(10)
    tower = torch.nn.Linear(16, WIDTH, device="cuda")
    log_scale = torch.nn.Parameter(torch.tensor(2.0, device="cuda"))
    optimizer = torch.optim.AdamW([*tower.parameters(), log_scale], lr=1e-2)
    contents = torch.randn(PAIRS, 16, device="cuda")
    inputs = torch.cat([contents, contents + 0.5 * torch.randn_like(contents)])
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        vectors = torch.nn.functional.normalize(tower(inputs), dim=1)
        loss = ranking(gpu, vectors, inverse_temperature=log_scale.exp())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_tensors_elsewhere_are_refused(gpu: uform.Executor, ram: uform.Executor) -> None:
    with pytest.raises(ValueError, match="embeddings lies on ram"):
        ranking(gpu, unit(2 * PAIRS, 11, torch.float32, "cpu"))
    with pytest.raises(ValueError, match="embeddings lies on vram:0, and the executor computes in RAM"):
        ranking(ram, unit(2 * PAIRS, 11, torch.float32))
    with pytest.raises(TypeError, match="embeddings has the dtype float64"):
        ranking(gpu, unit(2 * PAIRS, 11, torch.float64))


@contextmanager
def captured_elsewhere(breaks: bool = False) -> Iterator[None]:
    """While PyTorch captures a graph on another thread, in its default mode.

    Afterwards the graph does its work, unless the capture breaks.
    """
    opened, closing = threading.Event(), threading.Event()
    graph, given = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
    made: list[Any] = []
    failures: list[BaseException] = []

    def capture() -> None:
        try:
            with torch.cuda.graph(graph):
                made.append(2 * given)
                opened.set()
                assert closing.wait(100)
                made.append(made[0] + 1)
        except BaseException as failure:
            failures.append(failure)
        finally:
            opened.set()

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        assert opened.wait(100)
        yield
    finally:
        closing.set()
        thread.join(100)
    assert bool(failures) == breaks, failures
    if breaks:
        return
    given.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(made[1], torch.full_like(given, 7))


def live_through(vectors: Any, path: Path) -> list[Any]:
    """A run's life on a GPU, and what it answers on the way. PyTorch itself starts nothing here."""
    executor = uform.Executor.for_vram([0])
    trainer = make(executor, Objective.JOINT)
    found: list[Any] = []
    for _ in range(3):  # by itself, captured, and launched
        stats, answer = step(trainer, uform.Arena.for_ram())
        found += [stats.loss, answer.numpy().tobytes()]
    deferred, ahead = trainer.deferred(executor), [uform.TrainerStepStats() for _ in range(4)]
    words = [Modality.TEXT] * 4, ["one", "two", "three", "four"]
    relations = uform.Relations(attract=(np.arange(5, dtype=np.uint64), np.arange(4, dtype=np.uint32) ^ 1))
    arena = uform.Arena.for_ram()
    pending = [deferred.step(*words, relations=relations, arena=arena, stats=stats) for stats in ahead]
    found += [one.result(100).numpy().tobytes() for one in pending]
    found += [stats.loss for stats in ahead]
    form = uform.Contrastive(inverse_temperature=SCALE, ambient_scope=AmbientScope.TARGETS)
    evaluated = uform.losses.contrastive(executor, vectors, relations=one_way(PAIRS), contrastive=form)
    found += [evaluated.loss, trainer.read("norm").tobytes()]
    trainer.save(path)
    trainer.close()
    resumed = uform.Trainer.init_vram(executor, resume=path)
    found.append(step(resumed)[0].loss)
    resumed.close()
    model = uform.Model.init_vram(executor, path)
    found += [model.embed(*words).numpy().tobytes(), model.embed(*words, arena=uform.Arena.for_vram()).shape]
    return [*found, evaluated.gradient]


def test_a_capture_of_another_thread_disturbs_nothing(gpu: uform.Executor, tmp_path: Path) -> None:
    """Nor is it disturbed: PyTorch's default mode forbids other threads to allocate, to wait and to free."""
    vectors = unit(2 * PAIRS, 12, torch.float32).detach()
    with captured_elsewhere():
        *found, gradient = live_through(vectors, tmp_path / "captured")
    *expected, other = live_through(vectors, tmp_path / "alone")
    assert found == expected
    assert torch.equal(torch.from_dlpack(gradient), torch.from_dlpack(other))


def test_a_wait_for_the_whole_gpu_is_told_what_it_met(gpu: uform.Executor) -> None:
    """CUDA breaks every capture that such a wait comes upon, and refuses the wait."""
    arena, told = uform.Arena.for_vram(), "while another library captures a graph on it, and has given up that capture"
    with captured_elsewhere(breaks=True), pytest.raises(uform.DeviceError, match=told):
        arena.reset()
    arena.reset()
