"""Times a whole training step on the GPU at some shapes, beside a PyTorch peer where one is given.

    python tools/bench.py [--shapes tiny small ...] [--peer peer_torch.py] [--output bench.json]

Texts that fill segments of up to 256 columns, masked bytes and symmetric InfoNCE over pairs of them, in one JOINT step.
A step is timed on the host: a blocking one from the call to its return (packing, upload, both passes, update and
statistics), deferred ones by the time from the first call of many to the last result, a step's share of it.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import uform


class Shape(NamedTuple):
    """What is trained, and on how much."""

    depth: int
    hidden: int
    rows: int
    row_columns: int

    @property
    def text_bytes(self) -> int:
        """Of each text: with its marker it is a segment."""
        return min(self.row_columns, 256) - 1

    @property
    def texts(self) -> int:
        """As many as fill the rows."""
        return self.rows * self.row_columns // (self.text_bytes + 1)


SHAPES = {
    "small": Shape(12, 512, 64, 1024),
    "base": Shape(12, 768, 64, 1024),
    "large": Shape(24, 1024, 32, 1024),
    "tiny": Shape(3, 128, 64, 128),  # where launches dominate
}
WARM_UP, STEPS = 8, 30


def make_batches(shape: Shape, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tapes of random bytes with their offsets."""
    rng = np.random.default_rng(0)
    offsets = np.arange(shape.texts + 1, dtype=np.uint64) * shape.text_bytes
    size = shape.texts * shape.text_bytes
    return [(rng.integers(0, 256, size, dtype=np.uint8), offsets) for _ in range(count)]


def measure(shape: Shape) -> dict[str, Any]:
    """The median of this library's blocking steps, and the mean of its deferred ones."""
    executor = uform.Executor.for_vram([0])
    trainer = uform.Trainer.init_vram(
        executor,
        depth=shape.depth,
        hidden=shape.hidden,
        objective=uform.Objective.JOINT,
        batch=uform.BatchShape(max_rows_per_device=shape.rows, max_columns_per_row=shape.row_columns),
        contrastive=uform.Contrastive(negatives=uform.Negatives.AMBIENT, ambient_scope=uform.AmbientScope.EVERY),
        schedule=uform.Schedule(learning_rate=1e-4),
    )
    texts = shape.texts
    edges = (np.arange(texts + 1, dtype=np.uintp), (np.arange(texts) ^ 1).astype(np.uint32))
    relations, modalities, stats = (
        uform.Relations(attract=edges),
        [uform.Modality.TEXT] * texts,
        uform.TrainerStepStats(),
    )
    batches = make_batches(shape, 4)
    times = []
    for number in range(WARM_UP + STEPS):
        start = time.perf_counter()
        trainer.step(modalities, batches[number % 4], relations=relations, stats=stats)
        times.append(1e3 * (time.perf_counter() - start))
    kept = sorted(times[WARM_UP:])
    deferred = trainer.deferred(executor)
    start = time.perf_counter()
    pending = [deferred.step(modalities, batches[number % 4], relations=relations) for number in range(2 * STEPS)]
    pending[-1].result()
    ahead = 1e3 * (time.perf_counter() - start) / len(pending)
    planned = trainer.describe()["planned_bytes_per_device"]["total"]
    return {
        "depth": shape.depth,
        "hidden": shape.hidden,
        "tokens": shape.rows * shape.row_columns,
        "step_ms": round(kept[len(kept) // 2], 3),
        "min_ms": round(kept[0], 3),
        "deferred_ms": round(ahead, 3),
        "tokens_per_s": round(shape.rows * shape.row_columns / kept[len(kept) // 2] * 1e3),
        "planned_gib": round(planned / 2**30, 2),
        "loss": round(stats.loss, 4),
    }


def measure_peer(path: Path, shape: Shape) -> dict[str, Any]:
    """What the peer's script prints."""
    sizes = {"depth": shape.depth, "hidden": shape.hidden, "rows": shape.rows, "columns": shape.row_columns}
    asked = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    run = subprocess.run([sys.executable, path, *asked], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{path} failed:\n{run.stderr}")
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Prints a row a shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="which; all by default")
    parser.add_argument("--peer", type=Path, help="a script that times the same work in PyTorch and prints JSON")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    results = []
    print(f"{'shape':>22} {'uform ms':>9} {'deferred':>9} {'GiB':>6} {'peer ms':>9} {'GiB':>6} {'times':>6}")
    for name in options.shapes:
        shape = SHAPES[name]
        ours = measure(shape)
        peer = measure_peer(options.peer, shape) if options.peer and name != "tiny" else None
        theirs = ""
        if peer:
            theirs = f"{peer['step_ms']:9.2f} {peer['peak_gib']:6.2f} {peer['step_ms'] / ours['step_ms']:6.2f}"
        title = f"{shape.depth} x {shape.hidden}, {ours['tokens']}"
        times = f"{ours['step_ms']:9.2f} {ours['deferred_ms']:9.2f}"
        print(f"{title:>22} {times} {ours['planned_gib']:6.2f} {theirs}", flush=True)
        results.append({"uform": ours, "peer": peer})
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
