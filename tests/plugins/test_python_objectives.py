"""What a Python objective sees and answers, and what becomes of one that fails."""

from __future__ import annotations

import gc
import math
import operator
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

import uform
from tests.helpers.runs import TINY, digest, make_trainer, resume, shape

Array = npt.NDArray[Any]
Body = Callable[[uform.PluginBatch], Any]

TEXTS = ["one", "two", "three", "four", "five"]
NONE, QUERY, DOCUMENT = list(uform.LateInteractionSide)[:3]
NO_MASKS = uform.Masking(text_weight=-1)


@uform.register
class Told:
    """Does as the test tells."""

    name = "told"
    body: Body = staticmethod(lambda batch: 0.0)
    parameters: ClassVar[Any] = {}

    def forward_backward(self, batch: uform.PluginBatch) -> Any:
        """What the test wants."""
        return Told.body(batch)


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Callable[[Body], None]:
    return lambda body: monkeypatch.setattr(Told, "body", staticmethod(body))


def told_trainer(**fields: Any) -> uform.Trainer:
    masking = NO_MASKS if fields.get("objective", 0) != uform.Objective.CONTRASTIVE else None
    return make_trainer(**{"masking": masking, "plugins": {"told": None}, **fields})


def step(trainer: uform.Trainer, texts: list[str] = TEXTS, **given: Any) -> uform.TrainerStepStats:
    stats = uform.TrainerStepStats()
    trainer.step([uform.Modality.TEXT] * len(texts), texts, stats=stats, **given)
    return stats


def edges(pairs: dict[int, list[int]], count: int, weights: list[float] | None = None) -> uform.Edges:
    offsets = np.cumsum([0, *(len(pairs.get(row, ())) for row in range(count))]).astype(np.uint64)
    ids = np.array([other for row in sorted(pairs) for other in pairs[row]], np.uint32)
    return uform.Edges(offsets=offsets, ids=ids, weights=None if weights is None else np.array(weights, np.float32))


def test_it_sees_the_bags_of_the_call(tell: Callable[[Body], None]) -> None:
    seen: dict[str, Any] = {}

    def look(batch: uform.PluginBatch) -> float:
        seen.update(bags=np.array(batch.bags), numbers=batch.numbers, attract=batch.attract, repel=batch.repel)
        seen.update(ignore=batch.ignore, groups=batch.groups, sides=batch.sides, modalities=batch.modalities)
        seen.update(zeros=np.array(batch.bags_gradient), share=batch.share, device=batch.device, call=batch.call)
        assert np.shares_memory(np.from_dlpack(batch.bags), np.asarray(batch.bags))  # type: ignore[arg-type]
        return 0.25

    tell(look)
    trainer = told_trainer(devices=2)
    relations = uform.Relations(
        attract=edges({0: [1, 3], 4: [0]}, 5, [0.5, 2, 1]), repel=edges({1: [4]}, 5), ignore=edges({3: [4]}, 5)
    )
    stats = uform.TrainerStepStats()
    answered = trainer.step(
        [uform.Modality.TEXT] * 5,
        TEXTS,
        bags=[7, 7, 8, 9, 6],
        temperature_groups=[0, 0, 0, 0, 0],
        arena=_arena(),
        sides=[QUERY, NONE, DOCUMENT, NONE, NONE],
        relations=relations,
        stats=stats,
    )
    assert answered is not None
    assert stats.extra == {"told": 0.25}
    assert stats.loss == 0.25
    assert np.array_equal(seen["bags"], answered.numpy())
    assert np.abs(np.linalg.norm(seen["bags"], axis=1) - 1).max() < 1e-6
    assert seen["numbers"].tolist() == [0, 1, 2, 3]
    assert seen["attract"].places.tolist() == [[0, 2], [3, 0]]  # those inside a bag are none
    assert seen["attract"].weights.tolist() == [2, 1]
    assert seen["repel"].places.tolist() == [[0, 3]]
    assert seen["ignore"].places.tolist() == [[2, 3]]
    assert seen["sides"].tolist() == [1, 2, 0, 0]
    assert seen["modalities"].tolist() == [1, 1, 1, 1]
    assert not seen["zeros"].any()
    assert (seen["share"], seen["device"], seen["call"]) == (1.0, "ram", 0)


def _arena() -> uform.Arena:
    return uform.Arena.for_ram()


