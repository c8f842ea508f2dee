"""What a process may rely on that has several GPUs: those it does not name are left alone, and so is its choice."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import uform
import uform.torch
from tests.gpu.test_arenas import step
from tests.gpu.test_training import make
from tests.gpu.test_training import step as joint_step
from tests.helpers.processes import run_python
from uform import Objective


@pytest.fixture(scope="module", autouse=True)
def second() -> uform.Executor:
    try:
        return uform.Executor.for_vram([1])
    except uform.DeviceError as error:
        pytest.skip(f"two GPUs are needed: {error}")


ELSEWHERE = """
import json, sys
import numpy as np
import uform
from tests.gpu.test_training import make, step
from tests.helpers.cuda_driver import has_primary_context

devices = json.loads(sys.argv[1])
seen = []
def look(name):
    seen.append(name if has_primary_context(0) else "")

executor = uform.Executor.for_vram(devices)
look("executor")
trainer = make(executor, uform.Objective.JOINT)
look("trainer")
arena = uform.Arena.for_vram(devices[-1])
for _ in range(3):
    step(trainer, arena)
look("step")
trainer.deferred(executor).save(sys.argv[2]).result(60)
look("save")
model = uform.Model.init_vram(executor, sys.argv[2])
model.embed([uform.Modality.TEXT] * 2, ["one", "two"], arena=arena).numpy()
look("model")
trainer.close()
arena.reset()
del trainer, model, arena, executor
look("release")
print(json.dumps([name for name in seen if name]))
"""


@pytest.mark.parametrize("devices", [[1], [1, 1]])
def test_gpu_0_is_left_alone(devices: list[int], tmp_path: Any) -> None:
    """A context takes hundreds of MiB of a GPU that may be someone else's."""
    assert run_python(ELSEWHERE, devices, tmp_path / "checkpoint") == []


def in_a_thread(body: Callable[[], Any]) -> Any:
    """What `body` answers on a thread that has no context yet."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(body()))
    thread.start()
    thread.join()
    return answers[0]


@pytest.mark.parametrize("devices", [[0], [1], [0, 1]])
def test_the_callers_gpu_stays_current(devices: list[int]) -> None:
    torch = pytest.importorskip("torch")
    executor = uform.Executor.for_vram(devices)
    trainer = make(executor, Objective.CONTRASTIVE)

    def current(chosen: int | None) -> tuple[int, int]:
        if chosen is not None:
            torch.cuda.set_device(chosen)
        step(trainer, uform.Arena.for_vram(devices[-1])).numpy()
        return torch.cuda.current_device(), torch.zeros(1, device="cuda").device.index

    assert in_a_thread(functools.partial(current, None)) == (0, 0)
    for chosen in (0, 1, 0):
        assert in_a_thread(functools.partial(current, chosen)) == (chosen, chosen)


@pytest.mark.parametrize("index", [0, 1])
def test_losses_compute_where_the_vectors_lie(index: int) -> None:
    torch = pytest.importorskip("torch")
    executor = uform.Executor.for_vram([0, 1])
    values = np.random.default_rng(3).normal(size=(64, 96)).astype(np.float32) / 10
    relations = uform.Relations(attract=(range(65), [place ^ 1 for place in range(64)]))
    expected: Any = uform.losses.contrastive(uform.Executor.for_ram(), values, relations=relations)
    found: Any = uform.losses.contrastive(executor, torch.from_numpy(values).to(f"cuda:{index}"), relations=relations)
    assert found.loss == pytest.approx(expected.loss, rel=1e-3)
    assert found.gradient.device == f"vram:{index}"
    gradient = torch.from_dlpack(found.gradient)
    assert gradient.device.index == index
    np.testing.assert_allclose(gradient.cpu().numpy(), expected.gradient, atol=2e-2 * np.abs(expected.gradient).max())
    with pytest.raises(ValueError, match=rf"embeddings lies on vram:{index}: expected .* GPUs, \[{1 - index}\]"):
        uform.losses.contrastive(
            uform.Executor.for_vram([1 - index]), torch.from_numpy(values).to(f"cuda:{index}"), relations=relations
        )


@pytest.mark.parametrize("index", [0, 1])
def test_gradients_come_back_to_where_the_vectors_lie(index: int) -> None:
    torch = pytest.importorskip("torch")
    executor = uform.Executor.for_vram([index])
    values = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)) / 10
    relations = uform.Relations(attract=(range(65), [place ^ 1 for place in range(64)]))
    vectors = values.to(f"cuda:{index}").requires_grad_()
    (2 * uform.torch.contrastive(executor, vectors, relations=relations)).backward()
    expected: Any = uform.losses.contrastive(uform.Executor.for_ram(), values.numpy(), relations=relations)
    assert vectors.grad.device.index == index
    gradient = 2 * expected.gradient
    np.testing.assert_allclose(vectors.grad.cpu().numpy(), gradient, atol=2e-2 * np.abs(gradient).max())


def test_a_run_moves_among_counts_of_gpus(tmp_path: Any) -> None:
    """One, two and one again: the masks and sums are those of a run that stayed on one, to rounding."""
    counts = [[0], [0, 1], [1]]
    staying, losses = make(uform.Executor.for_vram([0]), Objective.JOINT), []
    path = tmp_path / "checkpoint"
    make(uform.Executor.for_vram([0]), Objective.JOINT).save(path)
    for devices in counts:
        trainer = uform.Trainer.init_vram(uform.Executor.for_vram(devices), resume=path)
        for _ in range(3):
            losses.append(_loss(trainer))
        trainer.save(path)
    np.testing.assert_allclose(losses, [_loss(staying) for _ in losses], rtol=5e-3)


def _loss(trainer: uform.Trainer) -> float:
    return float(joint_step(trainer)[0].loss)
