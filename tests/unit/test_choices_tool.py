"""The WordNet run's own functions, and a short run through the same lines as the long one."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tools.choices.__main__ import main
from tools.choices.calibration import Bin, calibrate
from tools.choices.questions import Questioner
from tools.choices.wordnet import Wordnet, from_rows, read_wordnet

KINDS = ["animal", "plant", "tool", "food", "place", "feeling"]
VERBS = ["move", "act", "be"]


def rows() -> list[dict[str, Any]]:
    """Six kinds of entity, each with eight members; verbs apart; a name that no row has."""
    made = [{"synset": "top", "lemmas": ["entity"], "definition": "all there is", "hypernyms": [], "part": "noun"}]
    for kind in KINDS:
        made.append(
            {
                "synset": kind,
                "lemmas": [kind, f"any {kind}"],
                "definition": f"{kind} in general",
                "hypernyms": ["top", "absent"],
                "part": "noun",
            }
        )
        for place in range(8):
            member = {"synset": f"{kind}{place}", "lemmas": [f"{kind} {place}"], "hypernyms": [kind], "part": "noun"}
            made.append(member | {"definition": f"number {place} that is of {kind}"})
    for verb in VERBS:
        made.append({"synset": verb, "lemmas": [verb], "definition": f"to {verb}", "hypernyms": [], "part": "verb"})
        for manner in ("slowly", "well", "again", "at once"):
            member = {"synset": f"{verb} {manner}", "lemmas": [f"{verb} {manner}"], "hypernyms": [verb], "part": "verb"}
            made.append(member | {"definition": f"to {verb}, and that {manner}"})
    return [row | {"split": "valid" if place % 4 == 0 else "train", "examples": []} for place, row in enumerate(made)]


@pytest.fixture(scope="module")
def wordnet() -> Wordnet:
    return from_rows(rows())


def test_ancestors(wordnet: Wordnet) -> None:
    assert wordnet.ancestors("tool3") == {"tool3", "tool", "top"}
    assert wordnet.words_above("tool3") == {"tool 3", "tool", "any tool", "entity"}
    assert wordnet.synsets["tool"].hypernyms == ("top",)


def test_questions(wordnet: Wordnet) -> None:
    asker, rng = Questioner(wordnet, "train", 3), np.random.default_rng(0)
    names = [name for name, one in wordnet.synsets.items() if one.split == "train" and one.hypernyms]
    assert len(asker) == len(names)
    places = set()
    for _ in range(20):
        asked = asker.ask(np.arange(len(asker)), rng)
        for name, text, choices, answer in zip(names, asked.texts, asked.choices, asked.answers, strict=True):
            synset = wordnet.synsets[name]
            assert text == synset.definition
            assert len(set(choices)) == 3
            above = wordnet.words_above(name)
            assert [choice in above for choice in choices] == [place == answer for place in range(3)]
            assert choices[answer] == wordnet.synsets[synset.hypernyms[0]].lemmas[0]
            assert all((choice in VERBS) == (synset.part == "verb") for choice in choices)
            places.add(int(answer))
    assert places == {0, 1, 2}
    np.testing.assert_array_equal(np.array(asked.targets).argmax(axis=1), asked.answers)


def test_too_few_answers_for_so_many_choices(wordnet: Wordnet) -> None:
    asker = Questioner(wordnet, "train", 5)
    with pytest.raises(ValueError, match="wrong choices, 4 are needed"):
        asker.ask(np.arange(len(asker)), np.random.default_rng(0))


def test_every_synset_comes_once_before_any_comes_again(wordnet: Wordnet) -> None:
    asker = Questioner(wordnet, "train", 3)
    texts = [text for one in islice(asker.batches(7, np.random.default_rng(1)), 20) for text in one.texts]
    assert len(set(texts[: len(asker)])) == len(asker)
    assert sorted(texts[: len(asker)]) == sorted(texts[len(asker) : 2 * len(asker)])


def test_calibration_of_known_answers() -> None:
    sure = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], np.float32)
    found = calibrate(sure, np.array([0, 0, 1, 0]))
    assert found.accuracy == 0.5
    assert found.error == 0.5
    assert found.bins == [Bin(4, 1.0, 0.5)]
    assert found.cross_entropy == pytest.approx(2 * np.log(1e12) / 4)
    # 0.6 of confidence that is right in 3 of 5, and 0.9 that always is
    answers = np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 0])
    mixed = np.repeat(np.array([[0.6, 0.4], [0.9, 0.1]], np.float32), 5, axis=0)
    found = calibrate(mixed, answers)
    assert found.accuracy == pytest.approx(0.8)
    assert found.error == pytest.approx(0.05, abs=1e-6)
    assert [one.count for one in found.bins] == [5, 5]


def test_a_calibrated_forecast_has_no_error() -> None:
    rng = np.random.default_rng(2)
    probabilities = rng.dirichlet(np.ones(4), 20000).astype(np.float32)
    answers = np.array([rng.choice(4, p=row / row.sum()) for row in probabilities.astype(np.float64)])
    assert calibrate(probabilities, answers).error < 0.015
    assert calibrate(probabilities**3 / (probabilities**3).sum(axis=1, keepdims=True), answers).error > 0.15


def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(rows()), tmp_path / "wordnet.parquet")
    assert len(read_wordnet(tmp_path / "wordnet.parquet").synsets) == len(rows())
    options = {
        "data": tmp_path / "wordnet.parquet",
        "output": tmp_path / "found.json",
        "depth": 1,
        "hidden": 64,
        "choices": 3,
        "questions": 24,
        "steps": 20,
        "learning-rate": 3e-3,
        "plot": tmp_path / "found.png",
    }
    pytest.importorskip("matplotlib")
    assert main(["--ram", *(f"--{name}={value}" for name, value in options.items())]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["judged"]["before"]["cross_entropy"] == pytest.approx(np.log(3), abs=0.1)
    assert found["judged"]["after"]["cross_entropy"] != found["judged"]["before"]["cross_entropy"]
    held_out = sum(row["split"] == "valid" and bool(row["hypernyms"]) for row in rows())
    assert sum(one["count"] for one in found["judged"]["after"]["bins"]) == held_out
    assert (tmp_path / "found.png").stat().st_size > 1000
    told = capsys.readouterr().out
    assert "expected calibration error" in told
    assert "dropped 0" in told