def test_bags_that_were_dropped_are_left_out(tell: Callable[[Body], None]) -> None:
    seen: list[Any] = []

    def look(batch: uform.PluginBatch) -> float:
        seen.append((batch.bags.shape, batch.numbers.tolist(), batch.attract.places.tolist()))
        return 0.0

    tell(look)
    trainer = told_trainer(batch=shape(bags=3))
    relations = uform.Relations(attract=edges({0: [1], 1: [4]}, 5))
    assert step(trainer, relations=relations).dropped == 2
    assert seen == [((3, 64), [0, 1, 2], [[0, 1]])]


def test_gradients_are_those_of_its_loss(tell: Callable[[Body], None]) -> None:
    """A linear loss, whose slope along a parameter is measured."""
    pull = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)

    def linear(batch: uform.PluginBatch) -> float:
        np.asarray(batch.bags_gradient)[:] = pull
        return float((np.asarray(batch.bags, np.float64) * pull).sum())

    tell(linear)
    trainer = told_trainer(
        objective=uform.Objective.CONTRASTIVE,  # no masks, which every step draws anew
        schedule=uform.Schedule(learning_rate=1e-30, min_learning_rate=1e-30),
        optimizer=uform.Optimizer(max_gradient_norm=-1),
    )
    step(trainer)
    gradient, gain = trainer.read("norm", "gradient"), trainer.read("norm")
    along = np.random.default_rng(2).normal(size=gain.shape).astype(np.float32)
    losses = []
    for sign in (1, -1):
        trainer.write("norm", gain + sign * np.float32(1e-2) * along)
        losses.append(step(trainer).loss)
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(float(gradient @ along), rel=1e-3)


def test_it_is_the_same_on_two_devices(tell: Callable[[Body], None]) -> None:
    def spread(batch: uform.PluginBatch) -> float:
        bags = np.asarray(batch.bags)
        np.asarray(batch.bags_gradient)[:] = 2 * bags.sum(0)
        return float((bags.sum(0) ** 2).sum())

    tell(spread)
    one, two = told_trainer(), told_trainer(devices=2)
    for _ in range(4):
        alone, shared = step(one), step(two)
        assert shared.extra["told"] == pytest.approx(alone.extra["told"], rel=1e-5)
        assert shared.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-4)


def test_deferred_steps(tell: Callable[[Body], None]) -> None:
    def fails_once(batch: uform.PluginBatch) -> float:
        if batch.call == 1:
            raise RuntimeError("not today")
        return float(batch.call)

    tell(fails_once)
    # Of its own, since an executor keeps the threads that it defers to.
    executor = uform.Executor.for_ram(threads=1)
    trainer = uform.Trainer.init_ram(executor, masking=NO_MASKS, plugins={"told": None}, batch=shape(), **TINY)
    stats = [uform.TrainerStepStats() for _ in range(4)]
    modalities = [uform.Modality.TEXT] * len(TEXTS)
    deferred = [trainer.deferred(executor).step(modalities, TEXTS, stats=one) for one in stats]
    for place, one in enumerate(deferred):
        if place == 1:
            with pytest.raises(RuntimeError, match="plugin told: forward_backward raised RuntimeError: not today"):
                one.result()
        else:
            one.result()
    assert [one.extra.get("told") for one in stats] == [0, None, 2, 3]


# ------------------------------------------------------------------------------------------------ failures


def _raise(error: BaseException) -> Body:
    def body(batch: uform.PluginBatch) -> float:
        raise error

    return body


def _poison(batch: uform.PluginBatch) -> float:
    np.asarray(batch.bags_gradient)[1, 2] = np.nan
    return 1.0


_hoard: list[Any] = []


def _keep(batch: uform.PluginBatch) -> float:
    _hoard.append(np.asarray(batch.bags))
    return 1.0


