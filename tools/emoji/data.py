"""Emoji pictures and what each is called in every language."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pictures = NDArray[np.uint8]  # [n, side, side, 3]


@dataclass(frozen=True)
class Emojis:
    """Pictures with their names.

    Attributes:
        pictures: uint8 `[n, side, side, 3]`.
        names: of each picture, one a language, as many of every picture.
    """

    pictures: Pictures
    names: list[list[str]]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def languages(self) -> int:
        """Names of a picture."""
        return len(self.names[0])

    @property
    def all_names(self) -> list[str]:
        """Every name, picture by picture."""
        return list(chain.from_iterable(self.names))

    @property
    def owners(self) -> NDArray[np.int64]:
        """The picture of each of `all_names`."""
        return np.repeat(np.arange(len(self)), self.languages)


def read_emojis(path: Path) -> tuple[Emojis, Emojis]:
    """Those to train on and those held out.

    Args:
        path: a parquet file of the columns `png`, `names` and `split`, which is `train` or `valid`.
    """
    from PIL import Image
    from pyarrow import parquet

    rows = parquet.read_table(path, columns=["png", "names", "split"]).to_pylist()

    def part(split: str) -> Emojis:
        chosen = [row for row in rows if row["split"] == split]
        pictures = [np.asarray(Image.open(io.BytesIO(row["png"])).convert("RGB")) for row in chosen]
        return Emojis(np.stack(pictures), [row["names"] for row in chosen])

    return part("train"), part("valid")
