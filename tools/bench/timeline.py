"""Twenty steps on a GPU as a timeline: when it works, when it waits, and what the host's threads wait for meanwhile.

    python -m tools.bench.timeline record timeline.json     # on a GPU; PyTorch's profiler listens to the driver
    python -m tools.bench.timeline draw timeline.json timeline.png

The same steps are recorded blocking and deferred. A step of the table ends with the copy of its statistics to the host;
what of the time since the one before no kernel, copy or fill ran on the GPU is idle.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import uform
from tools.bench.step import TEXTS_PER_ROW, make_batches, make_trainer

STEPS, WARM_UP = 20, 10
SHAPES = [(3, 128, 16), (12, 512, 64)]  # depth, hidden, rows of 1,024 columns
ON_THE_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
WAITS = "Synchronize"


class Span(NamedTuple):
    """Microseconds from the begin of a recording, and what went on."""

    begin: float
    end: float
    name: str
    thread: str


def spans_of(trace: dict[str, Any], categories: Iterable[str]) -> list[Span]:
    """What a Chrome trace, as PyTorch's profiler writes it, holds of some categories, by begin."""
    found = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in categories:
            begin = float(event["ts"])
            found.append(Span(begin, begin + float(event["dur"]), event["name"], str(event["tid"])))
    return sorted(found)


def busy_of(spans: Sequence[Span], begin: float, end: float) -> float:
    """The time between two moments in which at least one of the spans, in order, goes on."""
    busy, reached = 0.0, begin
    for span in spans:
        first, last = max(span.begin, reached), min(span.end, end)
        if last > first:
            busy += last - first
            reached = last
    return busy


def digest(trace: dict[str, Any]) -> dict[str, Any]:
    """Steps of a recording with their shares, and the waits of the host's threads among them; in microseconds.

    Raises:
        ValueError: the recording holds another number of steps.
    """
    work = spans_of(trace, ON_THE_GPU)
    ends = [span.end for span in work if "DtoH" in span.name]
    if len(ends) != STEPS:
        raise ValueError(f"{len(ends)} copies to the host were recorded: expected one for each of {STEPS} steps")
    origin = min(span.begin for span in work if "HtoD" not in span.name)
    moments = [origin, *ends]
    steps = [
        {"begin": begin - origin, "end": end - origin, "busy": busy_of(work, begin, end)}
        for begin, end in zip(moments, ends, strict=False)
    ]
    host = spans_of(trace, {"cuda_runtime", "cuda_driver"})
    waits = [
        {"begin": span.begin - origin, "end": span.end - origin, "name": span.name, "thread": span.thread}
        for span in host
        if WAITS in span.name and span.end > origin and span.begin < ends[-1]
    ]
    return {"steps": steps, "busy": busy_of(work, origin, ends[-1]) / (ends[-1] - origin), "waits": waits}


def record(executor: uform.Executor, depth: int, hidden: int, rows: int) -> dict[str, Any]:
    """Records both ways on one trainer, once its graphs are captured."""
    from torch.profiler import ProfilerActivity, profile

    trainer = make_trainer(executor, depth, hidden, rows)
    texts = rows * TEXTS_PER_ROW
    edges = (np.arange(texts + 1, dtype=np.uint64), (np.arange(texts) ^ 1).astype(np.uint32))
    relations, modalities, batches = (
        uform.Relations(attract=edges),
        [uform.Modality.TEXT] * texts,
        make_batches(rows, 4),
    )
    deferred = trainer.deferred(executor)

    def run(receiver: Any, count: int) -> list[Any]:
        return [receiver.step(modalities, batches[number % 4], relations=relations) for number in range(count)]

    found: dict[str, Any] = {"depth": depth, "hidden": hidden, "tokens": rows * 1024}
    for way, receiver in (("blocking", trainer), ("deferred", deferred)):
        for answer in run(receiver, WARM_UP):
            if answer is not None:
                answer.result()
        with profile(activities=[ProfilerActivity.CUDA]) as recorder:
            for answer in run(receiver, STEPS):
                if answer is not None:
                    answer.result()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            recorder.export_chrome_trace(str(path))
            found[way] = digest(json.loads(path.read_text()))
    return found


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line a shape and way."""
    yield f"{'depth x hidden, columns':>26}  {'way':<10}{'step ms':>9}{'busy':>8}{'longest idle us':>17}{'waits':>7}"
    for one in found:
        for way in ("blocking", "deferred"):
            steps = one[way]["steps"]
            idle = max(step["end"] - step["begin"] - step["busy"] for step in steps[1:])
            length = (steps[-1]["end"] - steps[0]["end"]) / (len(steps) - 1) / 1e3
            yield (
                f"{one['depth']:>8} x {one['hidden']:>4}, {one['tokens']:>9}  {way:<10}{length:9.3f}"
                f"{one[way]['busy']:8.1%}{idle:17.1f}{len(one[way]['waits']):7}"
            )


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """A lane for the GPU's steps, and one for each thread's waits, by shape and way; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 3 * len(found) * 2), layout="constrained")
    axes = figure.subplots(2 * len(found), 1, squeeze=False)[:, 0]
    for place, one in enumerate(found):
        for axis, way in zip(axes[2 * place :], ("blocking", "deferred"), strict=False):
            steps, waits = one[way]["steps"], one[way]["waits"]
            for number, step in enumerate(steps):
                width = (step["end"] - step["begin"]) / 1e3
                axis.barh(0, width, left=step["begin"] / 1e3, color=("tab:blue", "tab:cyan")[number % 2])
                axis.barh(0, width * (1 - step["busy"] / (width * 1e3)), left=step["begin"] / 1e3, color="tab:red")
            threads = sorted({wait["thread"] for wait in waits})
            for wait in waits:
                lane, begin = 1 + threads.index(wait["thread"]), wait["begin"] / 1e3
                axis.barh(lane, wait["end"] / 1e3 - begin, left=begin, color="tab:grey", edgecolor="white")
            axis.set_yticks(
                range(len(threads) + 1), ["GPU", *[f"thread {place} waits" for place in range(len(threads))]]
            )
            axis.set_xlabel("ms; red: the idle share of a step")
            shape = f"{one['depth']} x {one['hidden']}, {one['tokens']} columns"
            axis.set_title(f"{shape}: {len(steps)} {way} steps, GPU busy {one[way]['busy']:.1%}")
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> int:
    """Records, or draws what was recorded."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.timeline")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "draw"):
        commands.add_parser(name).add_argument("file", type=Path)
    commands.choices["draw"].add_argument("picture", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "record":
        executor = uform.Executor.for_vram([0])
        found = [record(executor, *shape) for shape in SHAPES]
        options.file.write_text(json.dumps(found, indent=1) + "\n")
    else:
        found = json.loads(options.file.read_text())
        draw(found, options.picture)
    print(*table(found), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
