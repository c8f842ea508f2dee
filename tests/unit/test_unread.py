"""What nothing in a run would read is refused by its name: it said something that would be lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.runs import digest, make_trainer
from uform import Contrastive, Modality, Objective

TEXTS: Any = ([Modality.TEXT] * 2, ["a", "b"])
EDGES: Any = ([0, 1, 2], [1, 0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"relations": uform.Relations(attract=EDGES)}, r"relations\.attract has 2 ids: expected none.*MASKED"),
        ({"relations": uform.Relations(repel=EDGES)}, r"relations\.repel has 2 ids"),
        ({"relations": uform.Relations(ignore=EDGES)}, r"relations\.ignore has 2 ids"),
        ({"temperature_groups": [0, 3]}, r"temperature_groups\[1\] is 3: expected 0.*MASKED"),
        ({"temperature_groups": np.array([0, 3], np.uint32)}, r"temperature_groups\[1\] is 3"),
    ],
)
def test_a_masked_run_refuses_relations_and_groups(given: dict[str, Any], message: str) -> None:
    trainer = make_trainer(objective=Objective.MASKED)
    before = digest(trainer)
    with pytest.raises(ValueError, match=message):
        trainer.step(*TEXTS, **given)
    assert digest(trainer) == before


def test_what_says_nothing_is_taken() -> None:
    empty = uform.Relations(attract=([0, 0, 0], []))
    make_trainer().step(*TEXTS, relations=empty, temperature_groups=[0, 0])


@pytest.mark.parametrize("objective", [Objective.CONTRASTIVE, Objective.JOINT])
def test_other_runs_read_them(objective: Objective) -> None:
    trainer = make_trainer(objective=objective, contrastive=Contrastive(temperature_groups=2))
    trainer.step(*TEXTS, relations=uform.Relations(attract=EDGES), temperature_groups=[0, 1])
