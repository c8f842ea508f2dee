"""Executors, meshes, trainers, models, deferred calls as objects: how they are made, called, cancelled and closed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import json
import os
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from uform._ext import executor as executor_module

TEXTS = ["cat", "dog", "cats", "dogs"]
TEXT_MODALITIES = [uform.Modality.TEXT] * 4
EDGES = uform.Relations(attract=([0, 1, 2, 3, 4], [2, 3, 0, 1]))
SMALL: dict[str, Any] = {
    "depth": 1,
    "hidden": 64,
    "batch": uform.BatchShape(max_rows_per_device=4, max_columns_per_row=32),
    "objective": uform.Objective.JOINT,
}


@pytest.fixture(scope="module")
def executor() -> uform.Executor:
    return uform.Executor.for_ram(devices=2, threads=2)


@pytest.fixture
def trainer(executor: uform.Executor) -> uform.Trainer:
    return uform.Trainer.init_ram(executor, **SMALL)


def test_executors_of_ram(executor: uform.Executor) -> None:
    assert executor.kind == "ram"
    assert executor.devices == (0, 1)
    assert executor.threads == 2
    assert executor.gpu_class is uform.GPUClass.NONE
    assert repr(executor) == "<Executor ram devices=[0, 1] threads=2>"
    assert uform.Executor.for_ram().threads == len(os.sched_getaffinity(0))


def test_executors_are_refused_by_field() -> None:
    with pytest.raises(TypeError, match=r"use Executor\.for_ram\(\)"):
        uform.Executor()
    with pytest.raises(ValueError, match="devices: between 1 and"):
        uform.Executor.for_ram(devices=0)
    with pytest.raises(ValueError, match="threads: between 0 and"):
        uform.Executor.for_ram(threads=-1)
    with pytest.raises(TypeError, match=r"devices is 1\.5: expected an int"):
        uform.Executor.for_ram(devices=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="devices is empty"):
        uform.Executor.for_vram([])
    with pytest.raises(TypeError, match="devices is of type int: expected a sequence of int"):
        uform.Executor.for_vram(0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"devices\[1\] is '1'"):
        uform.Executor.for_vram([0, "1"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="not initialised"):
        uform.Executor.__new__(uform.Executor).kind  # noqa: B018 - reading is what raises


def test_a_gpu_that_is_not_there_is_a_device_error() -> None:
    with pytest.raises(uform.DeviceError, match=r"\w"):
        uform.Executor.for_vram(devices=[1000])


def test_the_blas_is_found_and_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UFORM_BLAS", raising=False)
    found = executor_module.find_blas()
    assert found is not None
    assert Path(found).is_file()
    assert uform.show_config()["blas"] == found
    monkeypatch.setenv("UFORM_BLAS", "plain")
    assert executor_module.find_blas() is None
    assert uform.show_config()["blas"] == "plain"
    assert uform.Executor.for_ram().gemm == "plain"
    monkeypatch.setenv("UFORM_BLAS", "/nowhere/libblas.so")
    assert executor_module.find_blas() == "/nowhere/libblas.so"


def test_the_build_says_what_it_is() -> None:
    config = uform.show_config()
    assert config["version"] == uform.__version__
    assert {"compiler", "vram", "cuda", "cutlass", "cuda_architectures", "nccl"} <= config.keys()
    assert bool(config["gpus"]) != bool(config["no_gpus"])  # which there are, or why there are none
    if not config["vram"]:
        assert config["no_gpus"] == "this build of uform has no VRAM backend"
    assert all({"index", "name", "compute_capability", "memory_bytes"} == gpu.keys() for gpu in config["gpus"])
    assert (Path(uform.get_include()) / "uform" / "uform.h").is_file()


def test_exceptions_show_the_package_s_name() -> None:
    for error, base in (
        (uform.DeviceError, RuntimeError),
        (uform.MeshError, RuntimeError),
        (uform.Cancelled, Exception),
    ):
        assert error.__module__ == "uform"
        assert issubclass(error, base)
        assert type(pickle.loads(pickle.dumps(error("message")))) is error


def test_a_mesh_of_one_process(executor: uform.Executor, tmp_path: Path) -> None:
    mesh = uform.Mesh.bootstrap(executor, uform.MeshOptions(directory=os.fsencode(tmp_path), job="run-17"))
    assert mesh.describe() == uform.MeshDescription(
        host_domain_index=0,
        host_domain_count=1,
        devices_per_host=2,
        world_size=2,
        gpu_class=uform.GPUClass.NONE,
        multimem_tier=uform.MultimemTier.NONE,
        transport="in-process",
        job="run-17",
    )
    assert uform.Trainer.init_ram(executor, mesh=mesh, **SMALL).mesh is mesh
    with pytest.raises(ValueError, match="mesh was bootstrapped on another executor"):
        uform.Trainer.init_ram(uform.Executor.for_ram(), mesh=mesh, **SMALL)
    with pytest.raises(TypeError, match="mesh is of type int"):
        uform.Trainer.init_ram(executor, mesh=3, **SMALL)  # type: ignore[arg-type]


def test_a_mesh_of_more_processes_is_refused(executor: uform.Executor, tmp_path: Path) -> None:
    options = uform.MeshOptions(host_domain_count=2, directory=tmp_path)
    with pytest.raises(
        uform.MeshError, match=r"host_domain_count is 2: this version trains on the devices of one process"
    ):
        uform.Mesh.bootstrap(executor, options)
    with pytest.raises(TypeError, match="options is of type dict: expected MeshOptions"):
        uform.Mesh.bootstrap(executor, {})  # type: ignore[arg-type]


def test_a_mesh_s_directory_is_checked_at_once(executor: uform.Executor, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, error in ((tmp_path / "missing" / "parent", FileNotFoundError), (tmp_path / "file", NotADirectoryError)):
        with pytest.raises(error, match=rf"MeshOptions\.directory: .*{path.name}") as caught:
            uform.Mesh.bootstrap(executor, uform.MeshOptions(host_domain_count=2, directory=path))
        assert caught.value.filename == str(path)
    if os.access("/proc", os.W_OK):
        return
    with pytest.raises(PermissionError, match="/proc"):
        uform.Mesh.bootstrap(executor, uform.MeshOptions(directory="/proc"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"depth": -1}, ValueError, "depth"),
        ({"hidden": 65}, ValueError, "hidden: a multiple of 64, not 65"),
        ({"depth": "1"}, TypeError, "depth is '1': expected an int"),
        ({"seed": -1}, ValueError, "seed is -1: expected an int between 0 and 18446744073709551615"),
        ({"objective": 3}, ValueError, "objective is 3: expected one of MASKED=0"),
        ({"batch": (8,)}, TypeError, "batch is of type tuple: expected BatchShape or None"),
        ({"masking": uform.Schedule()}, TypeError, "masking is of type Schedule: expected Masking or None"),
        ({"resume": 3}, TypeError, "resume is 3: expected a path"),
        ({"resume": "a\0b"}, ValueError, "a path holds no NUL"),
        ({"resume": ""}, ValueError, "resume is empty"),
        ({"resume": "/nowhere/checkpoint"}, OSError, "/nowhere/checkpoint"),
        ({"progress": 3}, TypeError, "progress is 3: expected a callable"),
        ({"progress_steps": -1}, ValueError, "progress_steps is -1"),
        ({"plugins": ["mine"]}, TypeError, "plugins is of type list: expected a mapping"),
        ({"plugins": {"mine": 3}}, TypeError, r"plugins\['mine'\] is of type int: expected a mapping"),
        ({"plugins": {"mine": None}}, ValueError, "no plugin named mine is registered"),
        ({"plugins": {"masked": bytes(8)}}, ValueError, "masked has its own field"),
        ({"plugins": {"image": None}}, ValueError, "image has its own field"),
        ({"plugins": {"text": None}}, ValueError, "text is part of every run"),
        ({"hiden": 64}, TypeError, "hiden"),
    ],
)
def test_wrong_options_are_refused(
    executor: uform.Executor, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        uform.Trainer.init_ram(executor, **{**SMALL, **options})


def test_receivers_are_made_by_name(executor: uform.Executor, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"use Trainer\.init_vram\(\)"):
        uform.Trainer()
    with pytest.raises(TypeError, match=r"use Model\.init_ram\(\)"):
        uform.Model()
    with pytest.raises(ValueError, match="init_ram"):
        uform.Trainer.init_vram(executor, **SMALL)
    with pytest.raises(TypeError, match="executor is of type NoneType"):
        uform.Trainer.init_ram(None, **SMALL)  # type: ignore[arg-type]
    for call in (uform.Trainer.__new__(uform.Trainer).describe, uform.Model.__new__(uform.Model).describe):
        with pytest.raises(ValueError, match="not initialised"):
            call()
    with pytest.raises(OSError, match="missing"):
        uform.Model.init_ram(executor, tmp_path / "missing")


def test_the_full_set_of_options_is_taken(executor: uform.Executor) -> None:
    trainer = uform.Trainer.init_ram(
        executor,
        **SMALL,
        masking=uform.Masking(token_mask_probability=0.5),
        contrastive=uform.Contrastive(matryoshka_dimensions=[16, 32], pair_loss=uform.PairLossForm.RANKED),
        schedule=uform.Schedule(learning_rate=0.01, warmup_steps=-1, steps=7),
        optimizer=uform.Optimizer(beta1=0.8, weight_decay=-1),
        seed=2**64 - 1,
    )
    found = trainer.describe()
    assert (found["depth"], found["hidden"], found["objective"], found["seed"]) == (
        1,
        64,
        uform.Objective.JOINT,
        2**64 - 1,
    )
    assert found["masking"]["token_mask_probability"] == 0.5
    assert found["contrastive"]["matryoshka_dimensions"] == [16, 32]
    assert found["contrastive"]["pair_loss"] is uform.PairLossForm.RANKED
    assert found["contrastive"]["negatives"] is uform.Negatives.AMBIENT
    assert found["contrastive"]["ambient_scope"] is uform.AmbientScope.EVERY
    assert json.loads(json.dumps(found))["contrastive"]["pair_loss"] == 2
    assert found["schedule"]["steps"] == 7
    assert (found["optimizer"]["beta1"], found["optimizer"]["weight_decay"]) == (0.8, 0)


def test_a_step_fills_in_its_statistics(trainer: uform.Trainer) -> None:
    stats = uform.TrainerStepStats()
    stats.extra = {"stale": 1.0}
    assert trainer.step(TEXT_MODALITIES, TEXTS, relations=EDGES, stats=stats) is None
    assert stats.step == 1
    assert stats.loss == pytest.approx(stats.contrastive_loss + stats.masked_text_loss)
    assert stats.gradient_norm > 0
    assert stats.learning_rate > 0
    assert stats.extra == {}


def test_parameters_are_read_and_written(trainer: uform.Trainer) -> None:
    trainer.step(TEXT_MODALITIES, TEXTS, relations=EDGES)
    names = {entry["name"]: tuple(entry["shape"]) for entry in trainer.describe()["parameters"]}
    for name, shape in names.items():
        value = trainer.read(name)
        assert value.shape == shape
        assert value.dtype == np.float32
    matrix = next(name for name, shape in names.items() if len(shape) == 2)
    assert trainer.read(matrix, "moment2").any()
    wanted = np.arange(np.prod(names[matrix]), dtype=np.float64).reshape(names[matrix])
    trainer.write(matrix, wanted[::-1])
    assert np.array_equal(trainer.read(matrix), wanted[::-1].astype(np.float32))
    with pytest.raises(ValueError, match="what is 'weights': expected one of parameter, gradient, moment1, moment2"):
        trainer.read(matrix, "weights")
    with pytest.raises(ValueError, match="name is 'nothing': the run has no such parameter"):
        trainer.read("nothing")
    with pytest.raises(ValueError, match=rf"array has the shape \(2,\): {matrix} has"):
        trainer.write(matrix, np.zeros(2))


def test_a_closed_trainer_says_so(trainer: uform.Trainer, tmp_path: Path) -> None:
    trainer.close()
    trainer.close()
    assert "closed" in repr(trainer)
    for call in (
        trainer.describe,
        lambda: trainer.save(tmp_path / "checkpoint"),
        lambda: trainer.step(TEXT_MODALITIES, TEXTS),
        lambda: trainer.read("blocks.0.norm1"),
    ):
        with pytest.raises(ValueError, match="the trainer is closed"):
            call()


def test_progress_counts_to_its_end(executor: uform.Executor, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    trainer = uform.Trainer.init_ram(executor, **SMALL, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == len(trainer.describe()["parameters"])
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    every: list[int] = []
    trainer.save(tmp_path / "checkpoint", progress=lambda done, total: every.append(done), progress_steps=10)
    assert len(every) < 10


def test_progress_false_cancels_and_leaves_nothing(trainer: uform.Trainer, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(uform.Cancelled):
        trainer.save(path, progress=lambda done, total: False)
    assert list(tmp_path.iterdir()) == []
    trainer.save(path)
    before = path.read_bytes()
    trainer.step(TEXT_MODALITIES, TEXTS)
    with pytest.raises(uform.Cancelled):
        trainer.save(path, progress=lambda done, total: done < 3)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]
    with pytest.raises(uform.Cancelled):
        uform.Trainer.init_ram(trainer.executor, **SMALL, progress=lambda done, total: False)


def test_ASY_01_an_exception_of_a_callback_reaches_the_caller(trainer: uform.Trainer, tmp_path: Path) -> None:
    class Mine(BaseException):
        pass

    def progress(done: int, total: int) -> None:
        if done == 3:
            raise Mine("at 3")

    with pytest.raises(Mine, match="at 3"):
        trainer.save(tmp_path / "checkpoint", progress=progress)
    assert list(tmp_path.iterdir()) == []
    trainer.step(TEXT_MODALITIES, TEXTS)


def test_a_callback_cannot_call_its_own_executor(trainer: uform.Trainer, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="progress or a plugin, cannot make another one"):
        trainer.save(tmp_path / "checkpoint", progress=lambda done, total: bool(trainer.describe()))
    trainer.describe()


def test_a_bar_follows(trainer: uform.Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer.save(tmp_path / "checkpoint", progress=uform.progress.bar(desc="saving"))
    assert "saving: 100%" in capsys.readouterr().err


def test_on_blocks_on_the_receiver_s_executor(trainer: uform.Trainer, executor: uform.Executor) -> None:
    stats = uform.TrainerStepStats()
    on = trainer.on(executor)
    on.step(TEXT_MODALITIES, TEXTS, stats=stats)
    assert stats.step == 1
    assert dir(on) == ["save", "step"]
    for make in (trainer.on, trainer.deferred):
        with pytest.raises(ValueError, match="this Trainer lives on other devices"):
            make(uform.Executor.for_ram(devices=3))
        with pytest.raises(TypeError, match="executor is of type int"):
            make(3)  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match="has no verb 'describe' to run on an executor: it has save, step"):
            make(executor).describe  # noqa: B018 - reading is what raises


def test_deferred_calls_run_in_order(trainer: uform.Trainer, executor: uform.Executor, tmp_path: Path) -> None:
    deferred, called = trainer.deferred(executor), threading.Event()
    stats = [uform.TrainerStepStats() for _ in range(3)]
    arena = uform.Arena.for_ram()
    steps = [deferred.step(TEXT_MODALITIES, TEXTS, stats=one, arena=arena) for one in stats]
    saved = deferred.save(tmp_path / "checkpoint")
    saved.add_done_callback(lambda one: called.set() if one is saved else None)
    assert saved.result(timeout=60) is None
    assert called.wait(60)
    assert [one.step for one in stats] == [1, 2, 3]
    assert all(step.done() for step in steps)
    assert [step.result().shape for step in steps] == [(4, 64)] * 3
    assert (tmp_path / "checkpoint").is_file()
    assert repr(saved) == "<Deferred done>"


def test_deferred_calls_read_their_arguments_at_once(trainer: uform.Trainer, executor: uform.Executor) -> None:
    deferred = trainer.deferred(executor)
    contents, stats = list(TEXTS), uform.TrainerStepStats()
    step = deferred.step(TEXT_MODALITIES, contents, stats=stats)
    contents.clear()
    step.result(60)
    assert stats.step == 1


@pytest.mark.parametrize(
    ("verb", "arguments", "error", "message"),
    [
        ("step", ([0], ["\ud800"]), ValueError, r"contents\[0\] is no text"),
        ("step", ([0], 7), TypeError, "contents is of type int"),
        ("step", (), TypeError, "positional arguments"),
        ("save", (7,), TypeError, "path is 7"),
    ],
)
def test_a_deferred_call_s_errors_surface_at_its_result(
    trainer: uform.Trainer, executor: uform.Executor, verb: str, arguments: Any, error: Any, message: str
) -> None:
    """Those of its arguments too, in its turn: what was submitted before and after is done."""
    deferred, stats = trainer.deferred(executor), uform.TrainerStepStats()
    before = deferred.step(TEXT_MODALITIES, TEXTS)
    refused = getattr(deferred, verb)(*arguments)
    after = deferred.step(TEXT_MODALITIES, TEXTS, stats=stats)
    with pytest.raises(error, match=message):
        refused.result(60)
    assert (before.result(60), after.result(60), stats.step) == (None, None, 2)


def test_ASY_03_a_deferred_error_surfaces_at_result(trainer: uform.Trainer, executor: uform.Executor) -> None:
    saved = trainer.deferred(executor).save("/nowhere/checkpoint")
    with pytest.raises(OSError, match="/nowhere"):
        saved.result(60)
    assert saved.done()


def test_a_deferred_call_is_cancelled_before_it_starts(trainer: uform.Trainer, executor: uform.Executor) -> None:
    gate = threading.Event()
    executor._submit(lambda: gate.wait(60))
    step = trainer.deferred(executor).step(TEXT_MODALITIES, TEXTS)
    assert not step.done()
    with pytest.raises(TimeoutError):
        step.result(timeout=0)
    assert step.cancel()
    gate.set()
    assert repr(step) == "<Deferred cancelled>"
    with pytest.raises(concurrent.futures.CancelledError):
        step.result()
    assert trainer.describe()["step"] == 0


def test_deferred_calls_are_awaited(trainer: uform.Trainer, executor: uform.Executor) -> None:
    async def work() -> tuple[int, ...]:
        arena = uform.Arena.for_ram()
        buffer = await trainer.deferred(executor).step(TEXT_MODALITIES, TEXTS, arena=arena)
        assert isinstance(buffer, uform.ArenaBuffer)
        return buffer.shape

    assert asyncio.run(work()) == (4, 64)


def test_deferred_classes_take_a_parameter() -> None:
    for made in (uform.On, uform.Deferred, uform.DeferredOn):
        assert made[uform.Trainer].__origin__ is made


def test_calls_from_several_threads_are_served(trainer: uform.Trainer) -> None:
    stats = [uform.TrainerStepStats() for _ in range(4)]
    threads = [
        threading.Thread(target=trainer.step, args=(TEXT_MODALITIES, TEXTS), kwargs={"stats": one}) for one in stats
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.step for one in stats) == [1, 2, 3, 4]


def test_an_executor_lives_as_long_as_what_was_made_on_it() -> None:
    trainer = uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), **SMALL)
    gc.collect()
    trainer.step(TEXT_MODALITIES, TEXTS)

    class Watched(list[str]):
        pass

    contents = Watched(TEXTS)
    gone = weakref.ref(contents)
    trainer.deferred(trainer.executor).step(TEXT_MODALITIES, contents).result(60)
    del contents
    gc.collect()
    assert gone() is None


def test_a_model_answers_what_the_step_scored(executor: uform.Executor, tmp_path: Path) -> None:
    trainer = uform.Trainer.init_ram(executor, **{**SMALL, "objective": uform.Objective.CONTRASTIVE})
    trainer.save(tmp_path / "checkpoint")
    scored = trainer.step(TEXT_MODALITIES, TEXTS, relations=EDGES, arena=uform.Arena.for_ram())
    assert scored is not None
    model = uform.Model.init_ram(executor, os.fsencode(tmp_path / "checkpoint"))
    assert model.describe()["hidden"] == 64
    assert np.allclose(model.embed(TEXT_MODALITIES, TEXTS).numpy(), scored.numpy(), atol=1e-6)
    assert np.allclose(model.on(executor).embed(TEXT_MODALITIES, TEXTS).numpy(), scored.numpy(), atol=1e-6)
