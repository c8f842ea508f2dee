"""Any items, bags and edges are stepped over or refused by name; whatever was refused leaves the trainer unharmed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import uform
from tests.helpers import reference
from tests.helpers.calls import Call, edges
from tests.helpers.runs import digest, make_trainer, picture, ram, read_all, shape, spread
from tests.oracle import step as oracle
from uform import AmbientScope, Contrastive, Modality, Negatives, Objective, PairLossForm, Relations

FAST = settings(max_examples=60, deadline=None, database=None)
REFUSALS = (ValueError, TypeError)
FORMS = [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID]
TEXT = Modality.TEXT

texts = st.lists(st.binary(max_size=12), min_size=1, max_size=14)


# ---------------------------------------------------------------------------------------------------- packing


@seed(1)
@FAST
@given(data=st.data(), contents=texts, devices=st.integers(1, 3))
def test_any_bags_in_little_room(data: st.DataObject, contents: list[bytes], devices: int) -> None:
    count = len(contents)
    words = st.integers(0, 3) | st.sampled_from([2**32 - 1, 64, 128])
    bags = data.draw(st.none() | st.lists(words, min_size=count, max_size=count))
    trainers = [
        make_trainer(
            devices=devices,
            objective=Objective.CONTRASTIVE,
            batch=shape(rows=2, columns=8, segments=4, bags=3),
        )
        for _ in range(2)
    ]
    call = Call(contents, bags=bags, attract=((0, count - 1, 1.0), (count - 1, 0, 1.0)))
    answers = [call.step(trainer) for trainer in trainers]
    assert answers[0].stats == answers[1].stats
    np.testing.assert_array_equal(answers[0].embeddings, answers[1].embeddings)
    stats, embeddings = answers[0].stats, answers[0].embeddings
    assert embeddings.shape == (len(set(call.bag_of)), 64)
    lengths = np.linalg.norm(embeddings, axis=1)
    whole = lengths > 0.5
    np.testing.assert_allclose(lengths[whole], 1.0, rtol=1e-5)
    assert not np.any(embeddings[~whole])
    assert stats.truncated == sum(len(content) > 7 for content in contents)
    assert max(0, count - 4 * devices) <= stats.dropped < count
    assert np.sum(whole) <= 3 * devices
    if stats.dropped == 0:
        assert np.all(whole)
    columns = [1 + min(len(content), 7) for content in contents]
    if count <= 2 and sum(columns) <= 8:
        assert stats.dropped == 0


@seed(2)
@FAST
@given(data=st.data(), contents=texts)
def test_bags_that_fit_embed_as_they_do_alone(data: st.DataObject, contents: list[bytes]) -> None:
    bags = data.draw(st.lists(st.integers(0, 5), min_size=len(contents), max_size=len(contents)))
    trainer = trainer_at_rest(1)
    answer = Call(contents, bags=bags).step(trainer)
    assert answer.stats.dropped == 0
    bag_of = Call(contents, bags=bags).bag_of
    for number in set(bag_of):
        own = [content for content, bag in zip(contents, bag_of, strict=True) if bag == number]
        alone = Call(own, bags=[7] * len(own)).step(trainer)
        np.testing.assert_allclose(answer.embeddings[number], alone.embeddings[0], atol=1e-5)


_at_rest: dict[int, uform.Trainer] = {}


def trainer_at_rest(devices: int) -> uform.Trainer:
    """A trainer whose steps move nothing: at a rate of zero its weights stay, so that steps can be compared."""
    if devices not in _at_rest:
        made = make_trainer(
            devices=devices,
            objective=Objective.CONTRASTIVE,
            batch=shape(rows=16, columns=32, segments=64, images=True),
            schedule=uform.Schedule(learning_rate=1e-30, min_learning_rate=-1.0, warmup_steps=-1, steps=1),
            optimizer=uform.Optimizer(weight_decay=-1.0),
        )
        spread(made)
        _at_rest[devices] = made
    return _at_rest[devices]


# ---------------------------------------------------------------------------------------------------- relations


@st.composite
def calls(draw: st.DrawFn) -> Call:
    contents = draw(texts)
    count = len(contents)
    item = st.integers(0, count - 1)
    weight = st.sampled_from([0.0, 0.5, 1.0, 4.0])
    each: dict[str, Any] = {"min_size": count, "max_size": count}
    return Call(
        contents,
        bags=draw(st.none() | st.lists(st.integers(0, 6), **each)),
        groups=draw(st.lists(st.integers(0, 1), **each)),
        sides=draw(st.lists(st.integers(0, 3), **each)),
        attract=tuple(draw(st.lists(st.tuples(item, item, weight), max_size=20))),
        repel=tuple(draw(st.lists(st.tuples(item, item, weight), max_size=20))),
        ignore=tuple(draw(st.lists(st.tuples(item, item, st.just(1.0)), max_size=20))),
    )


@seed(3)
@settings(FAST, max_examples=120)
@given(
    call=calls(),
    form=st.sampled_from(FORMS),
    negatives=st.sampled_from(list(Negatives)),
    scope=st.sampled_from(list(AmbientScope)),
    devices=st.integers(1, 2),
)
def test_any_relations_give_the_loss_of_the_oracle(
    call: Call, form: PairLossForm, negatives: Negatives, scope: AmbientScope, devices: int
) -> None:
    ambient: dict[str, Any] = {"ambient_scope": scope, "ambient_repulsion_weight": 0.5}
    trainer = make_trainer(
        devices=devices,
        objective=Objective.CONTRASTIVE,
        contrastive=Contrastive(
            pair_loss=form,
            negatives=negatives,
            **(ambient if negatives == Negatives.AMBIENT else {}),
            temperature_groups=2,
            inverse_temperature=5.0,
            max_edges_per_device=64,
        ),
    )
    spread(trainer)
    parameters = {name: value.astype(np.float64) for name, value in read_all(trainer).items()}
    losses, embeddings = oracle.terms(parameters, reference.batch_of(trainer.describe(), call))
    answer = call.step(trainer)
    assert answer.stats.contrastive_loss == pytest.approx(float(losses["contrastive"]), rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(answer.embeddings, embeddings, atol=1e-5)
    assert all(np.all(np.isfinite(value)) for value in read_all(trainer).values())


@seed(4)
@FAST
@given(
    offsets=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), max_size=6),
    ids=st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 4), max_size=6),
    weights=st.none() | st.lists(st.floats(width=32), max_size=6),
    name=st.sampled_from(["attract", "repel", "ignore"]),
)
def test_any_edges_are_taken_or_refused(
    offsets: list[int], ids: list[int], weights: list[float] | None, name: str
) -> None:
    trainer = trainer_at_rest(1)
    fields: dict[str, Any] = {"offsets": np.array(offsets, np.uint64), "ids": np.array(ids, np.uint32)}
    if weights is not None:
        fields["weights"] = np.array(weights, np.float32)
    monotonic = offsets[:1] == [0] and all(a <= b for a, b in pairwise(offsets))
    valid = len(offsets) == 4 and monotonic and offsets[-1] == len(ids) and all(item < 3 for item in ids)
    if weights is not None:
        valid = valid and name != "ignore" and len(weights) == len(ids)
        valid = valid and all(np.isfinite(weight) and weight >= 0 for weight in weights)
    stats = uform.TrainerStepStats()

    def run() -> None:
        relations = Relations(**{name: uform.Edges(**fields)})
        trainer.step([TEXT] * 3, ["a", "b", "c"], relations=relations, stats=stats)

    if valid:
        run()
        assert np.isfinite(stats.loss)
    else:
        with pytest.raises(ValueError, match=name):
            run()


@seed(5)
@FAST
@given(offsets=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20), max_size=6), data=st.binary(max_size=16))
def test_any_tape_is_read_or_refused(offsets: list[int], data: bytes) -> None:
    trainer = trainer_at_rest(1)
    count = len(offsets) - 1
    places = np.array(offsets, np.uint64)
    rising = all(a <= b for a, b in pairwise(offsets))
    arena = uform.Arena.for_ram()
    if count >= 1 and rising and offsets[-1] <= len(data):
        found = trainer.step([TEXT] * count, (data, places), arena=arena)
        assert found is not None
        texts_of = [data[begin:end] for begin, end in pairwise(offsets)]
        expected = trainer.step([TEXT] * count, texts_of, arena=arena)
        assert expected is not None
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    else:
        with pytest.raises(ValueError, match="contents"):
            trainer.step([TEXT] * max(count, 0), (data, places), arena=arena)


# ---------------------------------------------------------------------------------------------------- wrong arguments

A, B = "a", "b"
OFFSETS, IDS = np.array([0, 1, 1], np.uint64), np.array([1], np.uint32)


def related(**fields: Any) -> Callable[[uform.Trainer], object]:
    return lambda trainer: trainer.step([TEXT] * 2, [A, B], relations=Relations(**fields))


def stepped(*arguments: Any, **keywords: Any) -> Callable[[uform.Trainer], object]:
    return lambda trainer: trainer.step(*arguments, **keywords)


WRONG: dict[str, Callable[[uform.Trainer], object]] = {
    # contents
    "no items": stepped([], []),
    "fewer modalities": stepped([TEXT], [A, B]),
    "more modalities": stepped([TEXT] * 3, [A, B]),
    "no modality": stepped([9, 0], [A, B]),
    "negative modality": stepped([-1, 0], [A, B]),
    "modality by name": stepped(["TEXT", "TEXT"], [A, B]),
    "modality as a float": stepped([0.0, 0.0], [A, B]),
    "modalities None": stepped(None, [A, B]),
    "video that the run lacks": stepped([Modality.VIDEO] * 2, [np.zeros((2, 4, 4, 3), np.uint8)] * 2),
    "audio that the run lacks": stepped([Modality.AUDIO] * 2, [np.zeros(9, np.float32)] * 2),
    "contents None": stepped([TEXT] * 2, None),
    "contents a str": stepped([TEXT] * 2, "ab"),
    "contents an int": stepped([TEXT] * 2, 2),
    "contents a set of ints": stepped([TEXT] * 2, {1, 2}),
    "a tuple that is no tape": stepped([TEXT] * 3, (A, B, "c")),
    "a text that is an int": stepped([TEXT] * 2, [A, 5]),
    "a text that is None": stepped([TEXT] * 2, [A, None]),
    "a text of float32": stepped([TEXT] * 2, [A, np.zeros(3, np.float32)]),
    "a text of int64": stepped([TEXT] * 2, [A, np.zeros(3, np.int64)]),
    "a text of two axes": stepped([TEXT] * 2, [A, np.zeros((2, 3), np.uint8)]),
    "a lone surrogate": stepped([TEXT] * 2, [A, "\udcff"]),
    "an image as a str": stepped([TEXT, Modality.IMAGE], [A, "picture"]),
    "an image that is None": stepped([TEXT, Modality.IMAGE], [A, None]),
    "an image of float64": stepped([TEXT, Modality.IMAGE], [A, np.zeros((4, 4, 3))]),
    "an image of no height": stepped([TEXT, Modality.IMAGE], [A, np.zeros((0, 4, 3), np.uint8)]),
    "an image of nine channels": stepped([TEXT, Modality.IMAGE], [A, np.zeros((4, 4, 9), np.uint8)]),
    "an image of objects": stepped([TEXT, Modality.IMAGE], [A, np.array([[None]])]),
    "bytes that are no image": stepped([TEXT, Modality.IMAGE], [A, b"\x00\x01"]),
    # tapes
    "a tape of float offsets": stepped([TEXT] * 2, (b"ab", np.array([0.0, 1.0, 2.0]))),
    "a tape of negative offsets": stepped([TEXT] * 2, (b"ab", np.array([0, -1, 2]))),
    "a tape of huge offsets": stepped([TEXT] * 2, (b"ab", np.array([0, 1, 2**64 - 1], np.uint64))),
    "a tape that wraps around": stepped([TEXT] * 2, (b"ab", np.array([2**64 - 8, 2**64 - 4, 2], np.uint64))),
    "a tape without offsets": stepped([TEXT] * 2, (b"ab", np.zeros(0, np.uint64))),
    "a tape of text": stepped([TEXT] * 2, ("ab", np.array([0, 1, 2], np.uint64))),
    "a tape of float32": stepped([TEXT] * 2, (np.zeros(2, np.float32), np.array([0, 1, 2], np.uint64))),
    "a tape of fewer texts": stepped([TEXT] * 2, (b"ab", np.array([0, 2], np.uint64))),
    "a tape of a number": stepped([TEXT] * 2, (b"ab", 2)),
    # bags, groups, sides
    "fewer bags": stepped([TEXT] * 2, [A, B], bags=[1]),
    "negative bags": stepped([TEXT] * 2, [A, B], bags=[0, -1]),
    "bags over 32 bits": stepped([TEXT] * 2, [A, B], bags=[0, 2**32]),
    "float bags": stepped([TEXT] * 2, [A, B], bags=np.zeros(2)),
    "bags of two axes": stepped([TEXT] * 2, [A, B], bags=np.zeros((1, 2), np.uint32)),
    "bags of bools": stepped([TEXT] * 2, [A, B], bags=[True, False]),
    "bags a str": stepped([TEXT] * 2, [A, B], bags="ab"),
    "bags an int": stepped([TEXT] * 2, [A, B], bags=3),
    "fewer groups": stepped([TEXT] * 2, [A, B], temperature_groups=[0]),
    "groups past the run's": stepped([TEXT] * 2, [A, B], temperature_groups=[0, 1]),
    "float groups": stepped([TEXT] * 2, [A, B], temperature_groups=[0.0, 0.0]),
    "fewer sides": stepped([TEXT] * 2, [A, B], sides=[1]),
    "sides past 3": stepped([TEXT] * 2, [A, B], sides=[0, 4]),
    "sides as strings": stepped([TEXT] * 2, [A, B], sides=["QUERY", "NONE"]),
    # relations
    "relations a dict": stepped([TEXT] * 2, [A, B], relations={}),
    "relations a tuple": stepped([TEXT] * 2, [A, B], relations=(OFFSETS, IDS)),
    "edges a list": related(attract=[OFFSETS, IDS]),
    "edges of four": related(attract=(OFFSETS, IDS, None, None)),
    "edges without ids": related(attract=(OFFSETS,)),
    "float offsets": related(attract=(OFFSETS.astype(np.float64), IDS)),
    "float ids": related(attract=(OFFSETS, IDS.astype(np.float32))),
    "negative ids": related(attract=(OFFSETS, np.array([-1]))),
    "ids over 32 bits": related(attract=(OFFSETS, np.array([2**32 + 1]))),
    "ids past the items": related(attract=(OFFSETS, np.array([2], np.uint32))),
    "negative offsets": related(attract=(np.array([0, -1, 1]), IDS)),
    "huge offsets": related(attract=(np.array([0, 2**63, 1], np.uint64), IDS)),
    "offsets past the ids": related(attract=(np.array([0, 1, 2**40], np.uint64), IDS)),
    "two axes of ids": related(attract=(OFFSETS, IDS.reshape(1, 1))),
    "weights of truth": related(attract=(OFFSETS, IDS, np.ones(1, bool))),
    "weights as bytes": related(attract=(OFFSETS, IDS, b"1")),
    "a weight that is no number": related(repel=(OFFSETS, IDS, np.array([np.nan], np.float32))),
    "a weight beyond float32": related(repel=(OFFSETS, IDS, np.array([1e300]))),
    "a negative weight": related(repel=(OFFSETS, IDS, np.array([-0.5], np.float32))),
    "weights on ignored pairs": related(ignore=(OFFSETS, IDS, np.ones(1, np.float32))),
    "too many edges": lambda trainer: trainer.step(
        [TEXT] * 2, [A, B], relations=Relations(attract=edges(2, [(0, 1, 1.0)] * 1000))
    ),
    # the answer
    "arena a bytearray": stepped([TEXT] * 2, [A, B], arena=bytearray(512)),
    "stats a dict": stepped([TEXT] * 2, [A, B], stats={}),
    "no such scalar": stepped([TEXT] * 2, [A, B], arena=uform.Arena.for_ram(), outputs_scalar=9),
    "scalar by name": stepped([TEXT] * 2, [A, B], arena=uform.Arena.for_ram(), outputs_scalar="FLOAT32"),
    "choices without room": stepped([TEXT] * 2, [A, B], choices=["yes", "no"]),
    # parameters
    "an unknown parameter": lambda trainer: trainer.read("no.such"),
    "an unknown kind": lambda trainer: trainer.read("norm", "moment3"),
    "values of another shape": lambda trainer: trainer.write("norm", np.zeros(63, np.float32)),
    "a scalar for a vector": lambda trainer: trainer.write("norm", 1.0),  # type: ignore[arg-type]
    # calls
    "no arguments": lambda trainer: trainer.step(),  # type: ignore[call-arg]
    "an unknown keyword": stepped([TEXT] * 2, [A, B], label=3),
    "a path that is an int": lambda trainer: trainer.save(5),  # type: ignore[arg-type]
}


@pytest.fixture(scope="module")
def twins() -> tuple[uform.Trainer, uform.Trainer]:
    made = [make_trainer(objective=Objective.JOINT, batch=shape(images=True), seed=8) for _ in range(2)]
    return made[0], made[1]


HEALTHY = Call([A, "some text to cover", picture(8, 8)], attract=((0, 1, 1.0), (1, 2, 1.0)))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_and_harm_nothing(twins: tuple[uform.Trainer, uform.Trainer], name: str) -> None:
    """Afterwards the trainer steps as its twin does, which was never asked: not even a random draw was lost."""
    asked, twin = twins
    before = digest(asked)
    with pytest.raises(REFUSALS) as refusal:
        WRONG[name](asked)
    assert len(str(refusal.value)) > 10
    assert digest(asked) == before
    answers = [HEALTHY.step(trainer) for trainer in (asked, twin)]
    assert answers[0].stats == answers[1].stats
    np.testing.assert_array_equal(answers[0].embeddings, answers[1].embeddings)


def test_arena_too_small_for_the_answer(twins: tuple[uform.Trainer, uform.Trainer]) -> None:
    asked, twin = twins
    arena = uform.Arena.for_ram(capacity=128)
    with pytest.raises(MemoryError, match="128") as refusal:
        asked.step([TEXT] * 2, [A, B], arena=arena)
    assert "512" in str(refusal.value)
    assert HEALTHY.step(asked).stats == HEALTHY.step(twin).stats


def test_errors_name_the_item_and_the_value() -> None:
    trainer = trainer_at_rest(1)
    named: dict[str, Callable[[uform.Trainer], object]] = {
        r"contents\[1\]": stepped([TEXT] * 2, [A, "\ud800"]),
        r"bags\[1\] is -1": stepped([TEXT] * 2, [A, B], bags=[0, -1]),
        r"bags has 1 entries": stepped([TEXT] * 2, [A, B], bags=[0]),
        r"modalities\[1\] is 7": stepped([0, 7], [A, B]),
        r"temperature_groups.*item 1.*5": stepped([TEXT] * 2, [A, B], temperature_groups=[0, 5]),
        r"relations\.attract\.ids\[0\] is 2": related(attract=(OFFSETS, np.array([2], np.uint32))),
        r"contents\.offsets\[2\].*99": stepped([TEXT] * 2, (b"ab", [0, 1, 99])),
    }
    for message, call in named.items():
        with pytest.raises(ValueError, match=message):
            call(trainer)


NAN, INFINITY = float("nan"), float("inf")
CONTRASTIVE = Objective.CONTRASTIVE


@pytest.mark.parametrize(
    ("named", "make_fields"),
    [
        ("hidden", lambda: {"hidden": 65}),
        ("hidden", lambda: {"hidden": -64}),
        ("depth", lambda: {"depth": -1}),
        ("depth", lambda: {"depth": 2**31}),
        ("seed", lambda: {"seed": -1}),
        ("seed", lambda: {"seed": 2**64}),
        ("max_columns_per_row", lambda: {"batch": uform.BatchShape(max_columns_per_row=-1)}),
        ("max_columns_per_row", lambda: {"batch": uform.BatchShape(max_columns_per_row=70_000)}),
        ("patch_side", lambda: {"batch": uform.BatchShape(image=(-4, 3))}),
        ("channels", lambda: {"batch": uform.BatchShape(image=(4, 2))}),
        ("objective", lambda: {"objective": 7}),
        (
            "matryoshka_dimensions",
            lambda: {"objective": CONTRASTIVE, "contrastive": Contrastive(matryoshka_dimensions=[65])},
        ),
        ("bias", lambda: {"objective": CONTRASTIVE, "contrastive": Contrastive(bias=NAN)}),
        (
            "ambient_repulsion_weight",
            lambda: {"objective": CONTRASTIVE, "contrastive": Contrastive(ambient_repulsion_weight=INFINITY)},
        ),
        ("token_mask_probability", lambda: {"masking": uform.Masking(token_mask_probability=1.5)}),
        ("token_mask_probability", lambda: {"masking": uform.Masking(token_mask_probability=NAN)}),
        ("replace_fraction", lambda: {"masking": uform.Masking(replace_fraction=0.9, random_fraction=0.9)}),
        ("token_mean_span", lambda: {"masking": uform.Masking(token_mean_span=0.5)}),
        ("min_learning_rate", lambda: {"schedule": uform.Schedule(learning_rate=1.0, min_learning_rate=2.0)}),
        ("learning_rate", lambda: {"schedule": uform.Schedule(learning_rate=INFINITY)}),
        ("warmup_steps", lambda: {"schedule": uform.Schedule(steps=10, warmup_steps=11)}),
        ("beta1", lambda: {"optimizer": uform.Optimizer(beta1=1.0)}),
        ("epsilon", lambda: {"optimizer": uform.Optimizer(epsilon=-1.0)}),
        ("epsilon", lambda: {"optimizer": uform.Optimizer(epsilon=1e-50)}),
        ("no/such/file", lambda: {"resume": "no/such/file"}),
        ("unknown", lambda: {"unknown": 3}),
    ],
)
def test_wrong_configurations_are_refused_by_name(named: str, make_fields: Callable[[], dict[str, Any]]) -> None:
    with pytest.raises((*REFUSALS, OSError), match=named):
        make_trainer(**make_fields())


@seed(6)
@settings(FAST, max_examples=40)
@given(position=st.integers(0, 2**31), value=st.integers(0, 255))
def test_a_damaged_checkpoint_is_refused_or_sound(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    """A byte is changed: within the header the file is refused, or means the same; within the data it is data."""
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    source = folder / "source"
    if not source.exists():
        make_trainer().save(source)
    data = bytearray(source.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    data[position % header] = value
    damaged = Path(folder / "damaged")
    damaged.write_bytes(data)
    try:
        trainer = uform.Trainer.init_ram(ram(), resume=damaged)
    except (OSError, ValueError):
        return
    assert np.isfinite(Call([A, "b"]).step(trainer).stats.loss)
