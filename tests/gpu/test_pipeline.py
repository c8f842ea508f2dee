"""Steps on the GPU ahead of each other and as graphs: the same bits, in order, without waits or allocations."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import uform
from tests.gpu.record import figures
from uform import Modality, Objective

ROWS, ROW_COLUMNS, SIDE = 16, 256, 4
OVERFLOW = 3e38  # an edge so heavy that the gradient leaves float32
SLOTS = 3  # steps under way at a time

Bits = list[bytes]


class Work:
    """Calls of many sizes: words from one byte to a row's width, and pictures."""

    def __init__(self, seed: int, pairs: int, longest: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = rng.integers(0, longest + 1, pairs)
        texts = ["".join(chr(97 + letter) for letter in rng.integers(0, 26, size)) for size in sizes]
        pictures = [rng.integers(0, 256, (4 + 4 * (i % 3), 8, 3)).astype(np.uint8) for i in range(pairs)]
        self.modalities = [Modality.TEXT] * pairs + [Modality.IMAGE] * pairs
        self.contents: list[str | NDArray[np.uint8]] = [*texts, *pictures]
        self.ids = np.concatenate([np.arange(pairs, 2 * pairs), np.arange(pairs)]).astype(np.uint32)
        self.weights = np.ones(2 * pairs, np.float32)

    @property
    def keywords(self) -> dict[str, Any]:
        offsets = np.arange(len(self.ids) + 1, dtype=np.uintp)
        return {"relations": uform.Relations(attract=(offsets, self.ids, self.weights))}

    def step(self, receiver: Any, **keywords: Any) -> Any:
        return receiver.step(self.modalities, self.contents, **self.keywords, **keywords)


# Few pairs and many, short segments alone and as long as a row: several buckets of columns, each more than once.
WORK = [Work(seed, (3, 16, 8, 22)[seed % 4], (20, ROW_COLUMNS - 1)[seed % 3 != 0]) for seed in range(24)]
HEAVY = Work(99, 8, 30)
HEAVY.weights[:] = OVERFLOW


@pytest.fixture(scope="module")
def executor(replicas: uform.Executor) -> uform.Executor:
    return replicas


@pytest.fixture(params=["1", "0"], ids=["graphs", "launches"])
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv("UFORM_GRAPHS", request.param)
    wanted: bool = request.param == "1"
    return wanted


def make(executor: uform.Executor, **changes: Any) -> uform.Trainer:
    options: dict[str, Any] = {
        "depth": 2,
        "hidden": 128,
        "objective": Objective.JOINT,
        "batch": uform.BatchShape(
            max_rows_per_device=ROWS, max_columns_per_row=ROW_COLUMNS, max_segments_per_device=128, image=(SIDE, 3)
        ),
        "contrastive": uform.Contrastive(pair_loss=uform.PairLossForm.SIGMOID, matryoshka_dimensions=[64, 128]),
        "schedule": uform.Schedule(learning_rate=1e-3, steps=100, warmup_steps=5),
        "seed": 3,
    }
    return uform.Trainer.init_vram(executor, **(options | changes))


def bits_of(trainer: uform.Trainer) -> Bits:
    names = [entry["name"] for entry in trainer.describe()["parameters"]]
    return [trainer.read(name, what).tobytes() for name in names for what in ("parameter", "moment1", "moment2")]


def run_blocking(trainer: uform.Trainer, work: list[Work]) -> list[uform.TrainerStepStats]:
    stats = [uform.TrainerStepStats() for _ in work]
    for one, own in zip(work, stats, strict=True):
        one.step(trainer, stats=own)
    return stats


def run_deferred(trainer: uform.Trainer, work: list[Work]) -> list[uform.TrainerStepStats]:
    stats = [uform.TrainerStepStats() for _ in work]
    deferred = trainer.deferred(trainer.executor)
    for one in [one.step(deferred, stats=own) for one, own in zip(work, stats, strict=True)]:
        one.result(120)
    return stats


@pytest.fixture(scope="module")
def expected(executor: uform.Executor) -> tuple[list[uform.TrainerStepStats], Bits]:
    """Blocking steps, each kernel launched by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UFORM_GRAPHS", "0")
        trainer = make(executor)
        stats = run_blocking(trainer, WORK)
        assert trainer._counters()["graphs"] == 0
        return stats, bits_of(trainer)


def test_every_way_gives_the_same_bits(
    executor: uform.Executor, graphs: bool, expected: tuple[list[uform.TrainerStepStats], Bits]
) -> None:
    assert np.isfinite([one.loss for one in expected[0]]).all()
    for run in (run_blocking, run_deferred):
        trainer = make(executor)
        assert run(trainer, WORK) == expected[0]
        assert bits_of(trainer) == expected[1]
        assert (trainer._counters()["graph_launches"] > 0) == graphs


@pytest.mark.parametrize("make_arena", [uform.Arena.for_ram, uform.Arena.for_vram])
def test_embeddings_of_deferred_steps(
    make_arena: Callable[[], uform.Arena], executor: uform.Executor, graphs: bool
) -> None:
    blocking, ahead = make(executor), make(executor)
    arena = make_arena()
    deferred = ahead.deferred(executor)
    answers = [np.array(work.step(blocking, arena=uform.Arena.for_ram()).numpy()) for work in WORK[:12]]
    for pending, answer in zip([work.step(deferred, arena=arena) for work in WORK[:12]], answers, strict=True):
        np.testing.assert_array_equal(pending.result(120).numpy(), answer)


def test_a_refused_step_disturbs_none_behind_it(executor: uform.Executor, graphs: bool) -> None:
    work = [*WORK[:8], HEAVY, *WORK[8:16], HEAVY, HEAVY, *WORK[16:20]]
    trainer, alone = make(executor), make(executor)
    stats = [uform.TrainerStepStats() for _ in work]
    deferred = trainer.deferred(executor)
    pending = [one.step(deferred, stats=own) for one, own in zip(work, stats, strict=True)]
    applied = 0
    for one, own, call in zip(pending, stats, work, strict=True):
        if call is HEAVY:
            with pytest.raises(FloatingPointError, match="no weight"):
                one.result(120)
            with pytest.raises(FloatingPointError):
                call.step(alone)
            continue
        one.result(120)
        call.step(alone)
        applied += 1
        assert own.step == applied
    assert bits_of(trainer) == bits_of(alone)


def test_twenty_steps_in_flight_without_waits_or_allocations(executor: uform.Executor, graphs: bool) -> None:
    trainer, count = make(executor), 20
    run_deferred(trainer, WORK)
    run_deferred(trainer, WORK)  # whatever is captured is captured now
    before = trainer._counters()
    run_deferred(trainer, WORK[:count])
    after = trainer._counters()
    assert after["steps"] - before["steps"] == count
    assert after["allocations"] == before["allocations"]
    assert after["graphs"] == before["graphs"]
    # One wait a step and device: for its end, by whoever wants its outcome or its slot.
    assert after["host_waits"] - before["host_waits"] == count * len(executor.devices)


def test_graphs_are_bounded_by_the_sizes(executor: uform.Executor, graphs: bool) -> None:
    trainer = make(executor)
    run_blocking(trainer, WORK * 2)
    counted = trainer._counters()
    sizes = {_size_of(work) for work in WORK}
    assert len(sizes) > 3
    if not graphs:
        assert (counted["graphs"], counted["graph_launches"]) == (0, 0)
    elif len(executor.devices) == 1:
        assert counted["graphs"] == len(sizes)
        assert counted["graph_launches"] == 2 * len(WORK) - len(sizes)
    else:
        # By device: forward, score and backward of each size, and one update.
        assert 2 < counted["graphs"] <= 2 * (3 * 16 * 4 + 1)


def _size_of(work: Work) -> tuple[int, int]:
    """The bucket of its columns among sixteen, and that of its longest segment among halves of a row."""
    segments = []
    for content in work.contents:
        if isinstance(content, str):
            segments.append(1 + min(len(content), ROW_COLUMNS - 1))
        else:
            segments.append(1 + content.shape[0] // SIDE * (content.shape[1] // SIDE))
    halved = max(times for times in range(4) if max(segments) <= ROW_COLUMNS >> times)
    return -(-sum(segments) * 16 // (ROWS * ROW_COLUMNS)), halved


def test_resume_goes_on_with_the_same_bits(
    executor: uform.Executor, graphs: bool, expected: tuple[list[uform.TrainerStepStats], Bits], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    trainer = make(executor)
    deferred = trainer.deferred(executor)
    half = len(WORK) // 2
    for work in WORK[:half]:
        work.step(deferred)
    saved = deferred.save(path)
    behind = [work.step(deferred) for work in WORK[half:]]
    saved.result(120)
    behind[-1].result(120)
    assert bits_of(trainer) == expected[1]
    resumed = uform.Trainer.init_vram(executor, resume=path)
    assert run_deferred(resumed, WORK[half:]) == expected[0][half:]
    assert bits_of(resumed) == expected[1]


def test_reads_and_writes_come_between(executor: uform.Executor, graphs: bool) -> None:
    trainer, alone = make(executor), make(executor)
    deferred = trainer.deferred(executor)
    pending = [work.step(deferred) for work in WORK[:SLOTS]]
    pending[-1].result(120)
    run_blocking(alone, WORK[:SLOTS])
    np.testing.assert_array_equal(trainer.read("norm"), alone.read("norm"))
    for one in (trainer, alone):
        one.write("norm", np.full_like(one.read("norm"), 0.5))
    run_deferred(trainer, WORK[SLOTS:8])
    run_blocking(alone, WORK[SLOTS:8])
    assert bits_of(trainer) == bits_of(alone)


def test_two_trainers_share_an_executor(executor: uform.Executor, graphs: bool) -> None:
    trainers = [make(executor), make(executor)]
    receivers = [trainer.deferred(executor) for trainer in trainers]
    pending = [work.step(receiver) for work in WORK for receiver in receivers]
    for one in pending:
        one.result(120)
    assert bits_of(trainers[0]) == bits_of(trainers[1])


def test_a_thread_that_trains_and_one_that_evaluates(gpu: uform.Executor, graphs: bool) -> None:
    """What one reads and evaluates on the executor is no part of the steps that the other has captured meanwhile."""
    torch = pytest.importorskip("torch")
    alone = make(gpu)
    run_blocking(alone, WORK * 2)
    expected, ended, failures = bits_of(alone), threading.Event(), []
    vectors = torch.nn.functional.normalize(torch.randn(64, 64, device="cuda"))
    relations = uform.Relations(attract=(range(65), [place ^ 1 for place in range(64)]))

    def evaluate() -> None:
        side = torch.cuda.Stream()
        seen = set()
        try:
            with torch.cuda.stream(side):
                while not ended.is_set():
                    found: Any = uform.losses.contrastive(gpu, vectors * 1.0, relations=relations)
                    seen.add((found.loss, found.gradient.numpy().tobytes()))
            assert len(seen) == 1
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        for _ in range(8):
            trainer = make(gpu)
            run_blocking(trainer, WORK * 2)
            assert bits_of(trainer) == expected
    finally:
        ended.set()
        thread.join()
    assert not failures, failures


def test_two_threads_capture_while_a_third_waits_for_the_gpu(gpu: uform.Executor) -> None:
    alone = make(gpu)
    run_blocking(alone, WORK * 2)
    expected, ended, found = bits_of(alone), threading.Event(), []

    def train() -> None:
        executor = uform.Executor.for_vram([0])
        for _ in range(4):
            trainer = make(executor)
            run_blocking(trainer, WORK * 2)
            found.append(bits_of(trainer) == expected and trainer._counters()["graphs"] > 0)

    def wait() -> None:
        arena = uform.Arena.for_vram(capacity=1 << 20)
        while not ended.is_set():
            arena.reset()

    threads = [threading.Thread(target=body) for body in (train, train, wait)]
    for thread in threads:
        thread.start()
    for thread in threads[:2]:
        thread.join()
    ended.set()
    threads[2].join()
    assert found == [True] * 8


def test_closing_waits_for_what_is_under_way(executor: uform.Executor, graphs: bool) -> None:
    trainer = make(executor)
    pending = [work.step(trainer.deferred(executor)) for work in WORK]
    pending[2].result(120)
    trainer.close()
    for one in pending[:3]:
        one.result(120)


def test_a_wrong_switch_is_refused(monkeypatch: pytest.MonkeyPatch, gpu: uform.Executor) -> None:
    monkeypatch.setenv("UFORM_GRAPHS", "off")
    with pytest.raises(ValueError, match="UFORM_GRAPHS: 0 or 1, not off"):
        make(gpu)


SHAPES = {"tiny": (3, 128, 64, 128), "small": (12, 512, 64, 1024)}  # depth, hidden, rows, columns of a row


@pytest.mark.alone
@pytest.mark.parametrize("shape", list(SHAPES))
def test_how_busy_the_gpu_is(shape: str, graphs: bool, gpu: uform.Executor) -> None:
    """Reports times; the only promise is that a step's device time fits into the wall's."""
    depth, hidden, rows, row_columns = SHAPES[shape]
    segment = min(row_columns, 256)
    texts, count = rows * row_columns // segment, 60 if shape == "small" else 400
    trainer = uform.Trainer.init_vram(
        gpu,
        depth=depth,
        hidden=hidden,
        objective=Objective.JOINT,
        batch=uform.BatchShape(max_rows_per_device=rows, max_columns_per_row=row_columns),
    )
    data = np.random.default_rng(0).integers(0, 256, texts * (segment - 1)).astype(np.uint8)
    tape = (data, np.arange(texts + 1, dtype=np.uint64) * (segment - 1))
    modalities = [Modality.TEXT] * texts
    relations = uform.Relations(
        attract=(np.arange(texts + 1, dtype=np.uintp), (np.arange(texts) ^ 1).astype(np.uint32))
    )
    for _ in range(5):
        trainer.step(modalities, tape, relations=relations)
    found = {}
    for name in ("blocking", "deferred"):
        receiver: Any = trainer if name == "blocking" else trainer.deferred(gpu)
        before, start = trainer._counters(), time.perf_counter()
        pending = [receiver.step(modalities, tape, relations=relations) for _ in range(count)]
        if name == "deferred":
            pending[-1].result(120)
        wall = time.perf_counter() - start
        device = trainer._counters()["device_seconds"] - before["device_seconds"]
        assert 0 < device <= wall
        found[name] = {"step_ms": 1e3 * wall / count, "device_ms": 1e3 * device / count, "busy": device / wall}
    key = f"{shape} with {'graphs' if graphs else 'launches'}"
    figures[f"pipeline, {key}"] = [f"{name} {values}" for name, values in found.items()]
    if out := os.environ.get("OUT"):
        path = Path(out) / "pipeline.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | {key: found}, indent=1) + "\n")
