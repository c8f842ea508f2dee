"""Runs that choose, on the GPU against RAM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.gpu.naive import matrices, rounded
from tests.gpu.record import figures
from tests.gpu.test_training import bound, distance, make
from uform import Choices, Modality, Objective

TEXTS = ["is it so", "", "what of this one", "a longer text that asks nothing", "x" * 100, "and a sixth"] * 6
OWN = [["yes", "no"], ["a"], ["left", "right", "", "straight ahead"], [], ["u", "vw", "xyz"], ["this", "that"]] * 6
TARGETS: list[list[float]] = [[0, 1], [1], [0.5, 0.25, 0, 0.25], [], [0, 0, 0], [1, 0]] * 6
BATCH = uform.BatchShape(max_rows_per_device=16, max_columns_per_row=128, image=(4, 3), max_choices_per_item=4)


def make_chooser(executor: uform.Executor, objective: Objective, **changes: Any) -> uform.Trainer:
    return make(executor, objective, batch=BATCH, choices=Choices(weight=1.5, label_smoothing=0.1), **changes)


def gradients(trainer: uform.Trainer) -> dict[str, Any]:
    return {one["name"]: trainer.read(one["name"], "gradient").ravel() for one in trainer.describe()["parameters"]}


def whole(parts: dict[str, Any]) -> Any:
    return np.concatenate(list(parts.values()))


def step(trainer: uform.Trainer) -> uform.TrainerStepStats:
    count = len(TEXTS)
    partners = np.roll(np.arange(count), 6).astype(np.uint32)
    relations = uform.Relations(attract=(np.arange(count + 1, dtype=np.uintp), partners))
    stats = uform.TrainerStepStats()
    trainer.step(
        [Modality.TEXT] * count,
        TEXTS,
        relations=relations if "contrastive" in trainer.describe() else None,
        choices=OWN,
        choice_targets=TARGETS,
        stats=stats,
    )
    assert stats.dropped == 0
    return stats


def compared(
    objective: Objective, executors: tuple[uform.Executor, uform.Executor], factor: float
) -> tuple[float, float]:
    """How far two gradients of a step are apart, whole and the vector's own, with all weights so many times larger."""
    trainers = [make_chooser(executor, objective) for executor in executors]
    for trainer in trainers:
        for name, values in (matrices(trainer) | {"choices.vector": trainer.read("choices.vector")}).items():
            trainer.write(name, factor * values)
    got, expected = (step(trainer) for trainer in trainers)
    assert got.choices_loss == pytest.approx(expected.choices_loss, rel=1e-3)
    assert got.loss == pytest.approx(expected.loss, rel=1e-3)
    left, right = (gradients(trainer) for trainer in trainers)
    return distance(whole(left), whole(right)), distance(left["choices.vector"], right["choices.vector"])


@pytest.mark.parametrize("objective", list(Objective))
def test_gradients_of_a_step(objective: Objective, gpu: uform.Executor, ram: uform.Executor) -> None:
    error, of_vector = compared(objective, (gpu, ram), 1)
    figures[f"gradients of choices beside {objective.name}"] = [f"all {error:.2e}, vector {of_vector:.2e}"]
    assert error < 2e-2


def test_gradients_where_choices_differ(gpu: uform.Executor, ram: uform.Executor) -> None:
    """At first all choices look alike, and the vector hears of differences that bfloat16 hardly holds."""
    error, of_vector = compared(Objective.MASKED, (gpu, ram), 3)
    figures["gradients where choices differ"] = [f"all {error:.2e}, vector {of_vector:.2e}"]
    assert error < 2e-2
    assert of_vector < 5e-2


def test_the_same_run_twice_gives_the_same_bits(gpu: uform.Executor) -> None:
    weights = []
    for _ in range(2):
        trainer = make_chooser(gpu, Objective.JOINT)
        for _ in range(5):
            step(trainer)
        weights.append([trainer.read(entry["name"]).tobytes() for entry in trainer.describe()["parameters"]])
    assert weights[0] == weights[1]


def test_steps_are_captured_and_learn(gpu: uform.Executor) -> None:
    trainer = make_chooser(gpu, Objective.CONTRASTIVE)
    losses = [step(trainer).choices_loss for _ in range(100)]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.7 * losses[0]
    counted = trainer._counters()
    assert counted["graphs"] >= 1
    assert counted["graph_launches"] >= 50


def test_two_replicas_on_one_gpu_equal_one(gpu: uform.Executor) -> None:
    assert compared(Objective.JOINT, (uform.Executor.for_vram([0, 0]), gpu), 1)[0] < 2e-2


def test_both_backends_choose_alike(gpu: uform.Executor, ram: uform.Executor, tmp_path: Path) -> None:
    path, naive_path = tmp_path / "run.safetensors", tmp_path / "naive.safetensors"
    trainer = make_chooser(ram, Objective.CONTRASTIVE)
    for _ in range(10):
        step(trainer)
    trainer.save(path)
    rng = np.random.default_rng(1)
    # What rounds the hidden states that the vector meets is as good as errors of the vector.
    vector = {"choices.vector": trainer.read("choices.vector")}
    for name, values in (matrices(trainer) | vector).items():
        trainer.write(name, rounded(values, rng))
    trainer.save(naive_path)
    on_gpu = uform.Model.init_vram(gpu, path)
    got = on_gpu.text_choose(TEXTS, OWN)
    expected, naive = (uform.Model.init_ram(ram, file).text_choose(TEXTS, OWN) for file in (path, naive_path))
    np.testing.assert_array_equal(got.offsets, expected.offsets)
    error, of_naive = distance(got.numpy(), expected.numpy()), distance(naive.numpy(), expected.numpy())
    figures["probabilities of choices"] = [f"apart by {error:.2e} (GPU and RAM), naive ones by {of_naive:.2e}"]
    assert error < bound(of_naive)


def test_answers_in_the_memory_of_a_gpu_teach_another_run(gpu: uform.Executor, tmp_path: Path) -> None:
    teacher = make_chooser(gpu, Objective.CONTRASTIVE)
    teacher.save(tmp_path / "teacher.safetensors")
    model = uform.Model.init_vram(gpu, tmp_path / "teacher.safetensors")
    answer = model.text_choose(TEXTS, OWN, arena=uform.Arena.for_vram(0))
    assert answer.device == "vram:0"
    np.testing.assert_array_equal(answer.numpy(), model.text_choose(TEXTS, OWN).numpy())
    pupil, stats = make(gpu, Objective.CONTRASTIVE, batch=BATCH, choices=Choices(), seed=3), uform.TrainerStepStats()
    losses = []
    for _ in range(60):
        pupil.step(
            [Modality.TEXT] * len(TEXTS), TEXTS, choices=OWN, choice_targets=(answer, answer.offsets), stats=stats
        )
        losses.append(stats.choices_loss)
    assert losses[-1] < losses[0]
