"""Questions of several choices, one of which is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tools.choices.wordnet import Wordnet

MOST_DRAWS = 10_000

_T = TypeVar("_T")


@dataclass(frozen=True)
class Questions:
    """Definitions, and the words that each is asked about.

    Attributes:
        texts: the definitions.
        choices: of each text, as many of every one.
        answers: the place of the right choice, `[n]`.
    """

    texts: list[str]
    choices: list[list[str]]
    answers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def targets(self) -> list[NDArray[np.float32]]:
        """A row a text: 1 for the right choice."""
        return list(np.eye(len(self.choices[0]), dtype=np.float32)[self.answers])


class Questioner:
    """Asks about the synsets of one split.

    The right choice is the first lemma of a hypernym. The wrong ones are right choices of other synsets of the same
    part of speech, so that how usual a word is as an answer tells nothing. No wrong choice is a word for anything that
    the synset is a kind of, at whatever distance.

    Raises:
        ValueError: when asked, a part of speech has too few right answers to make so many choices of.
    """

    def __init__(self, wordnet: Wordnet, split: str, choices: int) -> None:
        chosen = {name: one for name, one in wordnet.synsets.items() if one.split == split and one.hypernyms}
        self._wordnet = wordnet
        self._choices = choices
        self._names = list(chosen)
        self._answers = [[wordnet.synsets[above].lemmas[0] for above in one.hypernyms] for one in chosen.values()]
        self._peers: dict[str, list[int]] = {}
        for place, one in enumerate(chosen.values()):
            self._peers.setdefault(one.part, []).append(place)

    def __len__(self) -> int:
        return len(self._names)

    def ask(self, chosen: NDArray[np.int64], rng: np.random.Generator) -> Questions:
        """One question about each of the chosen synsets, by their places."""
        texts, choices, answers = [], [], []
        # Most questions do with so many numbers, which are cheap when drawn together.
        drawn = rng.random((len(chosen), 3 * self._choices)).tolist()
        for place, numbers in zip(chosen.tolist(), drawn, strict=True):
            draws = chain(numbers, iter(rng.random, None))
            answer = int(next(draws) * self._choices)
            right = _any(self._answers[place], draws)
            offered = self._wrong(place, draws)
            offered.insert(answer, right)
            texts.append(self._wordnet.synsets[self._names[place]].definition)
            choices.append(offered)
            answers.append(answer)
        return Questions(texts, choices, np.array(answers, dtype=np.int64))

    def batches(self, questions: int, rng: np.random.Generator) -> Iterator[Questions]:
        """Endless batches; every synset comes once before any comes again."""
        order = np.zeros(0, dtype=np.int64)
        while True:
            while len(order) < questions:
                order = np.concatenate([order, rng.permutation(len(self))])
            yield self.ask(order[:questions], rng)
            order = order[questions:]

    def _wrong(self, place: int, draws: Iterator[float]) -> list[str]:
        name = self._names[place]
        peers, taken = self._peers[self._wordnet.synsets[name].part], self._wordnet.words_above(name)
        wrong: list[str] = []
        for _ in range(MOST_DRAWS):
            if len(wrong) == self._choices - 1:
                return wrong
            word = _any(self._answers[_any(peers, draws)], draws)
            if word not in taken and word not in wrong:
                wrong.append(word)
        raise ValueError(f"{name}: {MOST_DRAWS} draws found {len(wrong)} wrong choices, {self._choices - 1} are needed")


def _any(values: Sequence[_T], draws: Iterator[float]) -> _T:
    """One of them, by the next number from 0 to 1; the only one without."""
    return values[int(next(draws) * len(values))] if len(values) > 1 else values[0]
