"""What the library tells through Python's `logging`, and that it prints nothing by itself."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import uform
from tests.helpers.processes import run_python
from tests.helpers.runs import HIDDEN, make_trainer, ram, resume
from uform import Modality


def told(records: list[logging.LogRecord]) -> list[str]:
    return [record.getMessage() for record in records if record.name == "uform" and record.levelno == logging.INFO]


def test_runs_saves_and_models_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "checkpoint"
    with caplog.at_level(logging.INFO, "uform"):
        trainer = make_trainer()
        trainer.step([Modality.TEXT], ["a"])
        trainer.save(path)
        trainer.deferred(trainer.executor).save(path).result(60)
        resume(path)
        uform.Model.init_ram(ram(), path)
    run = trainer.describe()
    sizes = f"{run['parameter_count']} parameters and {run['planned_bytes_per_device']['total']} bytes a device"
    assert told(caplog.records) == [
        f"a run of {sizes} on {ram()!r}, from its beginning",
        f"saved {path}",
        f"saved {path}",
        f"a run of {sizes} on {ram()!r}, resumed at step 1",
        f"a model of {HIDDEN} columns on {ram()!r}, from {path}",
    ]


def test_what_fails_is_not_told_as_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer()
    with caplog.at_level(logging.DEBUG, "uform"):
        with pytest.raises(uform.Cancelled):
            trainer.save(tmp_path / "checkpoint", progress=lambda done, total: False)
        with pytest.raises(OSError, match="nowhere"):
            trainer.save("/nowhere/checkpoint")
    assert told(caplog.records) == []


def test_nothing_is_printed_unasked(tmp_path: Path) -> None:
    code = """
    import contextlib, io, json, os, sys
    import uform
    read, write = os.pipe()
    kept = os.dup(1), os.dup(2)
    os.dup2(write, 1)
    os.dup2(write, 2)  # what C prints as well
    trainer = uform.Trainer.init_ram(uform.Executor.for_ram(), depth=1, hidden=64)
    trainer.step([uform.Modality.TEXT], ["a"])
    trainer.save(sys.argv[1])
    trainer.deferred(trainer.executor).step([uform.Modality.TEXT], ["a"]).result(60)
    uform.Model.init_ram(trainer.executor, sys.argv[1]).embed([uform.Modality.TEXT], ["a"])
    uform.show_config()
    sys.stdout.flush()
    os.dup2(kept[0], 1)
    os.dup2(kept[1], 2)
    os.close(write)
    print(json.dumps(os.read(read, 1000).decode()))
    """
    assert run_python(code, tmp_path / "checkpoint") == ""
