"""Save and resume in fresh processes: N steps, a save, a resume and N more equal 2N steps bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.helpers.calls import Call
from tests.helpers.checkpoints import CheckpointFile, put, take_out, value_at
from tests.helpers.processes import run_python
from tests.helpers.runs import digest, make_trainer, picture, ram, read_all, resume, shape, spread
from uform import Contrastive, Masking, Objective, Optimizer, PairLossForm, Schedule

TRAIN = """
    import json, sys
    import numpy as np
    import uform
    from tests.helpers.calls import Call
    from tests.helpers.runs import digest, make_trainer, picture, resume, shape

    devices, threads, objective, first, last = map(int, sys.argv[1:6])
    source, target = sys.argv[6:8]
    if source == "-":
        trainer = make_trainer(
            devices=devices,
            threads=threads,
            objective=uform.Objective(objective),
            batch=shape(images=True),
            schedule=uform.Schedule(learning_rate=1e-2, warmup_steps=2, steps=20),
            seed=2**63 + 5,
        )
    else:
        trainer = uform.Trainer.init_ram(uform.Executor.for_ram(devices=devices, threads=threads), resume=source)
    losses = []
    for step in range(first, last + 1):
        contents = [f"step {step}", "words", picture(8, 8, seed=step), picture(6, 9, seed=step), ""]
        call = Call(contents, attract=((0, 2, 1.0), (2, 0, 1.0), (1, 3, 1.0)), bags=[1, 2, 3, 4, 1])
        losses.append(call.step(trainer).stats.loss.hex())
    trainer.save(target)
    print(json.dumps([digest(trainer), losses]))
