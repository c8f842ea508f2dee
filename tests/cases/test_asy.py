"""ASY: callbacks, deferred calls and what they are given."""

from __future__ import annotations

import errno
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.processes import run_python
from tests.helpers.runs import TINY, digest, hold, make_trainer, picture, ram, resume, shape
from uform import Modality, Objective

SOON = 10  # seconds until a caller that learns of nothing is a failure
MODALITIES = [Modality.TEXT, Modality.TEXT]
TEXTS = ["cat", "dog"]


class OwnError(Exception):
    pass


def raise_at_3(done: int, total: int) -> bool:
    if done == 3:
        raise OwnError(f"{done} of {total}")
    return True


@pytest.mark.parametrize("devices", [1, 3])
def test_ASY_01_a_deferred_callback_s_exception_reaches_the_result(devices: int, tmp_path: Path) -> None:
    trainer = make_trainer(devices=devices)
    deferred = trainer.deferred(trainer.executor)
    saved = deferred.save(tmp_path / "checkpoint", progress=raise_at_3)
    behind = deferred.step(MODALITIES, TEXTS)
    with pytest.raises(OwnError, match="3 of"):
        saved.result(SOON)
    behind.result(SOON)
    assert list(tmp_path.iterdir()) == []
    assert trainer.describe()["step"] == 1


@pytest.mark.parametrize("devices", [1, 3])
def test_ASY_01_init_hands_its_callback_s_exception_on(devices: int) -> None:
    """Every virtual device is left as well: another run takes its place."""
    with pytest.raises(OwnError, match="3 of"):
        uform.Trainer.init_ram(ram(devices), **TINY, batch=shape(), progress=raise_at_3)
    assert Call(TEXTS).step(make_trainer(devices=devices)).stats.step == 1


def check_a_failed_save(trainer: uform.Trainer, path: Path) -> None:
    """The save's own result says so; the run goes on; what was there is whole."""
    before, kept = path.read_bytes(), digest(trainer)
    deferred = trainer.deferred(trainer.executor)
    saved = deferred.save(path)
    with pytest.raises(OSError, match=path.name) as refusal:
        saved.result(SOON)
    assert refusal.value.errno in (None, errno.ENOSPC, errno.EFBIG)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert digest(trainer) == kept
    deferred.step(MODALITIES, TEXTS).result(SOON)


def test_ASY_03_a_deferred_save_onto_a_full_file_system(tmp_path: Path) -> None:
    small, large = make_trainer(), make_trainer(depth=4)
    disk = tmp_path / "disk"
    disk.mkdir()
    small.save(tmp_path / "measured")
    size = 2 * (tmp_path / "measured").stat().st_size
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        path = disk / "checkpoint"
        small.save(path)
        check_a_failed_save(large, path)
        assert resume(path).describe()["step"] == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


LIMITED = """
import json, os, resource, signal, sys
from pathlib import Path
from tests.cases.test_asy import check_a_failed_save
from tests.helpers.runs import make_trainer

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
trainer = make_trainer()
trainer.save(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size - 1000,) * 2)
check_a_failed_save(trainer, path)
print(json.dumps(True))
"""


def test_ASY_03_a_deferred_save_that_passes_the_limit_of_a_file(tmp_path: Path) -> None:
    """The same without a mount: the limit ends a write in the same place."""
    folder = tmp_path / "folder"
    folder.mkdir()
    assert run_python(LIMITED, folder / "checkpoint") is True


def test_ASY_05_a_sequence_is_read_when_it_is_submitted() -> None:
    """Contents, bags and sides given as lists may change at once."""
    deferred, alone = (make_trainer(objective=Objective.CONTRASTIVE) for _ in range(2))
    contents, bags, modalities = list(TEXTS), [0, 1], list(MODALITIES)
    step = deferred.deferred(deferred.executor).step(modalities, contents, bags=bags)
    contents[:], bags[:], modalities[:] = ["x", "y"], [7, 7], [Modality.IMAGE] * 2
    step.result(SOON)
    alone.step(MODALITIES, TEXTS, bags=[0, 1])
    assert digest(deferred) == digest(alone)


