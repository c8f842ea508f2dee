"""What a step is given: pictures a little moved, each with its names in a few languages, and who belongs to whom."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tools.emoji.data import Emojis, Pictures

_T = TypeVar("_T")

VARIANTS = 8  # of each picture, made once, before training
CHANGED_AT_ONCE = 128  # pictures of one stretch
LEAST_SCALE, MOST_SCALE = 0.8, 1.1  # of the picture's height and width
MARGIN = 8  # white around a variant, within which a step's window moves
CONTRAST, BRIGHTNESS = 0.1, 12.0  # relative, and of 255
WHITE = 255


@dataclass(frozen=True)
class Batch:
    """Pictures and their names: the names of picture `i` stand at `names_each * i` and after.

    Attributes:
        pictures: uint8 `[n, side, side, 3]`.
        names: `n * names_each`.
        alike: int64 `[pairs, 2]`: pictures `i` and `j` that look the same or share a name, so that the names of
            one are no wrong answer for the other; each pair both ways.
    """

    pictures: Pictures
    names: list[str]
    alike: NDArray[np.int64]

    @property
    def names_each(self) -> int:
        """Names of a picture."""
        return len(self.names) // len(self.pictures)

    def attracted(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Each picture and its names, both ways, as compressed sparse rows over pictures and then names."""
        count, each = len(self.pictures), self.names_each
        of_names = np.repeat(np.arange(count), each)
        ids = np.concatenate([count + np.arange(len(self.names)), of_names])
        sizes = np.concatenate([np.full(count, each), np.ones(len(self.names), np.int64)])
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64), ids.astype(np.uint32)

    def ignored(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """The pictures and names of pairs that are alike, in the same form."""
        count, each = len(self.pictures), self.names_each
        pictures = np.repeat(self.alike[:, 0], each)
        names = count + (self.alike[:, 1:] * each + np.arange(each)).ravel()
        rows, ids = np.concatenate([pictures, names]), np.concatenate([names, pictures])
        order = np.lexsort((ids, rows))
        sizes = np.bincount(rows, minlength=count + len(self.names))
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64), ids[order].astype(np.uint32)


def find_alike(emojis: Emojis) -> NDArray[np.bool_]:
    """`[n, n]`: which pictures look the same or share a name; nothing is like itself."""
    alike = np.zeros((len(emojis), len(emojis)), np.bool_)
    groups: dict[bytes | str, list[int]] = {}
    for place, (picture, names) in enumerate(zip(emojis.pictures, emojis.names, strict=True)):
        for key in {picture.tobytes(), *names}:
            groups.setdefault(key, []).append(place)
    for group in groups.values():
        alike[np.ix_(group, group)] = True
    np.fill_diagonal(alike, False)
    return alike


def resampling(scale: float, side: int) -> NDArray[np.float32]:
    """`[side, side]`: stretches one axis about its middle, by triangles as wide as the coarser of both grids."""
    middle = (side - 1) / 2
    sources = (np.arange(side) - middle) / scale + middle
    reach = max(1.0, 1 / scale)
    weights = np.maximum(0, 1 - np.abs(np.arange(side)[None, :] - sources[:, None]) / reach)
    inside = (sources > -0.5) & (sources < side - 0.5)
    shares = weights * inside[:, None] / np.maximum(weights.sum(axis=1, keepdims=True), 1e-6)
    return np.asarray(shares, np.float32)


def stretch(pictures: Pictures, down: float, across: float) -> NDArray[np.float32]:
    """The pictures stretched about their middles; what lies beyond them is white."""
    side = pictures.shape[1]
    values = (WHITE - pictures).astype(np.float32)
    for axis, scale in ((1, down), (2, across)):
        first = np.moveaxis(values, axis, 0)  # one product for all pictures
        stretched = resampling(scale, side) @ first.reshape(side, -1)
        values = np.moveaxis(stretched.reshape(first.shape), 0, axis)
    return WHITE - values


def change(pictures: Pictures, seed: int) -> Pictures:
    """The pictures stretched alike, and of each the tones changed."""
    rng = np.random.default_rng(seed)
    changed = stretch(pictures, *rng.uniform(LEAST_SCALE, MOST_SCALE, 2))
    changed *= rng.uniform(1 - CONTRAST, 1 + CONTRAST, (len(pictures), 1, 1, 1)).astype(np.float32)
    changed += rng.uniform(-BRIGHTNESS, BRIGHTNESS, (len(pictures), 1, 1, 1)).astype(np.float32)
    return np.rint(np.clip(changed, 0, WHITE)).astype(np.uint8)


def make_variants(pictures: Pictures, rng: np.random.Generator) -> list[Pictures]:
    """The pictures on a wider white ground: as they are, then changed at random, some at a time."""
    count, side = pictures.shape[:2]
    wide = side + 2 * MARGIN
    plain = np.full((count, wide, wide, 3), WHITE, np.uint8)
    plain[:, MARGIN : MARGIN + side, MARGIN : MARGIN + side] = pictures
    starts = range(0, count, CHANGED_AT_ONCE)
    seeds = rng.integers(2**32, size=(VARIANTS - 1, len(starts)))
    with ThreadPoolExecutor() as threads:
        jobs = [
            [
                threads.submit(change, plain[at : at + CHANGED_AT_ONCE], int(seed))
                for at, seed in zip(starts, row, strict=True)
            ]
            for row in seeds
        ]
        return [plain, *(np.concatenate([job.result() for job in row]) for row in jobs)]


def move(variants: list[Pictures], places: NDArray[np.int64], rng: np.random.Generator) -> Pictures:
    """A window into a random variant of each picture."""
    side = variants[0].shape[1] - 2 * MARGIN
    which, tops, lefts = (
        rng.integers(most, size=len(places)).tolist() for most in (len(variants), *[2 * MARGIN + 1] * 2)
    )
    moved = np.empty((len(places), side, side, 3), np.uint8)
    for at, place in enumerate(places.tolist()):
        top, left = tops[at], lefts[at]
        moved[at] = variants[which[at]][place, top : top + side, left : left + side]
    return moved


def make_batches(emojis: Emojis, pictures: int, names_each: int, steps: int, seed: int) -> Iterator[Batch]:
    """The same batches for the same seed: pictures in an order that is new every epoch, names in random languages.

    Args:
        emojis: those to train on.
        pictures: of a batch.
        names_each: names of each picture in a batch, each of another language.
        steps: how many batches.
        seed: of every random choice.
    """
    rng = np.random.default_rng(seed)
    alike = find_alike(emojis)
    variants = make_variants(emojis.pictures, rng)
    order: NDArray[np.int64] = np.zeros(0, np.int64)
    for _ in range(steps):
        if len(order) < pictures:
            order = rng.permutation(len(emojis))
        drawn, order = order[:pictures], order[pictures:]
        languages = np.argsort(rng.random((pictures, emojis.languages)), axis=1)[:, :names_each].tolist()
        names = [emojis.names[place][one] for place, row in zip(drawn.tolist(), languages, strict=True) for one in row]
        yield Batch(move(variants, drawn, rng), names, np.argwhere(alike[np.ix_(drawn, drawn)]))


def prefetch(items: Iterable[_T], depth: int = 8) -> Iterator[_T]:
    """The same items, made by a thread of their own while the caller works on earlier ones."""
    ready: queue.Queue[_T | BaseException | None] = queue.Queue(depth)

    def make() -> None:
        try:
            for item in items:
                ready.put(item)
            ready.put(None)
        except BaseException as failure:
            ready.put(failure)

    threading.Thread(target=make, daemon=True).start()
    while (item := ready.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item
