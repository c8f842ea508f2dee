"""The demo's pure functions, and a run of a few steps through the same lines as the long one."""

from __future__ import annotations

import struct
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from tools import demo


def test_twelve_languages_name_ten_digits_each() -> None:
    assert len(demo.NAMES) >= 10
    assert {len(names.split()) for names in demo.NAMES.values()} == {10}
    assert len(demo.TEXTS) == len(demo.TEXT_DIGITS) == 10 * len(demo.NAMES)
    assert all(unicodedata.is_normalized("NFC", text) for text in demo.TEXTS)


def test_the_demo_is_read_at_a_sitting() -> None:
    assert len(Path(demo.__file__).read_text().splitlines()) <= 150


def test_no_name_stands_for_two_digits() -> None:
    digits: dict[str, set[int]] = {}
    for text, digit in zip(demo.TEXTS, demo.TEXT_DIGITS, strict=True):
        digits.setdefault(text, set()).add(int(digit))
    assert all(len(named) == 1 for named in digits.values())


def test_relations_join_what_shows_one_digit_both_ways() -> None:
    attract = demo.relate(np.array([7, 1, 7, 7, 4])).attract
    assert attract is not None
    offsets, ids = np.asarray(attract.offsets), np.asarray(attract.ids)
    assert offsets.tolist() == [0, 2, 2, 4, 6, 6]
    assert ids.tolist() == [2, 3, 0, 3, 0, 2]


def test_evaluation_counts_what_is_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    axes = np.eye(10, dtype=np.float32)
    digits = np.array([0, 1, 2, 3])
    assert demo.evaluate(axes[digits], axes[demo.TEXT_DIGITS], digits) == 1
    assert demo.evaluate(axes[[0, 1, 2, 4]], axes[demo.TEXT_DIGITS], digits) == 0.75
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("100.0%")
    assert lines[3].endswith("75.0%")


def test_a_short_run_writes_checkpoint_and_picture_but_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "folder"
    assert demo.main(["--steps", "2", "--seed", "3", "--output", str(output)]) == "accuracy below the 95% required"
    (header,) = struct.unpack("<Q", (output / "digits.safetensors").read_bytes()[:8])
    assert header > 0
    assert (output / "digits.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "for step 3: loss" in printed
    assert "zero-shot accuracy on 450 held-out digits" in printed
