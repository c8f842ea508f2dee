"""Jobs that make one file each, run in parallel and only where something changed.

What a job made is valid for the identity of its command and the content of every file it read, not for their times.
So objects survive a fresh checkout, an unpacked source archive and pip's temporary folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tools.build.switches import BuildError

_BUILD_FOLDER = "<build>/"


@dataclass(frozen=True)
class Job:
    """One command that makes one file.

    Attributes:
        label: what the reader sees, e.g. `uform/_ext/core/pack.cpp`.
        output: the file made.
        command: arguments; relative paths start at the root of the tree.
        inputs: files known to be read.
        depfile: a make-style file that the command writes, naming the files it read.
        identity: what else decides the result: flags without the paths of this machine, versions of the tools and of
            the headers that are not ours.
        foreign: folders inside the tree, such as an environment's, whose files are not ours.
        complaint: looks at what the command printed, and answers why the job has failed although the command did not.
        environment: variables added for the command.
    """

    label: str
    output: Path
    command: tuple[str, ...]
    inputs: tuple[Path, ...]
    identity: tuple[str, ...]
    depfile: Path | None = None
    foreign: tuple[Path, ...] = ()
    complaint: Callable[[str], str | None] | None = None
    environment: dict[str, str] = field(default_factory=dict)


class Runner:
    """Runs jobs from the root of the tree, several at a time.

    Args:
        root: the tree's root; commands run there.
        build_folder: where objects are kept; other trees may share it.
        parallel: jobs at a time.
        report: takes one line of progress.
    """

    def __init__(self, root: Path, build_folder: Path, parallel: int, report: Callable[[str], None]) -> None:
        self._root = root
        self._build_folder = build_folder
        self._parallel = parallel
        self._report = report
        self._digests: dict[tuple[str, int, int], str] = {}

    def run(self, jobs: Sequence[Job], *, keep_going: bool = False) -> list[Job]:
        """Runs the jobs that are not up to date, and prints every failure.

        Args:
            jobs: in the order in which they start.
            keep_going: answer without those that failed, as `make -k` would, instead of raising.

        Returns:
            The jobs whose output stands.

        Raises:
            BuildError: some failed; it names them all.
        """
        stale = [job for job in jobs if not self._is_current(job)]
        failed: list[Job] = []
        with ThreadPoolExecutor(self._parallel) as pool:
            for job, message in zip(stale, pool.map(self._attempt, stale), strict=True):
                if message is not None:
                    failed.append(job)
                    self._report(f"--- failed: {job.label}\n{message}")
        if failed and not keep_going:
            raise BuildError("failed: " + ", ".join(job.label for job in failed))
        return [job for job in jobs if job not in failed]

    def _attempt(self, job: Job) -> str | None:
        """Answers what went wrong, or None."""
        self._report(f"  {job.label}")
        job.output.parent.mkdir(parents=True, exist_ok=True)
        job.output.unlink(missing_ok=True)  # a failure leaves nothing old behind, and ar starts anew
        started = time.time_ns()
        finished = subprocess.run(
            job.command,
            cwd=self._root,
            env={**os.environ, **job.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if finished.returncode != 0:
            return f"{finished.stdout}\n(exit {finished.returncode}: {' '.join(job.command)})"
        complaint = job.complaint(finished.stdout) if job.complaint else None
        if complaint is not None:
            return f"{finished.stdout}\n{complaint}"
        if finished.stdout.strip():
            self._report(finished.stdout.rstrip())
        self._record(job, started)
        return None

    def _record(self, job: Job, started: int) -> None:
        inputs = {self._name(path) for path in job.inputs}
        if job.depfile is not None:
            inputs |= {self._name(path) for path in self._ours(read_depfile(job.depfile, self._root), job.foreign)}
        # A file saved while the compiler ran may or may not be what it saw: leave no record, compile again next time.
        if any(self._path(name).stat().st_mtime_ns >= started for name in inputs):
            _record_path(job.output).unlink(missing_ok=True)
            return
        record = {"identity": _identity_digest(job), "inputs": {name: self._digest(name) for name in sorted(inputs)}}
        replace_text(_record_path(job.output), json.dumps(record, indent=1))

    def _ours(self, paths: Sequence[Path], foreign: Sequence[Path]) -> list[Path]:
        """Without the headers of the machine: `identity` stands for them, and pip's temporary folders come and go."""
        normal = [Path(os.path.normpath(path)) for path in paths]
        inside = [path for path in normal if any(map(path.is_relative_to, (self._root, self._build_folder)))]
        return [path for path in inside if not any(map(path.is_relative_to, foreign))]

    def _is_current(self, job: Job) -> bool:
        try:
            record = json.loads(_record_path(job.output).read_text())
            inputs: dict[str, str] = record["inputs"]
            return (
                job.output.exists()
                and record["identity"] == _identity_digest(job)
                and {self._name(path) for path in job.inputs} <= inputs.keys()
                and all(self._digest(name) == digest for name, digest in inputs.items())
            )
        except (OSError, ValueError, KeyError):
            return False

    def _name(self, path: Path) -> str:
        """How a record names an input: from the build folder or the root, so that another tree finds its own."""
        absolute = Path(os.path.normpath(self._root / path))
        if absolute.is_relative_to(self._build_folder):
            return _BUILD_FOLDER + str(absolute.relative_to(self._build_folder))
        return str(absolute.relative_to(self._root)) if absolute.is_relative_to(self._root) else str(absolute)

    def _path(self, name: str) -> Path:
        if name.startswith(_BUILD_FOLDER):
            return self._build_folder / name.removeprefix(_BUILD_FOLDER)
        return self._root / name

    def _digest(self, name: str) -> str:
        path = self._path(name)
        status = path.stat()
        key = (name, status.st_mtime_ns, status.st_size)
        if key not in self._digests:
            self._digests[key] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._digests[key]


def _record_path(output: Path) -> Path:
    return output.with_name(output.name + ".record")


def _identity_digest(job: Job) -> str:
    return hashlib.sha256("\0".join(job.identity).encode()).hexdigest()


def read_depfile(path: Path, root: Path) -> list[Path]:
    """The files after the colon of a make rule, as gcc, clang and nvcc write it."""
    text = path.read_text().replace("\\\n", " ")
    _, _, names = text.partition(": ")
    return [root / name.replace("\\ ", " ") for name in re.findall(r"(?:\\ |\S)+", names)]


def replace_text(path: Path, text: str) -> None:
    """Writes a text file in one go: a reader sees the old or the new."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Writes a file in one go, into a new inode: a process that has the old library mapped keeps it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.chmod(mode)
    scratch.replace(path)


@contextlib.contextmanager
def exclusive(folder: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Holds the folder's lock, so that two builds at once wait for each other."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another build to finish")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def report_to_stdout(line: str) -> None:
    """Prints a line of progress at once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
