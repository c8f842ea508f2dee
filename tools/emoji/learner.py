"""The run in this library."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import uform
from tools.emoji.batches import Batch
from tools.emoji.data import Emojis
from tools.emoji.recall import Vectors
from tools.emoji.recipe import ROW_COLUMNS, Recipe


class Learner:
    """Trains a recipe on an executor.

    Attributes:
        name: what the report calls it.
    """

    name = "uform"

    def __init__(self, executor: uform.Executor, recipe: Recipe, emojis: Emojis) -> None:
        items = recipe.pictures * (1 + recipe.names_each)
        self._executor = executor
        init = uform.Trainer.init_vram if executor.kind == "vram" else uform.Trainer.init_ram
        self._trainer = init(
            executor,
            depth=recipe.depth,
            hidden=recipe.hidden,
            objective=uform.Objective.CONTRASTIVE,
            batch=uform.BatchShape(
                max_rows_per_device=recipe.rows(emojis),
                max_columns_per_row=ROW_COLUMNS,
                max_segments_per_device=items,
                image=uform.ImageShape(patch_side=recipe.patch_side, channels=3),
            ),
            contrastive=uform.Contrastive(
                ambient_scope=uform.AmbientScope.CROSS_MODAL,
                pair_loss=uform.PairLossForm.BALANCED,
                max_edges_per_device=8 * items,
            ),
            schedule=uform.Schedule(
                learning_rate=recipe.learning_rate,
                min_learning_rate=recipe.min_learning_rate,
                warmup_steps=recipe.warmup_steps or -1,
                steps=recipe.steps,
            ),
            optimizer=uform.Optimizer(weight_decay=recipe.weight_decay),
            seed=recipe.seed,
        )

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Every parameter by name."""
        return {entry["name"]: self._trainer.read(entry["name"]) for entry in self._trainer.describe()["parameters"]}

    @property
    def gib(self) -> float:
        """Memory of the GPU that a step uses: one block, planned whole."""
        return float(self._trainer.describe()["planned_bytes_per_device"]["total"]) / 2**30

    def warm_up(self, batch: Batch) -> None:
        """Nothing: all was compiled when the library was built."""

    def step(self, batch: Batch) -> None:
        """One optimizer step."""
        self._step(batch, None)

    def step_and_tell(self, batch: Batch) -> float:
        """One optimizer step; answers its loss."""
        stats = uform.TrainerStepStats()
        self._step(batch, stats)
        if stats.dropped:
            raise RuntimeError(f"step {stats.step}: {stats.dropped} items found no room in the batch's rows")
        return stats.loss

    def _step(self, batch: Batch, stats: uform.TrainerStepStats | None) -> None:
        modalities = [uform.Modality.IMAGE] * len(batch.pictures) + [uform.Modality.TEXT] * len(batch.names)
        relations = uform.Relations(attract=batch.attracted(), ignore=batch.ignored())
        self._trainer.step(modalities, [*batch.pictures, *batch.names], relations=relations, stats=stats)

    def embed(self, emojis: Emojis) -> tuple[Vectors, Vectors]:
        """Unit vectors of the pictures and of all names, from a checkpoint as a user would."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "emoji.safetensors"
            self._trainer.save(path)
            init = uform.Model.init_vram if self._executor.kind == "vram" else uform.Model.init_ram
            model = init(self._executor, path)
        names = emojis.all_names
        pictures = model.embed([uform.Modality.IMAGE] * len(emojis), list(emojis.pictures))
        return pictures.numpy(), model.embed([uform.Modality.TEXT] * len(names), names).numpy()

    def close(self) -> None:
        """Gives its memory back."""
        self._trainer.close()
