"""A segment: one item's marker column and its content's columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .numeric import Array
from .parameters import TEXT_CHOICE, TEXT_SEPARATOR

TEXT = "text"


def _none_covered() -> Array:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Segment:
    """One item as the encoder reads it. Its columns are the marker, the content, and then what is not pooled.

    Attributes:
        modality: `text`, or the name that the modality's parameters carry.
        bag: The bag's number; a segment's hidden states are pooled into it.
        content: For text the codes `[n]` after covering (the mask column is a code); otherwise the scaled values of
            every patch `[n, values]` before covering.
        grid: Extents of the rotary axes, one, two (y, x) or three (t, y, x); their product is `n`, in raster order.
        covered: The covered places within the content, `[k]`.
        targets: For text the true bytes at the covered places, `[k]`. Other modalities reconstruct `content`.
        extra: Codes of the columns behind a text's content: its choices.
    """

    modality: str
    bag: int
    content: Array
    grid: tuple[int, ...]
    covered: Array = field(default_factory=_none_covered)
    targets: Array = field(default_factory=_none_covered)
    extra: Array = field(default_factory=_none_covered)

    @property
    def pooled(self) -> int:
        """The leading columns that are pooled."""
        return 1 + len(self.content)

    @property
    def positions(self) -> tuple[int, ...]:
        """The grid in whose raster order all columns but the marker lie: extra ones go on along the only axis."""
        return (self.grid[0] + len(self.extra),) if len(self.extra) else self.grid

    @property
    def choice_columns(self) -> Array:
        """The column that leads each choice."""
        return self.pooled + np.flatnonzero(self.extra == TEXT_CHOICE)


def choice_codes(choices: Sequence[bytes]) -> Array:
    """A separator, then each choice led by its column; nothing where there are none."""
    codes = [[TEXT_SEPARATOR]] if choices else []
    codes += [[TEXT_CHOICE, *choice] for choice in choices]
    return np.array([code for part in codes for code in part], dtype=np.int64)


def text_segment(
    text: bytes,
    *,
    bag: int = 0,
    covered: Array | None = None,
    replacements: Array | None = None,
    choices: Sequence[bytes] = (),
) -> Segment:
    """A segment of `text` in which the bytes at `covered` are read as the codes `replacements`, then its choices."""
    truth = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    codes = truth.copy()
    places = _none_covered() if covered is None else np.asarray(covered, dtype=np.int64)
    if replacements is not None:
        codes[places] = replacements
    return Segment(
        modality=TEXT,
        bag=bag,
        content=codes,
        grid=(len(text),),
        covered=places,
        targets=truth[places],
        extra=choice_codes(choices),
    )
