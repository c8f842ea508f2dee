"""Progress: what is told, in a terminal and in a notebook, and what a callback may do to the verb that calls it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.runs import TINY, make_trainer, ram, shape

tqdm = pytest.importorskip("tqdm")


class Drawn:
    """A bar that keeps what it is told."""

    made: list[Drawn]

    def __init__(self, **options: Any) -> None:
        self.options, self.n, self.closed = options, 0, False
        Drawn.made.append(self)

    def update(self, count: int) -> None:
        assert count > 0
        assert not self.closed
        self.n += count

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    import tqdm.auto

    monkeypatch.setattr(tqdm.auto, "tqdm", Drawn)
    Drawn.made = []
    return Drawn.made


def make(progress: Any, **fields: Any) -> uform.Trainer:
    return uform.Trainer.init_ram(ram(), **TINY, batch=shape(), progress=progress, **fields)


def test_a_bar_serves_call_after_call(drawn: list[Drawn], tmp_path: Path) -> None:
    bar = uform.progress.bar(desc="run", total=3)
    trainer = make(bar)
    tensors = len(trainer.describe()["parameters"])
    trainer.save(tmp_path / "checkpoint", progress=bar, progress_steps=7)
    make(bar, resume=tmp_path / "checkpoint")
    totals = [tensors, 3 * tensors, tensors]
    assert [(one.options, one.n, one.closed) for one in drawn] == [
        ({"desc": "run", "total": total}, total, True) for total in totals
    ]


def test_a_bar_begins_anew_after_a_call_that_did_not_end(drawn: list[Drawn], tmp_path: Path) -> None:
    bar, trainer = uform.progress.bar(), make_trainer()

    def cancel(done: int, total: int) -> bool:
        bar(done, total)
        return done < 4

    with pytest.raises(uform.Cancelled):
        trainer.save(tmp_path / "checkpoint", progress=cancel)
    trainer.save(tmp_path / "checkpoint", progress=bar)
    assert [(one.n, one.closed) for one in drawn] == [(4, True), (drawn[1].options["total"], True)]


def test_a_bar_in_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer().save(tmp_path / "checkpoint", progress=uform.progress.bar(desc="saving"))
    assert "saving: 100%" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_a_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("ipywidgets")
    import tqdm.auto
    import tqdm.notebook

    monkeypatch.setattr(tqdm.auto, "tqdm", tqdm.notebook.tqdm)  # as a kernel of a notebook has it
    bar = uform.progress.bar(desc="saving")
    for _ in range(2):
        make_trainer().save(tmp_path / "checkpoint", progress=bar)
    assert "saving" in capsys.readouterr().out


def test_without_tqdm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r'pip install "uform\[progress\]"'):
        uform.progress.bar()


@pytest.mark.parametrize("way", ["blocking", "deferred"])
def test_false_cancels_and_what_is_no_answer_goes_on(way: str, tmp_path: Path) -> None:
    """False alone, NumPy's too: None, 0 and an empty text are what a callback answers that has nothing to say."""
    trainer = make_trainer()

    def save(progress: Any) -> None:
        if way == "blocking":
            trainer.save(tmp_path / "checkpoint", progress=progress)
        else:
            trainer.deferred(trainer.executor).save(tmp_path / "checkpoint", progress=progress).result(60)

    for refusal in (False, np.False_):
        with pytest.raises(uform.Cancelled, match="progress callback"):
            save(lambda done, total, refusal=refusal: refusal)
    assert list(tmp_path.iterdir()) == []
    for answer in (None, 0, "", np.True_):
        save(lambda done, total, answer=answer: answer)
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_cancelled_init_makes_no_run_and_takes_no_file(resumed: bool, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    make_trainer().save(path)
    before, fields = path.read_bytes(), {"resume": path} if resumed else {}
    for last in (False, True):  # at the first tensor, and at the last
        with pytest.raises(uform.Cancelled):
            make(lambda done, total, last=last: last and done < total, **fields)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]
    assert make(None, **fields).describe()["step"] == 0