def test_ASY_05_numbers_in_buffers_are_read_when_they_are_submitted() -> None:
    """What says which item is meant may be overwritten at once; garbage in its place would lead anywhere."""
    run: dict[str, Any] = {
        "objective": Objective.CONTRASTIVE,
        "contrastive": uform.Contrastive(pair_loss=uform.PairLossForm.SIGMOID, temperature_groups=2),
    }
    deferred, alone = make_trainer(**run), make_trainer(**run)
    tape = np.frombuffer(b"catdog", np.uint8)
    numbers: dict[str, Any] = {
        "modalities": np.zeros(2, np.uint8),
        "places": np.array([0, 3, 6], np.uint64),
        "bags": np.array([5, 6], np.uint32),
        "groups": np.array([0, 1], np.uint32),
        "offsets": np.array([0, 1, 2], np.uint64),
        "ids": np.array([1, 0], np.uint32),
        "weights": np.array([1, 2], np.float32),
    }

    def step(receiver: Any) -> Any:
        edges = uform.Edges(offsets=numbers["offsets"], ids=numbers["ids"], weights=numbers["weights"])
        return receiver.step(
            numbers["modalities"],
            (tape, numbers["places"]),
            bags=numbers["bags"],
            temperature_groups=numbers["groups"],
            relations=uform.Relations(attract=edges),
        )

    step(alone)
    gate = hold(deferred.executor)
    pending = step(deferred.deferred(deferred.executor))
    for values in numbers.values():
        values[:] = 0xFF
    gate.set()
    pending.result(SOON)
    assert digest(deferred) == digest(alone)


def test_ASY_05_a_borrowed_buffer_is_locked_against_resizing() -> None:
    trainer = make_trainer()
    text = bytearray(b"a text in a buffer")
    gate = threading.Event()
    trainer.executor._submit(lambda: gate.wait(SOON))
    step = trainer.deferred(trainer.executor).step([Modality.TEXT], [text])
    with pytest.raises(BufferError):
        text.clear()
    gate.set()
    step.result(SOON)
    text.clear()


UNDECODABLE: dict[str, Any] = {
    "text": ([Modality.TEXT] * 2, ["\ud800", "\udfff"]),
    "image": ([Modality.IMAGE] * 2, [b"no picture", b"none either"]),
}


@pytest.mark.parametrize("way", ["blocking", "deferred", "embed"])
@pytest.mark.parametrize("kind", UNDECODABLE)
def test_ASY_07_items_that_none_can_be_decoded_are_an_error(kind: str, way: str, tmp_path: Path) -> None:
    trainer = make_trainer(objective=Objective.JOINT, batch=shape(images=True))
    trainer.save(tmp_path / "checkpoint")
    model = uform.Model.init_ram(trainer.executor, tmp_path / "checkpoint")
    deferred = trainer.deferred(trainer.executor)
    modalities, contents = UNDECODABLE[kind]
    verbs: dict[str, Any] = {
        "blocking": lambda: trainer.step(modalities, contents),
        "deferred": lambda: deferred.step(modalities, contents).result(SOON),
        "embed": lambda: model.embed(modalities, contents),
    }
    before = digest(trainer)
    with pytest.raises(ValueError, match=r"contents\[0\]"):
        verbs[way]()
    assert digest(trainer) == before
    assert trainer.describe()["step"] == 0


def test_ASY_07_one_that_can_does_not_hide_the_first_that_cannot() -> None:
    trainer = make_trainer(objective=Objective.JOINT, batch=shape(images=True))
    with pytest.raises(ValueError, match=r"contents\[1\]"):
        trainer.step([Modality.IMAGE] * 3, [picture(8, 8), b"no picture", b"none either"])
    assert np.isfinite(Call(TEXTS).step(trainer).stats.loss)