"""


@pytest.mark.parametrize(("devices", "objective"), [(1, Objective.JOINT), (2, Objective.JOINT), (1, Objective.MASKED)])
def test_resumed_processes_equal_a_straight_run(tmp_path: Path, devices: int, objective: Objective) -> None:
    def train(first: int, last: int, source: str, target: str, threads: int = 1) -> tuple[str, list[str]]:
        places = [str(tmp_path / place) if place != "-" else place for place in (source, target)]
        found, losses = run_python(TRAIN, devices, threads, int(objective), first, last, *places)
        return found, losses

    straight, losses = train(1, 6, "-", "straight")
    _, first = train(1, 3, "-", "half")
    resumed, second = train(4, 6, "half", "resumed", threads=2)
    assert first + second == losses
    assert resumed == straight
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "straight").read_bytes()


def test_zeros_take_the_values_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    trainer = make_trainer(
        objective=Objective.JOINT,
        batch=shape(rows=3, columns=48, images=True, segments=7, bags=5),
        masking=Masking(token_mask_probability=0.4, image_weight=-1.0),
        contrastive=Contrastive(matryoshka_dimensions=[8, 64], pair_loss=PairLossForm.SIGMOID, bias=1e-30),
        schedule=Schedule(learning_rate=0.25, min_learning_rate=-1.0, warmup_steps=-1, steps=77),
        optimizer=Optimizer(weight_decay=-1.0, beta1=0.7),
        seed=99,
    )
    trainer.save(path)
    saved, found = trainer.describe(), resume(path).describe()
    assert found == saved
    assert found["masking"]["image_weight"] == 0
    assert found["contrastive"]["bias"] == 0
    assert found["schedule"]["warmup_steps"] == 0
    assert found["optimizer"]["weight_decay"] == 0
    changed = resume(path, seed=5, schedule=Schedule(learning_rate=0.5), masking=Masking(text_weight=3.0)).describe()
    assert changed["seed"] == 5
    assert changed["schedule"] == {**saved["schedule"], "learning_rate": 0.5}
    assert changed["masking"] == {**saved["masking"], "text_weight": 3.0}


def schedule_of(trainer: uform.Trainer) -> dict[str, Any]:
    found: dict[str, Any] = trainer.describe()["schedule"]
    return found


def test_derived_values_follow_what_is_given_anew(tmp_path: Path) -> None:
    """As if given from the start: a twentieth of the new steps warms up, a tenth of the rate is the floor."""
    path = tmp_path / "checkpoint"
    make_trainer(schedule=Schedule(learning_rate=1e-2)).save(path)
    longer = resume(path, schedule=Schedule(steps=2000))
    assert schedule_of(longer) == schedule_of(make_trainer(schedule=Schedule(learning_rate=1e-2, steps=2000)))
    assert schedule_of(longer)["warmup_steps"] == 100
    slower = resume(path, schedule=Schedule(learning_rate=1e-4))
    assert schedule_of(slower) == schedule_of(make_trainer(schedule=Schedule(learning_rate=1e-4)))
    assert schedule_of(slower)["min_learning_rate"] == pytest.approx(1e-5)
    longer.save(path)  # what was derived is known as derived in the next checkpoint, too
    assert schedule_of(resume(path)) == schedule_of(longer)
    assert schedule_of(resume(path, schedule=Schedule(steps=4000)))["warmup_steps"] == 200


def test_given_values_stay_given(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    make_trainer(schedule=Schedule(steps=1000, warmup_steps=400, min_learning_rate=-1)).save(path)
    resume(path).save(path)
    changed = schedule_of(resume(path, schedule=Schedule(steps=2000, learning_rate=1e-2)))
    assert changed == {"learning_rate": 1e-2, "min_learning_rate": 0, "warmup_steps": 400, "steps": 2000}
    with pytest.raises(ValueError, match=r"checkpoint': Schedule\.warmup_steps: 400 is above steps, 20 .*checkpoint's"):
        resume(path, schedule=Schedule(steps=20))


def test_a_given_value_equal_to_the_derived_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    trainer = make_trainer()
    trainer.save(path)
    described = trainer.describe()
    same = resume(path, schedule=Schedule(**described["schedule"]), optimizer=Optimizer(**described["optimizer"]))
    assert same.describe() == described
    same.save(path)
    assert schedule_of(resume(path, schedule=Schedule(steps=200_000)))["warmup_steps"] == 5000  # now it is given


def test_plugins_follow_the_batch(tmp_path: Path) -> None:
    """Values that derive from another structure follow it as well: edges from segments, segments from rows."""
    path = tmp_path / "checkpoint"
    make_trainer(objective=Objective.CONTRASTIVE, batch=shape(rows=8, segments=0)).save(path)
    whole = resume(path).describe()
    assert whole["batch"]["max_segments_per_device"] == whole["batch"]["max_bags_per_device"] == 32
    assert whole["contrastive"]["max_edges_per_device"] == 128
    fewer = resume(path, batch=uform.BatchShape(max_rows_per_device=2)).describe()
    sizes = {"max_rows_per_device": 2, "max_segments_per_device": 8, "max_bags_per_device": 8}
    assert fewer["batch"] == {**whole["batch"], **sizes}
    assert fewer["contrastive"] == {**whole["contrastive"], "max_edges_per_device": 32}


def test_another_versions_defaults_do_not_change_a_run(tmp_path: Path) -> None:
    """A derived value is the file's until what it derives from is given anew."""
    path = tmp_path / "checkpoint"
    make_trainer(schedule=Schedule(steps=200)).save(path)
    file = CheckpointFile.read(path)
    place = ("schedule", "warmup_steps")
    assert value_at(file.configuration, place) == 10
    file.with_configuration(put(file.configuration, place, 7)).write(path)
    assert schedule_of(resume(path))["warmup_steps"] == 7
    assert schedule_of(resume(path, schedule=Schedule(learning_rate=1e-2)))["warmup_steps"] == 7
    assert schedule_of(resume(path, schedule=Schedule(steps=400)))["warmup_steps"] == 20


def test_checkpoints_that_do_not_tell_what_was_given(tmp_path: Path) -> None:
    """Every value of theirs counts as given."""
    path = tmp_path / "checkpoint"
    trainer = make_trainer(objective=Objective.JOINT, batch=shape(images=True))
    trainer.save(path)
    file = CheckpointFile.read(path)
    file.with_configuration(take_out(file.configuration, ("given",))).write(path)
    assert resume(path).describe() == trainer.describe()
    assert schedule_of(resume(path, schedule=Schedule(steps=7000)))["warmup_steps"] == 5000
    with pytest.raises(ValueError, match=r"Schedule\.min_learning_rate: 3e-05 is above learning_rate, 1e-05"):
        resume(path, schedule=Schedule(learning_rate=1e-5))
    assert uform.Model.init_ram(ram(), path).describe()["step"] == 0


