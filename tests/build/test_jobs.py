"""A job runs again exactly when what it read has changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tools.build.jobs import Job, Runner, read_depfile, replace_bytes
from tools.build.switches import BuildError

LONG_AGO = 1_000_000_000


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (LONG_AGO, LONG_AGO))  # the same time always: only content may count


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    write(root / "main.txt", "main")
    write(root / "header.txt", "header")
    return root


def concatenation(build: Path, *, flag: str = "") -> Job:
    """A compiler in small: puts both files together, and tells in a depfile which it read."""
    script = (
        f"cat main.txt header.txt > {build}/out.o && printf 'out.o: main.txt \\\\\\n header.txt\\n' > {build}/out.d"
    )
    return Job(
        label="main.txt",
        output=build / "out.o",
        command=("sh", "-c", script),
        inputs=(Path("main.txt"),),
        identity=("concatenate", flag),
        depfile=build / "out.d",
    )


def runs(root: Path, job: Job) -> bool:
    lines: list[str] = []
    Runner(root, job.output.parent, 1, lines.append).run([job])
    return lines != []


def test_runs_once_then_only_after_a_change(tree: Path, tmp_path: Path) -> None:
    job = concatenation(tmp_path / "build")
    assert runs(tree, job)
    assert not runs(tree, job)
    write(tree / "header.txt", "another header")
    assert runs(tree, job)
    assert job.output.read_text() == "mainanother header"
    assert not runs(tree, job)
    assert runs(tree, concatenation(tmp_path / "build", flag="-O3"))


def test_touching_a_file_is_no_change(tree: Path, tmp_path: Path) -> None:
    job = concatenation(tmp_path / "build")
    assert runs(tree, job)
    os.utime(tree / "header.txt", (LONG_AGO + 1, LONG_AGO + 1))
    assert not runs(tree, job)


def test_another_tree_of_the_same_content_takes_what_was_made(tree: Path, tmp_path: Path) -> None:
    job = concatenation(tmp_path / "build")
    assert runs(tree, job)
    other = tmp_path / "unpacked"
    shutil.copytree(tree, other)
    assert not runs(other, job)


def test_headers_of_the_machine_are_not_recorded(tree: Path, tmp_path: Path) -> None:
    write(tmp_path / "toolkit" / "cuda.h", "")
    write(tree / "env" / "cutlass.h", "")
    build = tmp_path / "build"
    script = f"touch {build}/out.o; printf 'out.o: main.txt ../toolkit/cuda.h env/cutlass.h\n' > {build}/out.d"
    job = Job(
        "main.txt",
        build / "out.o",
        ("sh", "-c", script),
        (Path("main.txt"),),
        ("touch",),
        build / "out.d",
        foreign=(tree / "env",),
    )
    assert runs(tree, job)
    assert list(json.loads((build / "out.o.record").read_text())["inputs"]) == ["main.txt"]


def test_a_file_saved_while_the_job_ran_is_read_again(tree: Path, tmp_path: Path) -> None:
    job = concatenation(tmp_path / "build")
    os.utime(tree / "header.txt", (2**33, 2**33))  # later than any start
    assert runs(tree, job)
    assert runs(tree, job)


def test_failures_are_all_printed_and_all_named(tree: Path, tmp_path: Path) -> None:
    bad = [
        Job(name, tmp_path / "build" / name, ("sh", "-c", f"echo broken {name}; exit 3"), (), ()) for name in ("a", "b")
    ]
    good = concatenation(tmp_path / "build")
    lines: list[str] = []
    with pytest.raises(BuildError, match="failed: a, b"):
        Runner(tree, tmp_path / "build", 2, lines.append).run([bad[0], good, bad[1]])
    printed = "\n".join(lines)
    assert "broken a" in printed
    assert "broken b" in printed
    assert good.output.exists()
    assert Runner(tree, tmp_path / "build", 2, lines.append).run([*bad, good], keep_going=True) == [good]


def test_a_complaint_fails_a_command_that_did_not(tree: Path, tmp_path: Path) -> None:
    job = Job("kernel", tmp_path / "out", ("sh", "-c", "echo slow; touch out"), (), (), complaint=lambda text: text)
    with pytest.raises(BuildError, match="kernel"):
        Runner(tree, tmp_path, 1, lambda line: None).run([job])


def test_depfile_with_spaces_and_continued_lines(tmp_path: Path) -> None:
    depfile = tmp_path / "out.d"
    depfile.write_text("out.o: a.cpp \\\n with\\ space.h \\\n  b.h\n")
    assert read_depfile(depfile, tmp_path) == [tmp_path / name for name in ("a.cpp", "with space.h", "b.h")]


def test_a_replaced_file_stays_whole_for_whoever_has_it_open(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    replace_bytes(path, b"old")
    with path.open("rb") as held:
        replace_bytes(path, b"new")
        assert held.read() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
