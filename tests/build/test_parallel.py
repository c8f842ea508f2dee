"""`UFORM_BUILD_JOBS` compilations run at once: each waits within ccache's place until all have begun."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.helpers.small_tree import build, forget_switches, make_program, make_tree, put_before_path
from tools.build.jobs import Job, Runner
from tools.build.switches import BuildError

PATIENCE = 120  # seconds until a compilation that waits alone is a failure

# Sources of C++ wait at the gate; what else is compiled passes by.
CCACHE = """#!{python} -S
import os, socket, sys
if sys.argv[sys.argv.index("-c") + 1].endswith(".cpp"):
    with socket.socket(socket.AF_UNIX) as gate:
        gate.connect({address!r})
        if gate.recv(1) != b"+":
            sys.exit("waited alone")
os.execvp(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def gate(address: Path, count: int, patience: float = PATIENCE) -> Iterator[None]:
    """Lets callers pass when `count` of them wait at once; turns away those who wait in vain for `patience` seconds."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(count)
    listener.settimeout(patience)

    def serve() -> None:
        with listener, ExitStack() as waiting:  # closed at the end, so that whoever still comes is refused
            callers = [waiting.enter_context(listener.accept()[0]) for _ in range(count)]
            for caller in callers:
                caller.sendall(b"+")

    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        yield
    served.result()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three sources of C++."""
    forget_switches(monkeypatch)
    make_program(tmp_path / "bin" / "ccache", CCACHE.format(python=sys.executable, address=str(tmp_path / "gate")))
    put_before_path(monkeypatch, tmp_path / "bin")
    return make_tree(tmp_path / "tree")


def test_as_many_compilations_run_at_once_as_asked_for(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UFORM_BUILD_JOBS", "3")
    with gate(tmp_path / "gate", 3):
        assert len([label for label in build(tree) if label.endswith(".cpp")]) == 3


def test_no_more_run_at_once_than_asked_for(tmp_path: Path) -> None:
    # A job that finds the folder of another one fails.
    script = "mkdir busy && touch {0} && rmdir busy"
    names = [f"made{i}" for i in range(8)]
    jobs = [Job(name, tmp_path / name, ("sh", "-c", script.format(name)), (), (name,)) for name in names]
    assert Runner(tmp_path, tmp_path, 1, lambda line: None).run(jobs) == jobs


def test_the_gate_notices_who_comes_alone(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UFORM_BUILD_JOBS", "1")
    waits_in_vain, fails = pytest.raises(TimeoutError), pytest.raises(BuildError, match="failed")
    with waits_in_vain, gate(tmp_path / "gate", 3, patience=0.1), fails:
        build(tree)
