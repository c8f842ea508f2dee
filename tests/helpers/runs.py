"""Tiny runs on the reference executor, and what is read from them."""

from __future__ import annotations

import functools
import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import uform
from tests.oracle.parameters import BIAS, CHOICES_VECTOR, LOG_INVERSE_TEMPERATURE, PROJECTION, initialize

Array = npt.NDArray[Any]

HIDDEN = 64
TINY: dict[str, Any] = {"depth": 1, "hidden": HIDDEN}
CHANNELS, SIDE = 3, 4


@functools.cache
def ram(devices: int = 1, threads: int = 1) -> uform.Executor:
    """A reference executor; one a count of devices is shared by all tests of a process."""
    return uform.Executor.for_ram(devices=devices, threads=threads)


def shape(
    *, rows: int = 8, columns: int = 32, images: bool = False, segments: int = 32, bags: int = 0
) -> uform.BatchShape:
    """A small batch shape, with images as patches of 4 x 4 where asked for."""
    return uform.BatchShape(
        max_rows_per_device=rows,
        max_columns_per_row=columns,
        max_segments_per_device=segments,
        max_bags_per_device=bags,
        image=uform.ImageShape(patch_side=SIDE, channels=CHANNELS) if images else None,
    )


def make_trainer(*, devices: int = 1, threads: int = 1, **fields: Any) -> uform.Trainer:
    """A tiny run; every field may be given."""
    given: dict[str, Any] = {**TINY, "batch": shape(), **fields}
    return uform.Trainer.init_ram(ram(devices, threads), **given)


def resume(path: Path | str, *, devices: int = 1, **fields: Any) -> uform.Trainer:
    """The run that a checkpoint holds."""
    return uform.Trainer.init_ram(ram(devices), resume=path, **fields)


def names_of(trainer: uform.Trainer) -> list[str]:
    """The parameters' names, in their order."""
    return [entry["name"] for entry in trainer.describe()["parameters"]]


def read_all(trainer: uform.Trainer, what: str = "parameter") -> dict[str, Array]:
    """Every parameter, gradient or moment by name, in its shape."""
    shapes = {entry["name"]: entry["shape"] for entry in trainer.describe()["parameters"]}
    return {name: np.array(trainer.read(name, what)).reshape(extents) for name, extents in shapes.items()}


def digest(trainer: uform.Trainer) -> str:
    """One hash of every bit of the parameters and the moments."""
    state = hashlib.sha256()
    for what in ("parameter", "moment1", "moment2"):
        for values in read_all(trainer, what).values():
            state.update(values.tobytes())
    return state.hexdigest()


def spread(trainer: uform.Trainer, *, deviation: float = 0.12, seed: int = 5) -> None:
    """Overwrites the weights by larger ones, so that every term of every gradient matters; temperatures stay."""
    described = trainer.describe()
    image = described["batch"].get("image")
    values = {"image": image["patch_side"] ** 2 * image["channels"]} if image else {}
    drawn = initialize(
        np.random.default_rng(seed),
        depth=described["depth"],
        hidden=described["hidden"],
        patch_values=values,
        deviation=deviation,
    )
    for name, value in drawn.items():
        if name not in (LOG_INVERSE_TEMPERATURE, BIAS):
            trainer.write(name, np.asarray(value, dtype=np.float32))
    if "choices" in described:
        drawn_vector = np.random.default_rng(seed + 1).normal(0.0, deviation, described["hidden"])
        trainer.write(CHOICES_VECTOR, drawn_vector.astype(np.float32))
    if "late_interaction" in described:
        drawn_map = np.random.default_rng(seed + 2).normal(
            0.0, deviation, (described["late_interaction"]["width"], described["hidden"])
        )
        trainer.write(PROJECTION, drawn_map.astype(np.float32))


def picture(height: int, width: int, *, seed: int = 0, channels: int = CHANNELS) -> Array:
    """A noisy `uint8` picture."""
    pixels: Array = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return pixels


def unit_vectors(count: int, width: int, seed: int = 7) -> Array:
    """Random unit vectors in float32."""
    vectors = np.random.default_rng(seed).normal(size=(count, width))
    scaled: Array = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def hold(executor: uform.Executor) -> threading.Event:
    """Holds the executor's worker, and what is submitted behind, until the event is set or a minute has passed."""
    gate, held = threading.Event(), threading.Event()

    def wait() -> None:
        held.set()
        gate.wait(60)

    executor._submit(wait)
    assert held.wait(60)
    return gate
