"""Runs what is measured in processes of their own, and watches what each of them holds on the GPU."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
INTERVAL = 0.02  # seconds between two looks at the memory


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpu:
    """The first visible GPU as the driver's management library tells of it, which makes no context on it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
        if visible.isdecimal():
            self._call("nvmlDeviceGetHandleByIndex_v2", int(visible), ctypes.byref(self._handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", visible.encode(), ctypes.byref(self._handle))

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} answered {result}")

    @property
    def name(self) -> str:
        """What it is called."""
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetName", self._handle, text, len(text))
        return text.value.decode()

    def used_bytes(self) -> int:
        """Memory in use, by whomever."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return int(memory.used)


class Answer(NamedTuple):
    """What a process printed as JSON, a line each, and the most that it held on the GPU, its context included."""

    lines: list[dict[str, Any]]
    held_gib: float


class MeasurementError(Exception):
    """A process that ended badly; its message is what the process said."""


def measure_process(command: Sequence[str | Path], gpu: Gpu) -> Answer:
    """Runs Python with these arguments in the tree; what else uses the GPU meanwhile would count as the process's."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    before = most = gpu.used_bytes()
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        over = False
        while not over:
            most = max(most, gpu.used_bytes())
            over = ended.wait(INTERVAL)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        ended.set()
        watcher.join()
    if run.returncode:
        raise MeasurementError(f"{' '.join(map(str, command))} failed:\n{run.stderr.strip()}")
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return Answer(lines, (most - before) / 2**30)
