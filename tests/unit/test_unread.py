"""What nothing in a run would read is refused by its name: it said something that would be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.runs import digest, make_trainer, ram, resume, shape
from uform import (
    AmbientScope,
    Contrastive,
    LateInteraction,
    LateInteractionSide,
    Masking,
    Modality,
    Negatives,
    Objective,
    PairLossForm,
)

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


def test_late_interaction_reads_relations_and_sides_but_no_groups() -> None:
    trainer = make_trainer(late_interaction=LateInteraction(width=8))
    edges = uform.Relations(attract=EDGES)
    with pytest.raises(ValueError, match=r"temperature_groups\[1\] is 3: expected 0"):
        trainer.step(*TEXTS, relations=edges, temperature_groups=[0, 3])
    trainer.step(*TEXTS, relations=edges, sides=[LateInteractionSide.QUERY, LateInteractionSide.DOCUMENT])


def test_what_says_nothing_is_taken() -> None:
    empty = uform.Relations(attract=([0, 0, 0], []))
    make_trainer().step(*TEXTS, relations=empty, temperature_groups=[0, 0])


@pytest.mark.parametrize("objective", [Objective.CONTRASTIVE, Objective.JOINT])
def test_other_runs_read_them(objective: Objective) -> None:
    trainer = make_trainer(objective=objective, contrastive=Contrastive(temperature_groups=2))
    trainer.step(*TEXTS, relations=uform.Relations(attract=EDGES), temperature_groups=[0, 1])


# ---------------------------------------------------------------------------------------------------- configuration

# One value of every field that is not its zero.
MASKING = dict.fromkeys(Masking()._fields, 0.5) | {"token_mean_span": 3.0}
CONTRASTIVE: dict[str, Any] = {
    "matryoshka_dimensions": [8],
    "temperature_groups": 2,
    "inverse_temperature": 5.0,
    "bias": -1.0,
    "negatives": Negatives.NAMED,
    "ambient_repulsion_weight": 0.5,
    "max_edges_per_device": 9,
    "pair_loss": PairLossForm.RANKED,
    "ambient_scope": AmbientScope.TARGETS,
}
OF_LATE_INTERACTION = ("negatives", "ambient_repulsion_weight", "max_edges_per_device", "ambient_scope")
IMAGES = shape(images=True)


def refuse(field: str, why: str, **fields: Any) -> None:
    """Neither a run nor the plan of one is made, and the message names the field, its value and why."""
    for make in (uform.Trainer.init_ram, uform.Trainer.plan_ram):
        with pytest.raises(ValueError, match=rf"{field} is .+: nothing reads it, since .*{why}"):
            make(ram(), **{"depth": 1, "hidden": 64, "batch": shape(), **fields})


def test_every_field_has_a_value_here() -> None:
    assert set(MASKING) == set(Masking()._fields)
    assert set(CONTRASTIVE) == set(Contrastive()._fields)


@pytest.mark.parametrize("field", MASKING)
def test_a_contrastive_run_refuses_masking(field: str) -> None:
    masking = Masking(**{field: MASKING[field]})
    refuse(f"Masking.{field}", "objective is CONTRASTIVE", objective=Objective.CONTRASTIVE, masking=masking)
    if not field.startswith(("video_", "audio_")):
        for objective in (Objective.MASKED, Objective.JOINT):
            described = make_trainer(objective=objective, masking=masking, batch=IMAGES).describe()
            assert described["masking"][field] == MASKING[field]


@pytest.mark.parametrize("field", CONTRASTIVE)
def test_a_masked_run_refuses_contrastive(field: str) -> None:
    contrastive = Contrastive(**{field: CONTRASTIVE[field]})
    refuse(f"Contrastive.{field}", "objective is MASKED", contrastive=contrastive)
    late: dict[str, Any] = {"late_interaction": LateInteraction(width=8), "contrastive": contrastive}
    if field in OF_LATE_INTERACTION:
        make_trainer(**late)
    else:
        refuse(f"Contrastive.{field}", "MASKED, of which late interaction reads other fields", **late)
    for objective in (Objective.CONTRASTIVE, Objective.JOINT):
        described = make_trainer(objective=objective, contrastive=contrastive).describe()
        assert described["contrastive"][field] == CONTRASTIVE[field]


@pytest.mark.parametrize("modality", ["image", "video", "audio"])
@pytest.mark.parametrize("field", ["mask_ratio", "weight"])
def test_masking_of_a_modality_that_the_run_leaves_out(modality: str, field: str) -> None:
    masking = Masking(**{f"{modality}_{field}": 0.5})
    for objective in (Objective.MASKED, Objective.JOINT):
        refuse(f"Masking.{modality}_{field}", f"leaves {modality} out", objective=objective, masking=masking)


@pytest.mark.parametrize(
    ("given", "field", "enabling"),
    [
        ({"image": uform.ImageShape(channels=1)}, r"image\.channels", "patch_side"),
        ({"image": (0, 3)}, r"image\.channels", "patch_side"),
        ({"video": uform.VideoShape(tube_frames=2)}, r"video\.tube_frames", "patch_side"),
        ({"video": uform.VideoShape(frame_stride=2)}, r"video\.frame_stride", "patch_side"),
        ({"video": uform.VideoShape(channels=3)}, r"video\.channels", "patch_side"),
        ({"audio": uform.AudioShape(sample_rate=8000)}, r"audio\.sample_rate", "chunk_samples"),
    ],
)
def test_shapes_of_modalities_that_are_left_out(given: dict[str, Any], field: str, enabling: str) -> None:
    refuse(rf"BatchShape\.{field}", rf"its {enabling} is 0", batch=uform.BatchShape(max_rows_per_device=2, **given))


@pytest.mark.parametrize("form", [PairLossForm.BALANCED, PairLossForm.RANKED])
def test_a_bias_without_sigmoid(form: PairLossForm) -> None:
    for bias in (-3.0, 2.0, 1e-30):
        contrastive = Contrastive(bias=bias, pair_loss=form)
        refuse(r"Contrastive\.bias", f"pair_loss is {form.name}", objective=1, contrastive=contrastive)
        late = LateInteraction(bias=bias, pair_loss=form)
        refuse(r"LateInteraction\.bias", f"pair_loss is {form.name}", late_interaction=late)
    for form in (PairLossForm.DERIVED, PairLossForm.SIGMOID):
        make_trainer(objective=Objective.CONTRASTIVE, contrastive=Contrastive(bias=-3.0, pair_loss=form))


def test_ambient_fields_without_ambient_negatives(tmp_path: Path) -> None:
    for late in (None, LateInteraction(width=8)):
        for field in ("ambient_repulsion_weight", "ambient_scope"):
            named = Contrastive(negatives=Negatives.NAMED, **{field: CONTRASTIVE[field]})
            run: dict[str, Any] = {"objective": 0 if late else 1, "late_interaction": late}
            refuse(f"Contrastive.{field}", "negatives is NAMED", contrastive=named, **run)
            made = make_trainer(contrastive=Contrastive(negatives=Negatives.NAMED), **run)
            made.save(tmp_path / "named")
            given = Contrastive(**{field: CONTRASTIVE[field]})
            with pytest.raises(ValueError, match=rf"Contrastive\.{field} is .*since negatives is NAMED"):
                resume(tmp_path / "named", contrastive=given)


def test_a_run_that_goes_on_may_leave_ambient_negatives_behind(tmp_path: Path) -> None:
    """What the file says of them says nothing then; only what this call gives would be lost."""
    made = make_trainer(objective=1, contrastive=Contrastive(ambient_scope=AmbientScope.TARGETS))
    made.save(tmp_path / "ambient")
    named = resume(tmp_path / "ambient", contrastive=Contrastive(negatives=Negatives.NAMED))
    assert named.describe()["contrastive"]["negatives"] == Negatives.NAMED


@pytest.mark.parametrize("objective", [Objective.MASKED, Objective.CONTRASTIVE])
def test_a_run_that_goes_on_refuses_them_as_well(objective: Objective, tmp_path: Path) -> None:
    trainer = make_trainer(objective=objective)
    trainer.save(tmp_path / "run")
    before = digest(trainer)
    unread: dict[str, Any] = (
        {"contrastive": Contrastive(temperature_groups=2)}
        if objective is Objective.MASKED
        else {"masking": Masking(text_weight=2.0)}
    )
    with pytest.raises(ValueError, match=rf"nothing reads it, since the run's objective is {objective.name}"):
        resume(tmp_path / "run", **unread)
    with pytest.raises(ValueError, match=r"BatchShape\.image\.channels: the checkpoint has 0, 3 was asked"):
        resume(tmp_path / "run", batch=uform.BatchShape(image=(0, 3)))
    assert digest(resume(tmp_path / "run", masking=Masking(), contrastive=Contrastive())) == before


@pytest.mark.parametrize("objective", list(Objective))
def test_configurations_of_zeros_say_nothing(objective: Objective) -> None:
    """The core cannot tell them from none."""
    make_trainer(
        objective=objective,
        masking=Masking(),
        contrastive=Contrastive(),
        batch=uform.BatchShape(max_rows_per_device=2, image=(), video=(0, 0), audio=uform.AudioShape()),
    )
