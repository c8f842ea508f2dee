"""Trains an image-text model on emoji pictures and their names in 14 languages, and tests it on emojis it never saw.

    python -m tools.emoji --data emoji.parquet [--peer] [--output emoji.json] [--plot emoji.png]

Pictures of 64 x 64 in patches of 8 x 8, names as bytes, one encoder, InfoNCE with edges both ways. A picture attracts
its names and they attract it; names of pictures that look the same, or share a name, are ignored. `recall.py` defines
what is reported. `--peer` trains the same model from the same weights on the same batches in PyTorch (`peer.py`), and
only that needs PyTorch; the two take turns on the GPU. Times are those of training alone: neither evaluations count nor
what both do before their first step, which for PyTorch is compiling.

`--ram` runs on the reference executor, which is for trying the lines out: take few steps and a small model.

Measured on one NVIDIA H200, `--steps 600 --peer`: 11.3 s of training and 4.3 GiB, PyTorch 23.4 s and 4.9 GiB;
recall@1 53.4 % and 54.0 % from picture to name, 51.1 % and 51.6 % back. The rate was chosen on these emojis.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import uform
from tools.emoji.batches import make_batches, prefetch
from tools.emoji.data import Emojis, read_emojis
from tools.emoji.learner import Learner
from tools.emoji.recipe import Recipe
from tools.emoji.run import Point, Trains, seconds_to_reach, train

EVALUATIONS = 10


def run(learner: Trains, recipe: Recipe, emojis: Emojis, valid: Emojis) -> list[Point]:
    """A whole run, told point by point."""
    batches = prefetch(make_batches(emojis, recipe.pictures, recipe.names_each, recipe.steps, recipe.seed))
    first = next(batches)
    learner.warm_up(first)
    evaluate_at = {recipe.steps * part // EVALUATIONS for part in range(1, EVALUATIONS + 1)}
    points = []
    for point in train(learner, chain([first], batches), valid, evaluate_at):
        points.append(point)
        told = "  ".join(f"{title} {share:6.1%}" for title, share in point.recalls.items())
        print(
            f"{learner.name:>8} step {point.step:6} {point.seconds:7.1f} s  loss {point.loss:6.3f}  {told}", flush=True
        )
    return points


def report(runs: dict[str, list[Point]], gib: dict[str, float]) -> None:
    """Side by side: the last recalls, and how long each took to the mean recall that all of them reached."""
    reached = min(points[-1].mean for points in runs.values())
    print(f"\n{'':>18}" + "".join(f"{name:>12}" for name in runs))
    for title in next(iter(runs.values()))[-1].recalls:
        print(f"{title:>18}" + "".join(f"{points[-1].recalls[title]:12.1%}" for points in runs.values()))
    print(f"{'seconds in all':>18}" + "".join(f"{points[-1].seconds:12.1f}" for points in runs.values()))
    print(f"{f'until {reached:.1%}':>18}" + "".join(f"{seconds_to_reach(p, reached):12.1f}" for p in runs.values()))
    print(f"{'GiB':>18}" + "".join(f"{gib[name]:12.2f}" for name in runs))


def draw(runs: dict[str, list[Point]], path: Path) -> None:
    """Each recall against the seconds of training."""
    from matplotlib.figure import Figure

    titles = list(next(iter(runs.values()))[-1].recalls)
    figure = Figure(figsize=(4 * len(titles), 4), layout="constrained")
    for axes, title in zip(figure.subplots(1, len(titles), sharey=True), titles, strict=True):
        for name, points in runs.items():
            axes.plot([p.seconds for p in points], [p.recalls[title] for p in points], marker="o", label=name)
        axes.set(title=title, xlabel="seconds of training", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)


def compare(
    executor: uform.Executor, recipe: Recipe, emojis: Emojis, valid: Emojis, peer: bool
) -> tuple[dict[str, list[Point]], dict[str, float]]:
    """Trains once, or twice with the peer; answers each run's points and memory in GiB."""
    learner = Learner(executor, recipe, emojis)
    weights = learner.weights() if peer else {}
    runs, gib = {learner.name: run(learner, recipe, emojis, valid)}, {learner.name: learner.gib}
    learner.close()
    if peer:
        from tools.emoji.peer import Peer

        other = Peer(weights, recipe, emojis, "cuda" if executor.kind == "vram" else "cpu")
        runs[other.name], gib[other.name] = run(other, recipe, emojis, valid), other.gib
    return runs, gib


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the data, trains, and writes what was asked for."""
    summary = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(prog="python -m tools.emoji", description=summary)
    parser.add_argument("--data", type=Path, required=True, help="a parquet file of `png`, `names` and `split`")
    parser.add_argument("--peer", action="store_true", help="train the same in PyTorch as well")
    parser.add_argument("--ram", action="store_true", help="use the reference executor")
    parser.add_argument("--output", type=Path, help="a JSON file for all points")
    parser.add_argument("--plot", type=Path, help="a picture of recall against time; needs matplotlib")
    for name, default in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    given = vars(parser.parse_args(arguments))
    for option, package in (("peer", "torch"), ("plot", "matplotlib")):
        if given[option] and find_spec(package) is None:
            parser.error(f"--{option} needs {package}, which is not installed")
    recipe = Recipe(**{name: given[name] for name in asdict(Recipe())})
    emojis, valid = read_emojis(given["data"])
    executor = uform.Executor.for_ram() if given["ram"] else uform.Executor.for_vram([0])
    runs, gib = compare(executor, recipe, emojis, valid, given["peer"])
    report(runs, gib)
    if given["plot"]:
        draw(runs, given["plot"])
    if given["output"]:
        told = {name: [asdict(point) for point in points] for name, points in runs.items()}
        given["output"].write_text(json.dumps({"recipe": asdict(recipe), "gib": gib, "runs": told}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
