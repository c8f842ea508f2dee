"""Whole runs on the GPU against the same runs on RAM."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import uform
from tests.gpu.naive import matrices, naive_losses, rounded
from tests.gpu.record import ROOT, figures
from tests.helpers.cuda_driver import Driver
from uform import Modality, Objective, PairLossForm

WORDS = [f"{word} {side}" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight") for side in "ab"]
FORMS = [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID]


def make(executor: uform.Executor, objective: Objective, **changes: Any) -> uform.Trainer:
    init = uform.Trainer.init_vram if executor.kind == "vram" else uform.Trainer.init_ram
    options: dict[str, Any] = {
        "depth": 2,
        "hidden": 128,
        "objective": objective,
        "batch": uform.BatchShape(max_rows_per_device=8, max_columns_per_row=128, image=(4, 3)),
        "schedule": uform.Schedule(learning_rate=1e-3, steps=200, warmup_steps=10),
        "seed": 11,
    }
    return init(executor, **(options | changes))


def pictures() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, 256, (11, 14, 3)).astype(np.uint8) for _ in WORDS]


def step(trainer: uform.Trainer, arena: uform.Arena | None = None) -> tuple[uform.TrainerStepStats, Any]:
    """Pictures and words, each pair attracted both ways where the run scores pairs: else it refuses relations."""
    count = len(WORDS)
    partners = np.concatenate([np.arange(count, 2 * count), np.arange(count)]).astype(np.uint32)
    relations = uform.Relations(attract=(np.arange(2 * count + 1, dtype=np.uintp), partners))
    stats = uform.TrainerStepStats()
    modalities = [Modality.IMAGE] * count + [Modality.TEXT] * count
    contents = [*pictures(), *(f"{word} and {word} again" for word in WORDS)]
    scored = relations if "contrastive" in trainer.describe() else None
    answer = trainer.step(modalities, contents, relations=scored, arena=arena, stats=stats)
    return stats, answer


def losses(trainer: uform.Trainer, steps: int) -> NDArray[np.float64]:
    return np.array([step(trainer)[0].loss for _ in range(steps)])


def distance(left: NDArray[Any], right: NDArray[Any]) -> float:
    return float(np.linalg.norm(left - right) / max(float(np.linalg.norm(right)), 1e-30))


def bound(naive: float) -> float:
    """The tolerance policy, given how far a naive implementation is off."""
    return 2 * naive + 1e-3


def reference_losses(objective: Objective, steps: int) -> tuple[NDArray[np.float64], float]:
    """The losses on RAM, and how far the farthest of three naive runs is from them.

    Rounding grows along a run, in each by other steps. The four run at once, each on threads of its own.
    """

    def run(seed: int | None) -> NDArray[np.float64]:
        trainer = make(uform.Executor.for_ram(threads=4), objective)
        if seed is None:
            return losses(trainer, steps)
        return naive_losses(trainer, lambda trainer: step(trainer)[0].loss, steps, seed)

    with ThreadPoolExecutor(4) as pool:
        expected, *naive = pool.map(run, [None, 0, 1, 2])
    return expected, max(distance(one, expected) for one in naive)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("objective", list(Objective))
def test_gradients_of_a_step(
    objective: Objective, form: PairLossForm, gpu: uform.Executor, ram: uform.Executor
) -> None:
    scored = uform.Contrastive(pair_loss=form, matryoshka_dimensions=[32, 128])
    contrastive = scored if objective != Objective.MASKED else None
    trainers = [make(executor, objective, contrastive=contrastive) for executor in (gpu, ram)]
    losses = [step(trainer)[0] for trainer in trainers]
    assert losses[0].loss == pytest.approx(losses[1].loss, rel=1e-3)
    gradients = []
    for trainer in trainers:
        names = [entry["name"] for entry in trainer.describe()["parameters"]]
        gradients.append(np.concatenate([trainer.read(name, "gradient").ravel() for name in names]))
    assert distance(*gradients) < 2e-2


@pytest.mark.parametrize("objective", list(Objective))
def test_two_hundred_steps_follow_the_same_curve(objective: Objective, gpu: uform.Executor) -> None:
    got = losses(make(gpu, objective), 200)
    expected, naive = reference_losses(objective, 200)
    assert np.isfinite(got).all()
    assert got[-1] < 0.7 * got[0]
    error = distance(got, expected)
    figures[f"curve of {objective.name}"] = [
        f"first {got[0]:.6g} and {expected[0]:.6g}, last {got[-1]:.6g} and {expected[-1]:.6g} (GPU and RAM)",
        f"apart by {error:.2e}, a naive run by {naive:.2e}",
    ]
    assert error < bound(naive)


def test_the_same_run_twice_gives_the_same_bits(gpu: uform.Executor) -> None:
    weights = []
    for _ in range(2):
        trainer = make(gpu, Objective.JOINT)
        for _ in range(5):
            step(trainer)
        weights.append([trainer.read(entry["name"]).tobytes() for entry in trainer.describe()["parameters"]])
    assert weights[0] == weights[1]


def test_resume_is_bit_exact_and_crosses_backends(gpu: uform.Executor, ram: uform.Executor, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    straight = make(gpu, Objective.JOINT)
    for _ in range(3):
        step(straight)
    straight.save(path)
    resumed = uform.Trainer.init_vram(gpu, resume=path)
    assert step(resumed)[0].loss == step(straight)[0].loss
    for entry in straight.describe()["parameters"]:
        np.testing.assert_array_equal(resumed.read(entry["name"]), straight.read(entry["name"]))
    crossed = uform.Trainer.init_ram(ram, resume=path)
    assert np.isfinite(step(crossed)[0].loss)


def test_both_backends_embed_alike(gpu: uform.Executor, ram: uform.Executor, tmp_path: Path) -> None:
    path, naive_path = tmp_path / "checkpoint.safetensors", tmp_path / "naive.safetensors"
    trainer = make(ram, Objective.JOINT)
    losses(trainer, 3)
    trainer.save(path)
    rng = np.random.default_rng(1)
    for name, values in matrices(trainer).items():
        trainer.write(name, rounded(values, rng))
    trainer.save(naive_path)
    models = (
        uform.Model.init_vram(gpu, path),
        uform.Model.init_ram(ram, path),
        uform.Model.init_ram(ram, naive_path),
    )
    got, expected, naive = (np.asarray(model.embed([Modality.TEXT] * len(WORDS), WORDS)) for model in models)
    error, of_naive = distance(got, expected), distance(naive, expected)
    figures["embeddings"] = [f"apart by {error:.2e} (GPU and RAM), naive ones by {of_naive:.2e}"]
    assert error < bound(of_naive)


def test_replicas_equal_one(gpu: uform.Executor, replicas: uform.Executor) -> None:
    one, several = (losses(make(executor, Objective.JOINT), 5) for executor in (gpu, replicas))
    assert distance(several, one) < bound(reference_losses(Objective.JOINT, 5)[1])
    assert losses(make(replicas, Objective.JOINT), 5).tobytes() == several.tobytes()


def test_the_callers_context_stays_current(replicas: uform.Executor) -> None:
    driver = Driver()
    with driver.context() as own:
        trainer = make(replicas, Objective.JOINT)
        step(trainer)
        trainer.read("norm")
        trainer.close()
        uform.Arena.for_vram(replicas.devices[-1]).reset()
        del trainer
        assert driver.current_context() == own


def test_embeddings_come_back_in_an_arena(gpu: uform.Executor) -> None:
    answer = np.asarray(step(make(gpu, Objective.CONTRASTIVE), arena=uform.Arena.for_ram())[1])
    assert answer.shape == (2 * len(WORDS), 128)
    np.testing.assert_allclose(np.linalg.norm(answer, axis=1), 1, rtol=1e-3)


def test_a_step_that_is_not_finite_changes_nothing(gpu: uform.Executor) -> None:
    trainer = make(gpu, Objective.CONTRASTIVE)
    good = trainer.read("norm")
    trainer.write("norm", np.full_like(good, np.inf))
    before = trainer.read("blocks.0.qkv")
    with pytest.raises(FloatingPointError):
        step(trainer)
    np.testing.assert_array_equal(trainer.read("blocks.0.qkv"), before)
    trainer.write("norm", good)
    assert np.isfinite(step(trainer)[0].loss)


def test_the_plan_does_not_fit(gpu: uform.Executor) -> None:
    with pytest.raises(MemoryError, match=r"\d+ bytes were asked for, \d+ are free"):
        make(gpu, Objective.JOINT, depth=200, hidden=8192)


def test_absent_gpus_are_named() -> None:
    with pytest.raises(uform.DeviceError, match="77"):
        uform.Executor.for_vram([77])


AMPERE = """
import uform
import tests.gpu.test_training as training
executor = uform.Executor.for_vram([0])
trainer = training.make(executor, uform.Objective.JOINT)
losses = [training.step(trainer)[0].loss for _ in range(20)]
print(int(executor.gpu_class), losses[-1] < losses[0])
"""


def test_the_ampere_family_trains_too() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", AMPERE],
        cwd=ROOT,
        env={**os.environ, "UFORM_GPU_CLASS": "AMPERE", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["80", "True"]
