"""Times a whole training step on the GPU at three shapes, beside a PyTorch peer where one is given.

    python tools/bench.py [--peer peer_torch.py] [--output bench.json]

Texts of 255 bytes (segments of 256 columns), masked bytes and symmetric InfoNCE over pairs of them, in one JOINT step.
A step is timed on the host, from the call to its return: packing, upload, both passes, update and statistics.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import uform

SHAPES = [(12, 512, 64), (12, 768, 64), (24, 1024, 32)]  # depth, hidden, rows of 1,024 columns
ROW_COLUMNS, TEXT_BYTES, TEXTS_PER_ROW = 1024, 255, 4
WARM_UP, STEPS = 8, 30


def make_batches(rows: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tapes of random bytes with their offsets."""
    rng = np.random.default_rng(0)
    texts = rows * TEXTS_PER_ROW
    offsets = np.arange(texts + 1, dtype=np.uint64) * TEXT_BYTES
    return [(rng.integers(0, 256, texts * TEXT_BYTES, dtype=np.uint8), offsets) for _ in range(count)]


def measure(depth: int, hidden: int, rows: int) -> dict[str, Any]:
    """The median of this library's steps."""
    executor = uform.Executor.for_vram([0])
    trainer = uform.Trainer.init_vram(
        executor,
        depth=depth,
        hidden=hidden,
        objective=uform.Objective.JOINT,
        batch=uform.BatchShape(max_rows_per_device=rows, max_columns_per_row=ROW_COLUMNS),
        contrastive=uform.Contrastive(negatives=uform.Negatives.AMBIENT, ambient_scope=uform.AmbientScope.EVERY),
        schedule=uform.Schedule(learning_rate=1e-4),
    )
    texts = rows * TEXTS_PER_ROW
    edges = (np.arange(texts + 1, dtype=np.uintp), (np.arange(texts) ^ 1).astype(np.uint32))
    relations, modalities, stats = (
        uform.Relations(attract=edges),
        [uform.Modality.TEXT] * texts,
        uform.TrainerStepStats(),
    )
    batches = make_batches(rows, 4)
    times = []
    for number in range(WARM_UP + STEPS):
        start = time.perf_counter()
        trainer.step(modalities, batches[number % 4], relations=relations, stats=stats)
        times.append(1e3 * (time.perf_counter() - start))
    kept = sorted(times[WARM_UP:])
    planned = trainer.describe()["planned_bytes_per_device"]["total"]
    return {
        "depth": depth,
        "hidden": hidden,
        "tokens": rows * ROW_COLUMNS,
        "step_ms": round(kept[len(kept) // 2], 3),
        "min_ms": round(kept[0], 3),
        "tokens_per_s": round(rows * ROW_COLUMNS / kept[len(kept) // 2] * 1e3),
        "planned_gib": round(planned / 2**30, 2),
        "loss": round(stats.loss, 4),
    }


def measure_peer(path: Path, depth: int, hidden: int, rows: int) -> dict[str, Any]:
    """What the peer's script prints."""
    shape = ["--depth", str(depth), "--hidden", str(hidden), "--rows", str(rows), "--columns", str(ROW_COLUMNS)]
    run = subprocess.run([sys.executable, path, *shape], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{path} failed:\n{run.stderr}")
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Prints a row a shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", type=Path, help="a script that times the same work in PyTorch and prints JSON")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    results = []
    print(f"{'shape':>22} {'uform ms':>9} {'GiB':>6} {'peer ms':>9} {'GiB':>6} {'times':>6}")
    for depth, hidden, rows in SHAPES:
        ours = measure(depth, hidden, rows)
        peer = measure_peer(options.peer, depth, hidden, rows) if options.peer else None
        theirs = ""
        if peer:
            theirs = f"{peer['step_ms']:9.2f} {peer['peak_gib']:6.2f} {peer['step_ms'] / ours['step_ms']:6.2f}"
        shape = f"{depth} x {hidden}, {ours['tokens']}"
        print(f"{shape:>22} {ours['step_ms']:9.2f} {ours['planned_gib']:6.2f} {theirs}", flush=True)
        results.append({"uform": ours, "peer": peer})
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
