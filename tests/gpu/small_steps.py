"""Small runs that put every kernel of a step to work: what the sanitizers watch.

    python -m tests.gpu.small_steps [--few]

Text and pictures, every objective, weights of several losses at once; steps one by one and captured as graphs, and what
a model answers. Few columns, for under a sanitizer each step takes seconds.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import uform
from uform import LateInteractionSide, Modality, Objective, PairLossForm

COUNT = 12
TEXTS = [f"{number} is {'so ' * number}" for number in range(COUNT)]
STEPS = 2  # the second of a size is captured and launched as a graph


def pictures() -> list[Any]:
    """As many as there are texts, of odd sizes."""
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (9 + number % 3, 11, 3)).astype(np.uint8) for number in range(COUNT)]


def make(executor: uform.Executor, objective: Objective, **changes: Any) -> uform.Trainer:
    """A run of depth 2 and hidden 128."""
    return uform.Trainer.init_vram(
        executor,
        depth=2,
        hidden=128,
        objective=objective,
        batch=uform.BatchShape(max_rows_per_device=6, max_columns_per_row=128, image=(4, 3), max_choices_per_item=4),
        schedule=uform.Schedule(learning_rate=1e-3, steps=10, warmup_steps=2),
        **changes,
    )


def pairs() -> uform.Relations:
    """Pictures and texts of one place attract each other; the text after is ignored by each picture."""
    partners = np.concatenate([np.arange(COUNT, 2 * COUNT), np.arange(COUNT)]).astype(np.uint32)
    ignored = (COUNT + (np.arange(COUNT) + 1) % COUNT).astype(np.uint32)
    return uform.Relations(
        attract=(np.arange(2 * COUNT + 1, dtype=np.uint64), partners),
        ignore=(np.minimum(np.arange(2 * COUNT + 1), COUNT).astype(np.uint64), ignored),
    )


def train_joint(executor: uform.Executor, form: PairLossForm, path: Path | None) -> None:
    """Masked pictures and texts beside a contrastive loss over two prefixes."""
    contrastive = uform.Contrastive(pair_loss=form, matryoshka_dimensions=[64, 128], max_edges_per_device=256)
    trainer = make(executor, Objective.JOINT, contrastive=contrastive)
    modalities = [Modality.IMAGE] * COUNT + [Modality.TEXT] * COUNT
    for _ in range(STEPS):
        trainer.step(modalities, [*pictures(), *TEXTS], relations=pairs())
    if path is not None:
        trainer.save(path)
        model = uform.Model.init_vram(executor, path)
        for scalar in uform.Scalar:
            model.embed(modalities, [*pictures(), *TEXTS], outputs_scalar=scalar)


def train_late_interaction(executor: uform.Executor, path: Path) -> None:
    """Queries and documents by their token vectors."""
    trainer = make(executor, Objective.CONTRASTIVE, late_interaction=uform.LateInteraction(max_query_span=10))
    half = COUNT // 2
    sides = [LateInteractionSide.QUERY] * half + [LateInteractionSide.DOCUMENT] * half
    offsets = np.minimum(np.arange(COUNT + 1), half).astype(np.uint64)
    relations = uform.Relations(attract=(offsets, np.arange(half, COUNT).astype(np.uint32)))
    for _ in range(STEPS):
        trainer.step([Modality.TEXT] * COUNT, TEXTS, sides=sides, relations=relations)
    trainer.save(path)
    uform.Model.init_vram(executor, path).embed_tokens([Modality.TEXT] * COUNT, TEXTS, sides=sides)


def train_choices(executor: uform.Executor, path: Path) -> None:
    """Each text with choices of its own, some abstaining."""
    trainer = make(executor, Objective.MASKED, choices=uform.Choices(label_smoothing=0.1))
    own = [["yes", "no", "perhaps"][: number % 4] for number in range(COUNT)]
    targets = [[1.0] + [0.0] * (len(one) - 1) if one else [] for one in own]
    for _ in range(STEPS):
        trainer.step([Modality.TEXT] * COUNT, TEXTS, choices=own, choice_targets=targets)
    trainer.save(path)
    uform.Model.init_vram(executor, path).text_choose(TEXTS, own)


def main() -> None:
    """All of them, on one GPU and on two replicas of it."""
    executor, few = uform.Executor.for_vram([0]), "--few" in sys.argv
    forms = [PairLossForm.BALANCED] if few else [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID]
    with tempfile.TemporaryDirectory() as folder:
        for form in forms:
            train_joint(executor, form, Path(folder) / "joint" if form == PairLossForm.BALANCED else None)
        train_late_interaction(executor, Path(folder) / "late")
        train_choices(executor, Path(folder) / "choices")
        if not few:
            train_joint(uform.Executor.for_vram([0, 0]), PairLossForm.BALANCED, None)
    print("done")


if __name__ == "__main__":
    main()