class UnspeakableError(ValueError):
    """Its message is another failure."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (_raise(ValueError("bad")), ValueError, "plugin told: forward_backward raised ValueError: bad"),
        (
            _raise(UnspeakableError()),
            ValueError,
            "plugin told: forward_backward raised Unspeakable.*: it has no",
        ),
        (_raise(KeyError("gone")), RuntimeError, "plugin told: forward_backward raised KeyError: 'gone'"),
        (_raise(MemoryError()), MemoryError, "plugin told: forward_backward raised MemoryError"),
        (lambda batch: None, TypeError, "plugin told: forward_backward raised TypeError: it answered None"),
        (lambda batch: [1.0, 2.0], TypeError, "plugin told: .* expected the loss, a float"),
        (lambda batch: "1.5", TypeError, "plugin told: .* expected the loss, a float"),
        (lambda batch: True, TypeError, "plugin told: .* expected the loss, a float"),
        (lambda batch: math.nan, FloatingPointError, "^told is -?nan: the step was refused"),
        (lambda batch: math.inf, FloatingPointError, "^told is inf: the step was refused"),
        (
            _poison,
            FloatingPointError,
            "plugin told: its gradient of the embeddings is not finite: the step was",
        ),
        (_keep, ValueError, "plugin told: forward_backward kept arrays of its batch"),
    ],
)
def test_a_failure_names_the_plugin_and_the_trainer_goes_on(
    body: Body, error: type[Exception], message: str, tell: Callable[[Body], None]
) -> None:
    trainer = told_trainer()
    step(trainer)
    before = digest(trainer)
    tell(body)
    with pytest.raises(error, match=message) as caught:
        step(trainer)
    if "raised" in message:
        assert isinstance(caught.value.__cause__, Exception)
    _hoard.clear()
    assert digest(trainer) == before
    tell(lambda batch: 3.0)
    assert step(trainer).extra == {"told": 3.0}


def test_an_interruption_stays_one(tell: Callable[[Body], None]) -> None:
    trainer = told_trainer()
    tell(_raise(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        step(trainer)
    tell(lambda batch: 1.0)
    assert step(trainer).step == 1


def test_lent_arrays_are_taken_back(tell: Callable[[Body], None]) -> None:
    kept: list[uform.PluginArray] = []

    def keep(batch: uform.PluginBatch) -> float:
        kept.append(batch.bags)
        return 0.0

    tell(keep)
    step(told_trainer())
    uses: list[Callable[[Any], Any]] = [np.asarray, np.from_dlpack, memoryview]
    for use in uses:
        with pytest.raises(ValueError, match="the array was lent for one forward_backward, which is over"):
            use(kept[0])
    assert repr(kept[0]) == "<PluginArray (5, 64) on ram, taken back>"


@uform.register
class Fond:
    """Refers to its trainer."""

    name = "fond"
    made: ClassVar[list[weakref.ref[Any]]] = []
    trainer: uform.Trainer | None = None

    def __init__(self) -> None:
        Fond.made.append(weakref.ref(self))

    def forward_backward(self, batch: uform.PluginBatch) -> float:
        """Nothing."""
        return 0.0

    @classmethod
    def alive(cls) -> list[Any]:
        """Those that nothing has collected."""
        gc.collect()
        return [one for one in (ref() for ref in cls.made) if one is not None]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_cycle_of_an_objective_and_its_trainer_is_collected(resumed: bool, tmp_path: Path) -> None:
    """With the executor in it, and steps deferred to that."""
    trainer = told_trainer(plugins={"fond": None})
    if resumed:
        trainer.save(tmp_path / "run.safetensors")
        trainer = resume(tmp_path / "run.safetensors")
    (fond,) = Fond.alive()
    fond.trainer = trainer
    step(trainer)
    trainer.deferred(trainer.executor).step([uform.Modality.TEXT], ["a"]).result()
    del fond
    assert len(Fond.alive()) == 1
    del trainer
    assert not Fond.alive()


def test_a_trainer_that_only_its_objective_holds_serves_until_it_is_collected() -> None:
    trainer = told_trainer(plugins={"fond": None})
    (fond,) = Fond.alive()
    fond.trainer = trainer
    del trainer
    gc.collect()
    step(fond.trainer)
    other = told_trainer(plugins={"fond": None})
    del fond
    assert len(Fond.alive()) == 1
    step(other)


def test_it_cannot_use_the_executor_that_calls_it(tell: Callable[[Body], None]) -> None:
    trainer = told_trainer()
    tell(lambda batch: step(trainer).loss)
    with pytest.raises(RuntimeError, match=r"plugin told: .*the executor is in a call"):
        step(trainer)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"level": {"shape": (2**31 - 1, 2**20)}}, MemoryError, "plugin told asked for"),
        (
            {"level": {"shape": ()}},
            ValueError,
            r"plugin told: Told raised ValueError: parameters\['level'\] has the",
        ),
        ({"level": {"size": 3}}, ValueError, "has the key 'size': it has shape, value, deviation"),
        ({"level": 3}, TypeError, r"parameters\['level'\] is of type int: expected a dict with a shape"),
        (
            {"level": {"shape": 3}},
            TypeError,
            r"parameters\['level'\]\['shape'\] is of type int: expected one",
        ),
        ({"level": {"shape": (2.7,)}}, TypeError, r"parameters\['level'\]\['shape'\] is 2.7"),
        ({"a\0b": {"shape": (1,)}}, ValueError, r"parameters has the key 'a\\x00b': expected letters, without NUL"),
        ({"\ud800": {"shape": (1,)}}, ValueError, "expected letters, without NUL and lone surrogates"),
        ({"": {"shape": (1,)}}, ValueError, "parameters has the key '': expected letters"),
        (
            {"level": {"shape": (1,), "value": 1e300}},
            ValueError,
            r"\['value'\] is 1e\+300: expected a number that",
        ),
        ({"level": {"shape": (1,), "deviation": -1}}, ValueError, r"\['deviation'\] is -1.0: expected none below 0"),
        ({"level": {"shape": (1,), "minimum": 1}}, ValueError, "begins at 0.0 between 1.0 and 3.4"),
        ({"level": {"shape": (1,), "minimum": 2, "maximum": -2}}, ValueError, "has the bounds 2.0 and -2.0"),
        (3, TypeError, "parameters is of type int"),
    ],
)
def test_bad_parameters(parameters: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Told, "parameters", parameters)
    with pytest.raises(error, match=message):
        told_trainer()
    monkeypatch.setattr(Told, "parameters", {})
    told_trainer()


@pytest.mark.parametrize("devices", [1, 2])
def test_drawn_values_begin_within_their_bounds(
    devices: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tell: Callable[[Body], None]
) -> None:
    drawn = {
        "narrow": {"shape": (64,), "deviation": 0.5, "minimum": -0.1, "maximum": 0.1},
        "above": {"shape": (64,), "deviation": 1, "minimum": 0.5, "maximum": 2},
        "free": {"shape": (64,), "deviation": 0.5},
    }
    monkeypatch.setattr(Told, "parameters", drawn)
    seen: dict[str, Array] = {}

    def see(batch: uform.PluginBatch) -> float:
        seen.update({name: np.array(values) for name, values in batch.parameters.items()})
        return 0.0

    tell(see)
    trainer = told_trainer(devices=devices)
    begun = {name: trainer.read(f"told.{name}") for name in drawn}
    trainer.save(tmp_path / "unstepped")
    assert (resume(tmp_path / "unstepped").read("told.above") == begun["above"]).all()
    step(trainer)
    for name, (least, most) in {"narrow": (-0.1, 0.1), "above": (0.5, 2)}.items():
        assert begun[name].min() == np.float32(least)
        assert begun[name].max() == np.float32(most) or name == "above"
        assert (seen[name] == begun[name]).all()
    # Only what lies outside is moved.
    assert np.abs(begun["narrow"]).mean() * 2 > 0.1
    assert begun["free"].std() == pytest.approx(0.5, rel=0.3)
    monkeypatch.setattr(Told, "parameters", {})


@pytest.mark.parametrize(("parameters", "most"), [({}, 31), ({"level": {"shape": (2,)}}, 16)])
def test_every_plugin_is_named_for_what_is_not_finite(parameters: dict[str, Any], most: int) -> None:
    bad = ""

    def answer(self: Any, batch: uform.PluginBatch) -> float:
        np.asarray(batch.bags_gradient)[...] = math.nan if self.name == bad else 0
        return 0.0

    names = [f"one_of_{most}_{place}" for place in range(most + 1)]
    for name in names:
        uform.register(type("One", (), {"name": name, "parameters": parameters, "forward_backward": answer}))
    trainer = make_trainer(masking=None, objective=uform.Objective.CONTRASTIVE, plugins=dict.fromkeys(names[:-1]))
    for bad in (names[0], names[-2]):
        with pytest.raises(FloatingPointError, match=f"plugin {bad}: its gradient of the embeddings is not finite"):
            step(trainer)
    bad = ""
    step(trainer)
    refusal = "a run has at most 32 terms" if most == 31 else f"plugin {names[-1]}: a run looks through 32 of third"
    with pytest.raises(ValueError, match=refusal):
        make_trainer(masking=None, objective=uform.Objective.CONTRASTIVE, plugins=dict.fromkeys(names))


@pytest.mark.parametrize("name", ["a\0b", "\ud800", ""])
def test_names_are_letters(name: str) -> None:
    def answer(self: object, batch: uform.PluginBatch) -> float:
        return 0.0

    for members in ({"name": name}, {"name": "fielded", "fields": {name: 1}}):
        with pytest.raises(ValueError, match="expected letters, without NUL and lone surrogates"):
            uform.register(type("Odd", (), {**members, "forward_backward": answer}))


def test_what_is_only_read_cannot_be_written(tell: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Told, "parameters", {"level": {"shape": (3,), "value": 0.25}})

    def write(batch: uform.PluginBatch) -> float:
        for array in (batch.bags, batch.parameters["level"]):
            assert not np.asarray(array).flags.writeable
        np.asarray(batch.parameters["level"])[:] = 7
        return 0.0

    tell(write)
    trainer = told_trainer()
    with pytest.raises(ValueError, match="read-only"):
        step(trainer)
    assert (trainer.read("told.level") == 0.25).all()
    monkeypatch.setattr(Told, "parameters", {})


def test_dlpack_says_what_is_only_read(tell: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A capsule of version 1 does, which NumPy asks for; one of before cannot, and is handed over all the same."""
    monkeypatch.setattr(Told, "parameters", {"level": {"shape": (3,), "value": 0.25}})
    seen: list[bool] = []

    def look(batch: uform.PluginBatch) -> float:
        for array in (batch.bags, batch.parameters["level"]):
            seen.append(np.from_dlpack(array).flags.writeable)  # type: ignore[arg-type]
            assert '"dltensor"' in repr(array.__dlpack__())
            assert '"dltensor"' in repr(array.__dlpack__(max_version=(0, 8)))
            assert '"dltensor_versioned"' in repr(array.__dlpack__(max_version=(1, 0)))
        for array in (batch.bags_gradient, batch.parameter_gradients["level"]):
            seen.append(np.from_dlpack(array).flags.writeable)  # type: ignore[arg-type]
        return 0.0

    tell(look)
    step(told_trainer())
    asks = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)
    assert seen == [False, False, asks, asks]  # NumPy before 2.1 takes every capsule of version 0 as only read
    monkeypatch.setattr(Told, "parameters", {})


