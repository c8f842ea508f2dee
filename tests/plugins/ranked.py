"""Trains with a ranking objective by name, in whatever environment it is run, and prints what it saw as JSON.

python ranked.py NAME CHECKPOINT [ram|vram]

The first step's gradients go beside the checkpoint.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import uform

# Pairs of items in the order in which their cosines should fall.
TEXTS = ["a small cat", "a little cat", "a cat", "a dog", "the stock market", "prices of shares", "rain"]
PAIRS = [(0, 1, 1.0), (0, 2, 0.8), (0, 3, 0.5), (4, 5, 0.9), (0, 4, 0.1), (3, 6, 0.1), (2, 5, 0.05)]
STEPS = 40


def relations() -> uform.Relations:
    """The pairs as edges, by row."""
    offsets = np.zeros(len(TEXTS) + 1, np.uint64)
    for row, _, _ in PAIRS:
        offsets[row + 1 :] += np.uint64(1)
    ordered = sorted(PAIRS, key=lambda pair: pair[0])
    ids = np.array([other for _, other, _ in ordered], np.uint32)
    return uform.Relations(attract=(offsets, ids, np.array([weight for _, _, weight in ordered], np.float32)))


def train(name: str, checkpoint: str, executor: uform.Executor) -> dict[str, object]:
    """Some steps, a checkpoint in their midst, and the rest once more from there."""
    init = uform.Trainer.init_ram if executor.kind == "ram" else uform.Trainer.init_vram
    trainer = init(
        executor,
        depth=1,
        hidden=64,
        batch=uform.BatchShape(max_rows_per_device=8, max_columns_per_row=64),
        masking=uform.Masking(text_weight=-1),
        schedule=uform.Schedule(learning_rate=3e-3, steps=STEPS, warmup_steps=1),
        plugins={name: {"scale": 10.0}},
    )
    described = trainer.describe()
    modalities, edges, stats = [uform.Modality.TEXT] * len(TEXTS), relations(), uform.TrainerStepStats()
    losses: list[float] = []
    first_gradient: dict[str, Any] = {}
    for step in range(STEPS):
        if step == STEPS // 2:
            trainer.save(checkpoint)
        trainer.step(modalities, TEXTS, relations=edges, stats=stats)
        losses.append(stats.extra[name])
        first_gradient = first_gradient or {
            parameter["name"]: trainer.read(parameter["name"], "gradient") for parameter in described["parameters"]
        }
    np.savez(f"{checkpoint}.{executor.kind}.npz", **first_gradient)
    resumed = init(executor, resume=checkpoint)
    again = []
    for _ in range(STEPS - STEPS // 2):
        resumed.step(modalities, TEXTS, relations=edges, stats=stats)
        again.append(stats.extra[name])
    embedded = trainer.step(modalities, TEXTS, relations=edges, arena=uform.Arena.for_ram())
    assert embedded is not None
    vectors = embedded.numpy()
    counters = trainer._counters()
    own = [parameter["name"] for parameter in described["parameters"] if parameter["name"].startswith(f"{name}.")]
    return {
        "losses": losses,
        "again": again,
        "total": stats.loss,
        "plugins": described["plugins"],
        "parameters": {parameter: trainer.read(parameter).tolist() for parameter in own},
        "gradient": {parameter: float(np.linalg.norm(value)) for parameter, value in first_gradient.items()},
        "cosines": [float(vectors[one] @ vectors[other]) for one, other, _ in PAIRS],
        "graphs": counters["graphs"],
        "launches": counters["graph_launches"],
    }


if __name__ == "__main__":
    on_ram = len(sys.argv) < 4 or sys.argv[3] == "ram"
    chosen = uform.Executor.for_ram(threads=1) if on_ram else uform.Executor.for_vram([0])
    print(json.dumps(train(sys.argv[1], sys.argv[2], chosen)))
