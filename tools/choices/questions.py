"""Questions of several choices, one of which is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.choices.wordnet import Wordnet


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
    """

    def __init__(self, wordnet: Wordnet, split: str, choices: int) -> None:
        self._wordnet = wordnet
        self._choices = choices
        self._names = [name for name, synset in wordnet.synsets.items() if synset.split == split and synset.hypernyms]
        self._by_part: dict[str, list[str]] = {}
        for name in self._names:
            self._by_part.setdefault(wordnet.synsets[name].part, []).append(name)

    def __len__(self) -> int:
        return len(self._names)

    def ask(self, chosen: NDArray[np.int64], rng: np.random.Generator) -> Questions:
        """One question about each of the chosen synsets, by their places."""
        texts, choices, answers = [], [], []
        for place in chosen:
            name = self._names[place]
            right = self._answer(name, rng)
            offered = [right, *self._wrong(name, rng)]
            order = rng.permutation(len(offered))
            texts.append(self._wordnet.synsets[name].definition)
            choices.append([offered[one] for one in order])
            answers.append(int(np.flatnonzero(order == 0)[0]))
        return Questions(texts, choices, np.array(answers))

    def batches(self, questions: int, rng: np.random.Generator) -> Iterator[Questions]:
        """Endless batches; every synset comes once before any comes again."""
        order = np.zeros(0, dtype=np.int64)
        while True:
            while len(order) < questions:
                order = np.concatenate([order, rng.permutation(len(self))])
            yield self.ask(order[:questions], rng)
            order = order[questions:]

    def _answer(self, name: str, rng: np.random.Generator) -> str:
        hypernyms = self._wordnet.synsets[name].hypernyms
        return self._wordnet.synsets[hypernyms[rng.integers(len(hypernyms))]].lemmas[0]

    def _wrong(self, name: str, rng: np.random.Generator) -> list[str]:
        others = self._by_part[self._wordnet.synsets[name].part]
        taken = self._wordnet.words(self._wordnet.ancestors(name))
        wrong: list[str] = []
        while len(wrong) < self._choices - 1:
            word = self._answer(others[rng.integers(len(others))], rng)
            if word not in taken:
                taken.add(word)
                wrong.append(word)
        return wrong