READ_ONLY = ("bags", "numbers", "attract", "groups", "parameters", "share", "call", "device")


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (
            lambda batch, new: setattr(batch, "bags_gradient", new),
            r"bags_gradient is not .*batch\.bags_gradient\[\.\.\.\] = ",
        ),
        (lambda batch, new: setattr(batch, "parameter_gradients", {}), "parameter_gradients is not to be replaced"),
        (lambda batch, new: batch.parameter_gradients.update(level=new), "has no attribute 'update'"),
        (
            lambda batch, new: operator.setitem(batch.parameter_gradients, "level", new),
            r"batch\.parameter_gradients\['level'\] is not .*: write into it, as in .*\[\.\.\.\] = gradient",
        ),
        (
            lambda batch, new: operator.setitem(batch.parameters, "level", new),
            r"batch\.parameters\['level'\] is not .*read",
        ),
        (lambda batch, new: operator.delitem(batch.parameters, "level"), r"batch\.parameters\['level'\] is not to be"),
        (lambda batch, new: operator.setitem(batch.bags, ..., new), "the array is not to be written: gradients alone"),
        (lambda batch, new: delattr(batch, "bags"), "batch.bags is not to be replaced: it is only read"),
        *(
            (lambda batch, new, of=of: setattr(batch, of, new), f"batch.{of} is not .*: it is only read")
            for of in READ_ONLY
        ),
    ],
)
def test_nothing_of_the_batch_can_be_replaced(
    replace: Callable[[Any, Any], Any], message: str, tell: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is set in a gradient's place would be lost."""
    monkeypatch.setattr(Told, "parameters", {"level": {"shape": (3,)}})

    def wrong(batch: uform.PluginBatch) -> float:
        replace(batch, np.ones(3, np.float32))
        return 0.0

    tell(wrong)
    trainer = told_trainer()
    with pytest.raises(
        (RuntimeError, TypeError, ValueError), match=f"plugin told: forward_backward raised .*{message}"
    ):
        step(trainer)
    monkeypatch.setattr(Told, "parameters", {})


def test_gradients_are_written_by_item(tell: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Told, "parameters", {"grid": {"shape": (2, 2)}})

    def write(batch: uform.PluginBatch) -> float:
        batch.bags_gradient[...] = np.ones(batch.bags.shape)
        batch.parameter_gradients["grid"][1] = [3, 4]
        assert (np.asarray(batch.bags_gradient) == 1).all()
        return 0.0

    tell(write)
    trainer = told_trainer()
    assert step(trainer).gradient_norm > 5
    assert trainer.read("told.grid", "gradient").tolist() == [[0, 0], [3, 4]]
    monkeypatch.setattr(Told, "parameters", {})


def test_gradients_are_written_in_place(tell: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """`gradient += more` would else make a new array, and nothing would be learnt."""
    monkeypatch.setattr(Told, "parameters", {"level": {"shape": (3,)}})

    def write(batch: uform.PluginBatch) -> float:
        bags, own = batch.bags_gradient, batch.parameter_gradients["level"]
        bags += np.ones(batch.bags.shape)
        bags -= batch.bags
        own += np.array([3.0, 5.0, 7.0])
        own -= 1
        own *= np.array([2.0], np.float32)
        own /= 4
        own **= 2
        own //= 1
        own %= 4
        batch.bags_gradient *= 2
        batch.parameter_gradients["level"] += 0.5
        assert bags is batch.bags_gradient
        assert np.array_equal(bags, 2 * (1 - np.asarray(batch.bags)))
        return 0.0

    tell(write)
    trainer = told_trainer()
    step(trainer)
    assert trainer.read("told.level", "gradient").tolist() == [1.5, 0.5, 1.5]
    monkeypatch.setattr(Told, "parameters", {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: operator.iadd(batch.bags, 1), "ValueError: the array is not to be written: gradients alone"),
        (lambda batch: operator.imul(batch.parameters["level"], 2), "ValueError: the array is not to be written"),
        (lambda batch: operator.iadd(batch.bags_gradient, np.ones((9, 9, 9))), "ValueError: .*broadcast"),
        (lambda batch: operator.iadd(batch.bags_gradient, np.ma.ones(1)), "TypeError: a masked array"),
        (lambda batch: operator.setitem(batch.bags_gradient, ..., np.ma.ones(1)), "TypeError: a masked array"),
        (lambda batch: operator.iadd(batch.bags_gradient, 1j), "Cannot cast ufunc 'add' output"),
        (lambda batch: operator.iadd(batch.bags_gradient, "one"), "raised .*add"),
    ],
)
def test_what_cannot_be_written_in_place(
    change: Callable[[Any], Any], message: str, tell: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "parameters", {"level": {"shape": (3,)}})

    def wrong(batch: uform.PluginBatch) -> float:
        change(batch)
        return 0.0

    tell(wrong)
    trainer = told_trainer()
    with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
        step(trainer)
    monkeypatch.setattr(Told, "parameters", {})


@pytest.mark.parametrize(
    ("saved", "resumed"), [((4,), (2, 2)), ((2, 2), (4,)), ((2, 2), (4, 1)), ((4,), (4, 1)), ((4,), (5,))]
)
def test_a_parameter_goes_on_in_its_shape(
    saved: tuple[int, ...], resumed: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.safetensors"
    monkeypatch.setattr(Told, "parameters", {"grid": {"shape": saved, "deviation": 1.0}})
    before = told_trainer()
    before.save(path)
    again = resume(path)
    assert before.read("told.grid").shape == saved
    assert np.array_equal(again.read("told.grid"), before.read("told.grid"))
    monkeypatch.setattr(Told, "parameters", {"grid": {"shape": resumed, "deviation": 1.0}})
    shapes = (
        rf"{re.escape(str(list(saved)))}, but {re.escape(str(list(resumed)))} comes of configuration\.objectives\.told"
    )
    with pytest.raises(ValueError, match=rf"tensor told\.grid has shape {shapes}"):
        resume(path)
    monkeypatch.setattr(Told, "parameters", {})


def test_parameters_are_learned(tell: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {
        "grid": {"shape": (2, 3), "value": 1.0},
        "level": {"shape": (1,), "value": 0.5, "maximum": 0.6},
        "floor": {"shape": (1,), "value": 2.99, "minimum": -5},
    }
    monkeypatch.setattr(Told, "parameters", lambda self, hidden: asked)

    def descend(batch: uform.PluginBatch) -> float:
        assert batch.parameters["grid"].shape == (2, 3)
        np.asarray(batch.parameter_gradients["grid"])[0] = 1
        np.asarray(batch.parameter_gradients["level"])[:] = -1
        return 0.0

    tell(descend)
    trainer = told_trainer(schedule=uform.Schedule(learning_rate=0.2, warmup_steps=1))
    step(trainer)
    grid = trainer.read("told.grid")
    assert (grid[0] < 1).all()
    assert (grid[1] == 1).all()
    assert trainer.read("told.level") == pytest.approx([0.6])
    assert trainer.read("told.floor") == pytest.approx([2.99])
    monkeypatch.setattr(Told, "parameters", {})
