"""Trains rows of a table against texts about them, in whatever environment it is run, and prints what it saw as JSON.

python tabled.py CHECKPOINT [ram|vram]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import uform_tabular

import uform

ITEMS = 12
STEPS = 60


def items() -> tuple[list[Any], list[object], uform.Relations]:
    """Every text beside a table of a row or two that holds what it says."""
    modalities: list[Any] = []
    contents: list[object] = []
    for item in range(ITEMS):
        row = np.array([2 * (item % 3) - 2, 2 * (item // 3) - 3, 1, -1], np.float32)
        modalities += [uform_tabular.TABULAR, uform.Modality.TEXT]
        contents += [row if item % 2 else np.stack([row, row]), f"colour {'rgb'[item % 3]}, size {'1234'[item // 3]}"]
    ids = np.arange(2 * ITEMS, dtype=np.uint32) ^ 1
    return modalities, contents, uform.Relations(attract=(np.arange(2 * ITEMS + 1, dtype=np.uint64), ids))


def refusal(trainer: uform.Trainer, content: object) -> str:
    """What a step says of a content behind a good one."""
    modalities: list[Any] = [uform_tabular.TABULAR] * 2
    given = np.array(content, np.float32) if isinstance(content, list) else content
    try:
        trainer.step(modalities, [np.zeros(4, np.float32), given])
    except (TypeError, ValueError) as error:
        return str(error)
    return "taken"


def train(checkpoint: str, executor: uform.Executor) -> dict[str, object]:
    """Some steps, a checkpoint in their midst, the rest once more from there, and the table found by its text."""
    ram = executor.kind == "ram"
    init = uform.Trainer.init_ram if ram else uform.Trainer.init_vram
    trainer = init(
        executor,
        depth=1,
        hidden=64,
        objective=uform.Objective.CONTRASTIVE,
        batch=uform.BatchShape(max_rows_per_device=16, max_columns_per_row=32, max_segments_per_device=32),
        contrastive=uform.Contrastive(ambient_scope=uform.AmbientScope.CROSS_MODAL),
        schedule=uform.Schedule(learning_rate=5e-3, steps=STEPS, warmup_steps=1),
        plugins={"tabular": {"fields": 4}},
    )
    modalities, contents, edges = items()
    stats = uform.TrainerStepStats()
    losses = []
    for step in range(STEPS):
        if step == STEPS // 2:
            trainer.save(checkpoint)
        trainer.step(modalities, contents, relations=edges, stats=stats)
        losses.append(stats.loss)
    resumed = init(executor, resume=checkpoint)
    again = []
    for _ in range(STEPS - STEPS // 2):
        resumed.step(modalities, contents, relations=edges, stats=stats)
        again.append(stats.loss)
    resumed.save(checkpoint)
    model = (uform.Model.init_ram if ram else uform.Model.init_vram)(executor, checkpoint)
    vectors = model.embed(modalities, contents).numpy()
    found = (vectors[1::2] @ vectors[::2].T).argmax(axis=1)
    described = trainer.describe()
    wrong = [np.zeros(3, np.float32), np.zeros((2, 2, 2), np.float32), np.zeros(4), "0,0,0,0", [[0.0, np.nan, 0, 0]]]
    return {
        "losses": losses,
        "again": again,
        "plugins": described["plugins"],
        "parameters": [entry for entry in described["parameters"] if entry["name"].startswith("tabular.")],
        "found": float((found == np.arange(ITEMS)).mean()),
        "truncated": stats.truncated,
        "refusals": [refusal(trainer, content) for content in wrong],
        "step": trainer.describe()["step"],
        "graphs": trainer._counters()["graphs"],
    }


if __name__ == "__main__":
    on_ram = len(sys.argv) < 3 or sys.argv[2] == "ram"
    chosen = uform.Executor.for_ram(threads=1) if on_ram else uform.Executor.for_vram([0])
    print(json.dumps(train(sys.argv[1], chosen)))
