"""WordNet's synsets and what each is a kind of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Synset:
    """One meaning.

    Attributes:
        part: of speech; only nouns and verbs have hypernyms.
        lemmas: the words that mean it, the most usual first.
        definition: a gloss.
        hypernyms: names of the synsets that it is a kind of, directly.
        split: `train` or `valid`.
    """

    part: str
    lemmas: tuple[str, ...]
    definition: str
    hypernyms: tuple[str, ...]
    split: str


class Wordnet:
    """Synsets by their names."""

    def __init__(self, synsets: Mapping[str, Synset]) -> None:
        self.synsets = synsets
        self.ancestors = cache(self._ancestors)
        self.words_above = cache(self._words_above)

    def _ancestors(self, name: str) -> frozenset[str]:
        """Everything that a synset is a kind of, itself too: the hierarchy has no circles."""
        above = (self.ancestors(parent) for parent in self.synsets[name].hypernyms)
        return frozenset({name}).union(*above)

    def _words_above(self, name: str) -> frozenset[str]:
        """All lemmas of a synset's ancestors."""
        return frozenset(lemma for above in self.ancestors(name) for lemma in self.synsets[above].lemmas)


def from_rows(rows: Iterable[Mapping[str, Any]]) -> Wordnet:
    """Rows of the fields of a `Synset`, and its name as `synset`; hypernyms that are not among them are left out."""
    rows = list(rows)
    known = {row["synset"] for row in rows}
    return Wordnet(
        {
            row["synset"]: Synset(
                part=row["part"],
                lemmas=tuple(row["lemmas"]),
                definition=row["definition"],
                hypernyms=tuple(name for name in row["hypernyms"] if name in known),
                split=row["split"],
            )
            for row in rows
        }
    )


def read_wordnet(path: Path) -> Wordnet:
    """A parquet file of the columns `synset`, `part`, `lemmas`, `definition`, `hypernyms` and `split`."""
    from pyarrow import parquet

    columns = ["synset", "part", "lemmas", "definition", "hypernyms", "split"]
    return from_rows(parquet.read_table(path, columns=columns).to_pylist())
