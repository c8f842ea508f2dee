"""Times whole training steps of one shape, and prints one line of JSON.

    python -m tools.bench.step --depth 12 --hidden 512 --rows 64

Texts of 255 bytes, which are segments of 256 columns: masked bytes and symmetric InfoNCE over pairs of them, in one
JOINT step. It is timed on the host from the call to its return: packing, upload, both passes, the update and its
statistics. A peer that waits for each step and records CUDA events around it times the same span. Deferred steps are
timed from the first call of many to the last result, a step's share of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import uform

ROW_COLUMNS, TEXT_BYTES, TEXTS_PER_ROW = 1024, 255, 4
WARM_UP, STEPS = 8, 30


def make_batches(rows: int, count: int) -> list[tuple[NDArray[np.uint8], NDArray[np.uint64]]]:
    """Tapes of random bytes with their offsets."""
    rng = np.random.default_rng(0)
    texts = rows * TEXTS_PER_ROW
    offsets = np.arange(texts + 1, dtype=np.uint64) * TEXT_BYTES
    return [(rng.integers(0, 256, texts * TEXT_BYTES, dtype=np.uint8), offsets) for _ in range(count)]


def make_trainer(executor: uform.Executor, depth: int, hidden: int, rows: int) -> uform.Trainer:
    """The trainer of a shape, on either executor."""
    init = uform.Trainer.init_vram if executor.kind == "vram" else uform.Trainer.init_ram
    return init(
        executor,
        depth=depth,
        hidden=hidden,
        objective=uform.Objective.JOINT,
        batch=uform.BatchShape(max_rows_per_device=rows, max_columns_per_row=ROW_COLUMNS),
        contrastive=uform.Contrastive(negatives=uform.Negatives.AMBIENT, ambient_scope=uform.AmbientScope.EVERY),
        schedule=uform.Schedule(learning_rate=1e-4),
    )


def measure(executor: uform.Executor, depth: int, hidden: int, rows: int, steps: int = STEPS) -> dict[str, Any]:
    """The median of this library's steps, and the block of memory that they use."""
    trainer = make_trainer(executor, depth, hidden, rows)
    texts = rows * TEXTS_PER_ROW
    edges = (np.arange(texts + 1, dtype=np.uint64), (np.arange(texts) ^ 1).astype(np.uint32))
    relations, modalities = uform.Relations(attract=edges), [uform.Modality.TEXT] * texts
    stats, batches, times = uform.TrainerStepStats(), make_batches(rows, 4), []
    for number in range(WARM_UP + steps):
        start = time.perf_counter()
        trainer.step(modalities, batches[number % 4], relations=relations, stats=stats)
        times.append(1e3 * (time.perf_counter() - start))
    kept = sorted(times[WARM_UP:])
    median = kept[len(kept) // 2]
    loss, deferred = stats.loss, trainer.deferred(executor)
    start = time.perf_counter()
    pending = [deferred.step(modalities, batches[number % 4], relations=relations) for number in range(2 * steps)]
    pending[-1].result()
    ahead = 1e3 * (time.perf_counter() - start) / len(pending)
    return {
        "depth": depth,
        "hidden": hidden,
        "tokens": rows * ROW_COLUMNS,
        "step_ms": round(median, 3),
        "min_ms": round(kept[0], 3),
        "max_ms": round(kept[-1], 3),
        "deferred_ms": round(ahead, 3),
        "tokens_per_s": round(rows * ROW_COLUMNS / median * 1e3),
        "planned_gib": round(trainer.describe()["planned_bytes_per_device"]["total"] / 2**30, 3),
        "loss": round(loss, 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures one shape."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.step")
    for name in ("depth", "hidden", "rows"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args(arguments)
    print(json.dumps(measure(uform.Executor.for_vram([0]), options.depth, options.hidden, options.rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
