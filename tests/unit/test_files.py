"""Files that cannot be read or written: the system's own errors, and checkpoints that nothing could resume."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.runs import make_trainer, names_of, ram, resume
from uform import Modality, Objective

OPENERS: list[Callable[[str], Any]] = [
    resume,
    lambda path: uform.Model.init_ram(ram(), path),
    lambda path: uform.Trainer.plan_ram(ram(), resume=path),
]


@pytest.mark.parametrize("opened", OPENERS, ids=["resume", "Model", "plan"])
@pytest.mark.parametrize(
    ("name", "expected", "number"),
    [
        ("absent", FileNotFoundError, errno.ENOENT),
        ("absent/file", FileNotFoundError, errno.ENOENT),
        ("file/file", NotADirectoryError, errno.ENOTDIR),
        ("folder", IsADirectoryError, errno.EISDIR),
        ("x" * 300, OSError, errno.ENAMETOOLONG),
        ("loop", OSError, errno.ELOOP),
    ],
)
def test_reading_raises_the_system_s_error(
    opened: Callable[[str], Any], name: str, expected: type[OSError], number: int, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    path = str(tmp_path / name)
    with pytest.raises(expected) as refused:
        opened(path)
    assert (refused.value.errno, refused.value.filename) == (number, path)
    assert str(refused.value).count(path) == 1


@pytest.mark.parametrize(
    ("name", "expected", "number"),
    [
        ("absent/file", FileNotFoundError, errno.ENOENT),
        ("file/file", NotADirectoryError, errno.ENOTDIR),
        ("folder", IsADirectoryError, errno.EISDIR),
        ("loop", OSError, errno.ELOOP),
    ],
)
def test_saving_raises_the_system_s_error(name: str, expected: type[OSError], number: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    trainer, path = make_trainer(), str(tmp_path / name)
    for save in (trainer.save, lambda path: trainer.deferred(trainer.executor).save(path).result(60)):
        with pytest.raises(expected) as refused:
            save(path)
        assert (refused.value.errno, refused.value.filename) == (number, path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    make_trainer().save(path)
    path.chmod(0)
    with pytest.raises(PermissionError) as refused:
        resume(path)
    assert refused.value.filename == str(path)


def test_a_protected_file_system() -> None:
    with pytest.raises(OSError, match="/proc/self/") as refused:
        make_trainer().save("/proc/self/checkpoint")
    assert refused.value.errno in (errno.ENOENT, errno.EACCES, errno.EPERM)


def test_a_path_that_is_no_text_is_told_as_it_came(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff"
    with pytest.raises(FileNotFoundError) as refused:
        resume(os.fsdecode(path))
    assert os.fsencode(refused.value.filename) == path


def test_a_damaged_file_is_no_system_s_error(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(b"\0" * 64)
    with pytest.raises(OSError, match="damaged") as refused:
        resume(path)
    assert refused.value.errno is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, -1])
def test_a_weight_that_is_not_finite_is_not_saved(value: float, place: int, tmp_path: Path) -> None:
    trainer, path = make_trainer(objective=Objective.JOINT), tmp_path / "checkpoint"
    trainer.save(path)
    before = path.read_bytes()
    name = names_of(trainer)[place]
    right = trainer.read(name)
    wrong = right.copy()
    wrong.flat[-1] = value
    trainer.write(name, wrong)
    for save in (trainer.save, lambda path: trainer.deferred(trainer.executor).save(path).result(60)):
        with pytest.raises(FloatingPointError, match=rf"tensor {name}: its value {wrong.size - 1} is"):
            save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["checkpoint"]
    trainer.write(name, right)
    trainer.save(path)
    assert path.read_bytes() == before


def test_a_deferred_save_goes_where_its_path_led_when_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    trainer = make_trainer()
    deferred = trainer.deferred(trainer.executor)
    monkeypatch.chdir(here)
    step = deferred.step([Modality.TEXT] * 8, ["a text"] * 8)
    saved = deferred.save("checkpoint")
    monkeypatch.chdir(elsewhere)
    step.result(60)
    saved.result(60)
    assert (os.listdir(here), os.listdir(elsewhere)) == (["checkpoint"], [])
