"""Configuration: what fits is kept, what does not is refused by its field's name."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import uform

STRUCTURES: list[Any] = [
    uform.ImageShape,
    uform.VideoShape,
    uform.AudioShape,
    uform.BatchShape,
    uform.Masking,
    uform.Contrastive,
    uform.LateInteraction,
    uform.Choices,
    uform.Schedule,
    uform.Optimizer,
    uform.MeshOptions,
]
ENUMERATIONS = [
    uform.Modality,
    uform.Objective,
    uform.Negatives,
    uform.AmbientScope,
    uform.PairLossForm,
    uform.LateInteractionSide,
    uform.Scalar,
    uform.GPUClass,
    uform.MultimemTier,
]
FIELDS = [(made, name, type(getattr(made(), name))) for made in STRUCTURES for name in made._fields]
INTEGERS = [(made, name) for made, name, kind in FIELDS if kind is int]
FLOATS = [(made, name) for made, name, kind in FIELDS if kind is float]

FULL: list[Any] = [
    uform.ImageShape(patch_side=16, channels=1),
    uform.BatchShape(max_rows_per_device=2, image=(16, 3), video=(8,), audio=uform.AudioShape(chunk_samples=160)),
    uform.Masking(token_mask_probability=0.25, audio_weight=-1),
    uform.Contrastive(
        matryoshka_dimensions=[64, 128],
        bias=-10.0,
        pair_loss=uform.PairLossForm.SIGMOID,
        ambient_scope=uform.AmbientScope.TARGETS,
    ),
    uform.Schedule(learning_rate=1e-3, steps=10**12),
    uform.Optimizer(beta1=-1.0),
    uform.MeshOptions(host_domain_index=1, host_domain_count=2, directory=b"exchange", job="run-17"),
]


@pytest.mark.parametrize("made", STRUCTURES)
def test_no_field_shows_in_zeros(made: Any) -> None:
    assert repr(made()) == f"{made.__name__}()"
    assert made() == made()
    assert hash(made()) == hash(made())


def test_repr_shows_the_fields_that_are_not_zero() -> None:
    batch = uform.BatchShape(max_rows_per_device=8, image=(16,))
    assert repr(batch) == "BatchShape(max_rows_per_device=8, image=ImageShape(patch_side=16))"
    assert eval(repr(batch), vars(uform)) == batch


@pytest.mark.parametrize("value", FULL, ids=lambda value: type(value).__name__)
def test_pickles_and_copies_are_equal(value: Any) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    for twin in (copy.copy(value), copy.deepcopy(value)):
        assert twin == value
        assert hash(twin) == hash(value)
        assert repr(twin) == repr(value)


@pytest.mark.parametrize("enumeration", ENUMERATIONS)
def test_enumerations_pickle_by_the_package_s_name(enumeration: Any) -> None:
    assert enumeration.__module__ == "uform"
    for member in enumeration:
        assert pickle.loads(pickle.dumps(member)) is member


def test_different_fields_and_classes_are_unequal() -> None:
    assert uform.ImageShape(patch_side=16) != uform.ImageShape(patch_side=8)
    assert uform.Choices(weight=1.0) != uform.LateInteraction(weight=1.0)
    assert uform.ImageShape() != "ImageShape()"


def test_nested_shapes_are_taken_as_tuples() -> None:
    batch = uform.BatchShape(image=(16, 3), video=(8, 2, 4, 1), audio=())
    assert batch.image == uform.ImageShape(patch_side=16, channels=3)
    assert batch.video == uform.VideoShape(patch_side=8, tube_frames=2, frame_stride=4, channels=1)
    assert batch.audio == uform.AudioShape()
    assert uform.BatchShape().image is None


def test_nested_shapes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"BatchShape\.image has 3 fields: ImageShape has 2: patch_side, channels"):
        uform.BatchShape(image=(1, 2, 3))
    with pytest.raises(TypeError, match=r"BatchShape\.image is \[16\]: expected ImageShape or a tuple, not list"):
        uform.BatchShape(image=[16])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"BatchShape\.audio is ImageShape\(\)"):
        uform.BatchShape(audio=uform.ImageShape())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"ImageShape\.channels is 'x'"):
        uform.BatchShape(image=(1, "x"))  # type: ignore[arg-type]


@pytest.mark.parametrize("made", STRUCTURES)
def test_unknown_fields_and_positions_are_refused(made: Any) -> None:
    with pytest.raises(TypeError, match=f"{made.__name__} has no field 'patchside'"):
        made(patchside=1)
    with pytest.raises(TypeError, match="positional"):
        made(1)


@pytest.mark.parametrize(("made", "name"), INTEGERS)
@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, [1], 1j])
def test_integers_of_the_wrong_type_are_refused(made: Any, name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"{made.__name__}\.{name} is .*: expected an int, not {type(value).__name__}"):
        made(**{name: value})


@pytest.mark.parametrize(("made", "name"), INTEGERS)
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_integers_out_of_range_are_refused(made: Any, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{made.__name__}\.{name} is {value}: expected an int between"):
        made(**{name: value})


def test_the_width_of_integers_is_the_c_field_s() -> None:
    assert uform.Schedule(steps=2**40).steps == 2**40
    assert uform.BatchShape(max_rows_per_device=2**31 - 1).max_rows_per_device == 2**31 - 1
    with pytest.raises(ValueError, match=r"BatchShape\.max_rows_per_device is 2147483648"):
        uform.BatchShape(max_rows_per_device=2**31)


@pytest.mark.parametrize(("made", "name"), FLOATS)
@pytest.mark.parametrize("value", [True, np.True_, "1", None, 1j, [1.0]])
def test_floats_of_the_wrong_type_are_refused(made: Any, name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"{made.__name__}\.{name} is .*: expected a float, not"):
        made(**{name: value})


@pytest.mark.parametrize(("made", "name"), FLOATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400])
def test_floats_that_are_not_finite_are_refused(made: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{made.__name__}\.{name} is .*: expected a finite float"):
        made(**{name: value})


def test_numpy_s_numbers_are_numbers() -> None:
    schedule = uform.Schedule(learning_rate=np.float32(0.5), steps=np.int16(7))  # type: ignore[arg-type]
    assert schedule == uform.Schedule(learning_rate=0.5, steps=7)
    assert type(schedule.steps) is int
    assert uform.Schedule(learning_rate=1).learning_rate == 1.0


def test_enumerations_are_taken_as_members_or_their_values() -> None:
    assert uform.Contrastive(pair_loss=2).pair_loss is uform.PairLossForm.RANKED  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Contrastive\.pair_loss is 4: expected one of DERIVED=0, BALANCED=1"):
        uform.Contrastive(pair_loss=4)  # type: ignore[arg-type]
    for wrong in (uform.Objective.JOINT, "RANKED", True, 1.0):
        with pytest.raises(TypeError, match=r"Contrastive\.pair_loss is .*: expected a PairLossForm"):
            uform.Contrastive(pair_loss=wrong)  # type: ignore[arg-type]


def test_matryoshka_dimensions_are_a_tuple() -> None:
    assert uform.Contrastive(matryoshka_dimensions=np.array([64, 32])).matryoshka_dimensions == (64, 32)  # type: ignore[arg-type]
    assert uform.Contrastive().matryoshka_dimensions is None
    with pytest.raises(TypeError, match=r"Contrastive\.matryoshka_dimensions\[1\] is 2\.5"):
        uform.Contrastive(matryoshka_dimensions=[1, 2.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"Contrastive\.matryoshka_dimensions has 17 entries: at most 16"):
        uform.Contrastive(matryoshka_dimensions=range(1, 18))
    for wrong in (64, "64"):
        with pytest.raises(TypeError, match=r"Contrastive\.matryoshka_dimensions is .*: expected a sequence of int"):
            uform.Contrastive(matryoshka_dimensions=wrong)  # type: ignore[arg-type]


def test_calling_init_again_changes_nothing() -> None:
    shape: Any = uform.ImageShape(patch_side=16)
    shape.__init__(patch_side=8)
    assert shape.patch_side == 16


def test_mesh_options_are_checked_together() -> None:
    with pytest.raises(ValueError, match=r"MeshOptions\.host_domain_index is 2: expected 0 to 1"):
        uform.MeshOptions(host_domain_index=2, host_domain_count=2)
    with pytest.raises(ValueError, match=r"MeshOptions\.timeout_seconds is -1\.0"):
        uform.MeshOptions(timeout_seconds=-1)
    with pytest.raises(TypeError, match=r"MeshOptions\.job is b'run'"):
        uform.MeshOptions(job=b"run")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"MeshOptions\.directory is 3"):
        uform.MeshOptions(directory=3)  # type: ignore[arg-type]


def test_statistics_compare_and_pickle() -> None:
    stats = uform.TrainerStepStats()
    stats.loss, stats.step, stats.extra = 1.5, 3, {"plugin": 2.0}
    assert repr(stats) == "TrainerStepStats(step=3, loss=1.5, extra={'plugin': 2.0})"
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert copy.deepcopy(stats) == stats != uform.TrainerStepStats()
    with pytest.raises(TypeError, match=r"TrainerStepStats\.loss is 'x'"):
        stats.loss = "x"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="unhashable"):
        hash(stats)