def test_the_loss_may_change(tmp_path: Path) -> None:
    """What no parameter depends on is taken as given anew: the weights go on under another loss."""
    path = tmp_path / "checkpoint"
    trainer = make_trainer(objective=Objective.JOINT, contrastive=Contrastive(matryoshka_dimensions=[8, 64]))
    trainer.save(path)
    given = Contrastive(matryoshka_dimensions=[16], negatives=uform.Negatives.NAMED, pair_loss=PairLossForm.RANKED)
    changed = resume(path, contrastive=given, masking=Masking(token_mask_probability=0.5))
    assert changed.describe()["contrastive"]["matryoshka_dimensions"] == [16]
    assert changed.describe()["masking"]["token_mask_probability"] == 0.5
    assert digest(changed) == digest(trainer)
    with pytest.raises(ValueError, match=r"Contrastive.matryoshka_dimensions\[0\] is 65"):
        resume(path, contrastive=Contrastive(matryoshka_dimensions=[65]))


def test_enumerations_are_told_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    make_trainer(objective=Objective.CONTRASTIVE).save(path)
    told = r"contrastive\.pair_loss: the checkpoint has BALANCED, SIGMOID was asked; its parameter"
    with pytest.raises(ValueError, match=told):
        resume(path, contrastive=Contrastive(pair_loss=PairLossForm.SIGMOID))
    for made in (resume(path), uform.Model.init_ram(ram(), path)):
        described = made.describe()
        assert described["objective"] is Objective.CONTRASTIVE
        assert described["contrastive"]["pair_loss"] is PairLossForm.BALANCED
        assert described["contrastive"]["negatives"] is uform.Negatives.AMBIENT


def test_refused_calls_are_saved_as_draws(tmp_path: Path) -> None:
    """A call refused for its numbers advances the draws alone; both counters go into the file."""
    path = tmp_path / "checkpoint"
    call = Call(["a text of some length, so that something is covered", "another one of them"])
    trainer = make_trainer()
    table = np.array(trainer.read("text.table"))
    call.step(trainer)
    trainer.write("text.table", np.full_like(table, np.nan))
    with pytest.raises(FloatingPointError):
        call.step(trainer)
    with pytest.raises(ValueError, match="contents"):
        trainer.step([uform.Modality.TEXT], ["\ud800"])
    trainer.write("text.table", table)
    trainer.save(path)
    resumed = resume(path)
    assert resumed.describe()["step"] == 1
    assert call.step(resumed).stats.loss == call.step(trainer).stats.loss
    assert digest(resumed) == digest(trainer)


def test_a_model_embeds_what_a_step_answered(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    trainer = make_trainer(objective=Objective.CONTRASTIVE, depth=2, batch=shape(images=True))
    spread(trainer)
    trainer.save(path)
    call = Call(
        ["text", picture(8, 8), "in a bag", picture(6, 5, seed=1), "", "x" * 40],
        bags=[3, 1, 3, 3, 9, 4],
        attract=((0, 1, 1.0),),
    )
    answered = call.step(trainer).embeddings
    for devices in (1, 2):
        model = uform.Model.init_ram(ram(devices), path)
        found = np.array(model.embed(call.modalities, call.contents, bags=call.bags).numpy())
        np.testing.assert_allclose(found, answered, atol=1e-6)


def test_a_model_takes_any_number_of_items(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    trainer = make_trainer(objective=Objective.CONTRASTIVE, batch=shape(rows=2, columns=16, segments=4))
    spread(trainer)
    trainer.save(path)
    texts = [f"text {item % 37}" for item in range(500)]
    for devices in (1, 3):
        model = uform.Model.init_ram(ram(devices), path)
        found = np.array(model.embed([uform.Modality.TEXT] * 500, texts).numpy())
        np.testing.assert_allclose(found[37:], found[:-37], atol=1e-6)
        bagged = np.array(model.embed([uform.Modality.TEXT] * 500, texts, bags=[item % 250 for item in range(500)]))
        assert bagged.shape == (250, 64)
        none = model.embed([], [])
        assert none.shape == (0, 64)


def test_resume_keeps_every_bit_that_counts(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    trainer = make_trainer(objective=Objective.JOINT)
    for _ in range(3):
        Call(["a", "b", "c"], attract=((0, 1, 1.0),)).step(trainer)
    trainer.save(path)
    resumed = resume(path)
    for what in ("parameter", "moment1", "moment2"):
        expected = read_all(trainer, what)
        for name, value in read_all(resumed, what).items():
            np.testing.assert_array_equal(value, expected[name], err_msg=f"{what} {name}")
    again = tmp_path / "again"
    resumed.save(again)
    assert again.read_bytes() == path.read_bytes()
