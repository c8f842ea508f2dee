"""Runs past what 32 bits or a grid count: what lies last in their tensors is computed as what lies first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import uform
from tests.helpers.cuda_driver import Driver
from uform import Modality, Negatives, Objective

pytestmark = pytest.mark.alone

ROWS, ROW_COLUMNS = 256, 1024
# More values of queries, keys and values than 32 bits count, more blocks of columns than a grid is high.
LARGE = [(768, 8), (64, 33)]  # hidden, copies


def texts() -> list[str]:
    """As many as fill the rows of one copy: half of them four a row."""
    rng = np.random.default_rng(3)
    lengths = [ROW_COLUMNS // 4 - 1] * (ROWS // 2 * 4) + [ROW_COLUMNS - 1] * (ROWS // 2)
    return [rng.integers(97, 123, length).astype(np.uint8).tobytes().decode() for length in lengths]


def options(hidden: int, copies: int, objective: Objective) -> dict[str, Any]:
    count = len(texts()) * copies
    scored = uform.Contrastive(negatives=Negatives.NAMED, max_edges_per_device=2 * count)
    return {
        "depth": 1,
        "hidden": hidden,
        "objective": objective,
        "batch": uform.BatchShape(
            max_rows_per_device=ROWS * copies, max_columns_per_row=ROW_COLUMNS, max_segments_per_device=count
        ),
        "contrastive": scored if objective == Objective.CONTRASTIVE else None,
        "seed": 5,
    }


def run(
    gpu: uform.Executor, hidden: int, copies: int, objective: Objective
) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """The loss, the embeddings and the gradient of a step over as many copies of the texts, related within each."""
    trainer = uform.Trainer.init_vram(gpu, **options(hidden, copies, objective))
    one = texts()
    count = len(one) * copies
    place = np.arange(count)
    first = place // len(one) * len(one)
    relations = None
    if objective == Objective.CONTRASTIVE:
        offsets = np.arange(count + 1, dtype=np.uint64)
        others = (first + (place - first + 7) % len(one)).astype(np.uint32)
        relations = uform.Relations(attract=(offsets, (place ^ 1).astype(np.uint32)), repel=(offsets, others))
    stats = uform.TrainerStepStats()
    answer: Any = trainer.step(
        [Modality.TEXT] * count, one * copies, relations=relations, arena=uform.Arena.for_ram(), stats=stats
    )
    assert (stats.dropped, stats.truncated) == (0, 0)
    names = [entry["name"] for entry in trainer.describe()["parameters"]]
    gradient = np.concatenate([trainer.read(name, "gradient").ravel() for name in names])
    trainer.close()
    return stats.loss, np.array(answer), gradient


def check_room(gpu: uform.Executor, hidden: int, copies: int) -> None:
    plan = uform.Trainer.plan_vram(gpu, **options(hidden, copies, Objective.MASKED))
    planned = plan["planned_bytes_per_device"]["total"]
    if planned > 0.97 * Driver().free_bytes():
        pytest.skip(f"{planned >> 30} GiB are needed")


@pytest.mark.parametrize(("hidden", "copies"), LARGE)
def test_copies_of_a_batch_have_its_gradient(gpu: uform.Executor, hidden: int, copies: int) -> None:
    check_room(gpu, hidden, copies)
    loss, embeddings, gradient = run(gpu, hidden, 1, Objective.CONTRASTIVE)
    many_loss, many_embeddings, many_gradient = run(gpu, hidden, copies, Objective.CONTRASTIVE)
    assert many_loss == pytest.approx(loss, rel=1e-4)
    for copy in many_embeddings.reshape(copies, *embeddings.shape):
        np.testing.assert_allclose(copy, embeddings, atol=1e-3)
    assert np.linalg.norm(many_gradient - gradient) < 1e-2 * np.linalg.norm(gradient)


@pytest.mark.parametrize(("hidden", "copies"), LARGE)
def test_masks_over_so_many_columns(gpu: uform.Executor, hidden: int, copies: int) -> None:
    """They differ from copy to copy: of so many the losses, and the parts of gradients that they share, are near."""
    check_room(gpu, hidden, copies)
    loss, _, gradient = run(gpu, hidden, 1, Objective.MASKED)
    many_loss, _, many_gradient = run(gpu, hidden, copies, Objective.MASKED)
    assert many_loss == pytest.approx(loss, rel=1e-2)
    assert np.dot(many_gradient, gradient) > 0.9 * np.linalg.norm(many_gradient) * np.linalg.norm(gradient)
