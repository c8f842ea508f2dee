"""Covers rows of tables and predicts them, in whatever environment it is run, and prints what it saw as JSON.

python covered_tables.py CHECKPOINT [ram|vram]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import uform_tabular

import uform

TABLES, FIELDS, STEPS = 24, 4, 80
LOSS = "masked_tabular_loss"


def tables() -> list[Any]:
    """Tables of one row to five; all rows of one are the same, so that those that are seen tell the covered ones."""
    rng = np.random.default_rng(4)
    return [np.tile(rng.normal(size=FIELDS), (1 + place % 5, 1)).astype(np.float32) for place in range(TABLES)]


def make(executor: uform.Executor, **changes: Any) -> uform.Trainer:
    config = {"fields": FIELDS, **changes.pop("config", {})}
    init = uform.Trainer.init_ram if executor.kind == "ram" else uform.Trainer.init_vram
    options: dict[str, Any] = {
        "depth": 1,
        "hidden": 64,
        "objective": uform.Objective.MASKED,
        "batch": uform.BatchShape(max_rows_per_device=16, max_columns_per_row=32, max_segments_per_device=64),
        "schedule": uform.Schedule(learning_rate=1e-2, steps=STEPS, warmup_steps=1),
        "seed": 5,
        **changes,
    }
    return init(executor, plugins={"tabular": config}, **options)


def step(trainer: uform.Trainer, texts: bool = False) -> uform.TrainerStepStats:
    """Tables, and texts beside them where those are wanted; each pair attracts."""
    contents: list[Any] = list(tables())
    modalities: list[Any] = [uform_tabular.TABULAR] * TABLES
    relations = None
    if texts:
        contents += [f"table {place}" for place in range(TABLES)]
        modalities += [uform.Modality.TEXT] * TABLES
        ids = (np.arange(2 * TABLES, dtype=np.uint32) + TABLES) % (2 * TABLES)
        if "contrastive" in trainer.describe():
            relations = uform.Relations(attract=(np.arange(2 * TABLES + 1, dtype=np.uint64), ids))
    stats = uform.TrainerStepStats()
    trainer.step(modalities, contents, relations=relations, stats=stats)
    return stats


def reported(trainer: uform.Trainer, texts: bool = False) -> dict[str, float]:
    """A step's terms and how far its gradient would move what predicts the rows."""
    stats = step(trainer, texts)
    return {
        "total": stats.loss,
        "tables": stats.extra[LOSS],
        "text": stats.masked_text_loss,
        "contrastive": stats.contrastive_loss,
        "head": float(np.linalg.norm(trainer.read("tabular.head", "gradient"))),
        "weight": float(np.linalg.norm(trainer.read("tabular.weight", "gradient"))),
    }


def refusal(executor: uform.Executor, **config: float) -> str:
    try:
        make(executor, config=config)
    except ValueError as error:
        return str(error)
    return "taken"


def train(checkpoint: str, executor: uform.Executor) -> dict[str, Any]:
    """Steps with a checkpoint in their midst, then runs with other ratios, weights and objectives."""
    trainer, losses = make(executor), []
    for place in range(STEPS):
        if place == STEPS // 2:
            trainer.save(checkpoint)
        losses.append(step(trainer).extra[LOSS])
    init = uform.Trainer.init_ram if executor.kind == "ram" else uform.Trainer.init_vram
    resumed = init(executor, resume=checkpoint)
    again = [step(resumed).extra[LOSS] for _ in range(STEPS - STEPS // 2)]
    joint = uform.Objective.JOINT
    several = uform.Executor.for_ram(devices=3) if executor.kind == "ram" else uform.Executor.for_vram([0, 0, 0])
    infer = uform.Model.init_ram if executor.kind == "ram" else uform.Model.init_vram
    embedded = infer(executor, checkpoint).embed([uform_tabular.TABULAR] * TABLES, tables()).numpy()
    return {
        "losses": losses,
        "again": again,
        "one": reported(make(executor)),
        "three devices": reported(make(several)),
        "heavier": reported(make(executor, config={"mask_weight": 2.5})),
        "weightless": reported(make(executor, config={"mask_weight": -1})),
        "uncovered": reported(make(executor, config={"mask_ratio": -1})),
        "joint": reported(make(executor, objective=joint, config={"mask_weight": 0.5}), texts=True),
        "described": make(executor).describe()["plugins"]["tabular"],
        "refusals": [refusal(executor, mask_ratio=ratio) for ratio in (1.5, 1.0)],
        "embedded": bool(np.isfinite(embedded).all()),
    }


if __name__ == "__main__":
    on_ram = len(sys.argv) < 3 or sys.argv[2] == "ram"
    chosen = uform.Executor.for_ram(threads=1) if on_ram else uform.Executor.for_vram([0])
    print(json.dumps(train(sys.argv[1], chosen)))
