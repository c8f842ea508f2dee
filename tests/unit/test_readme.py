"""The README's example is short, runs as it stands and does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def example() -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    return str(code)


def test_the_example_is_about_ten_lines() -> None:
    assert len([line for line in example().splitlines() if line]) <= 11


def test_the_example_pairs_pictures_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(compile(example(), str(README), "exec"), made)
    scores = made["vectors"][:4] @ made["vectors"][4:].T
    assert np.array_equal(scores.argmax(axis=1), np.arange(4))
    assert np.array_equal(scores.argmax(axis=0), np.arange(4))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
