"""The losses as functions: what they take and refuse."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import uform
from uform.losses import MaskedLoss, PairLoss, contrastive, late_interaction, masked_bytes


@pytest.fixture(scope="module")
def executor() -> uform.Executor:
    return uform.Executor.for_ram(threads=1)


def vectors(items: int = 4, width: int = 8) -> Any:
    values = np.random.default_rng(7).normal(size=(items, width)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def edges() -> uform.Relations:
    return uform.Relations(attract=([0, 1, 2, 3, 4], [2, 3, 0, 1]))


def test_a_pair_loss_has_its_fields(executor: uform.Executor) -> None:
    found = contrastive(executor, vectors(), relations=edges())
    assert isinstance(found, PairLoss)
    assert isinstance(found.loss, float)
    assert found.loss == pytest.approx(found.row_losses.mean())
    assert found.gradient.shape == (4, 8)
    assert found.gradient.dtype == np.float32
    assert found.log_inverse_temperature_gradient.shape == found.bias_gradient.shape == (1,)
    assert found.rows.tolist() == [0, 1, 2, 3]
    assert found.bias_gradient[0] == 0
    assert pickle.loads(pickle.dumps(found)).loss == found.loss


def test_rows_are_the_items_that_count(executor: uform.Executor) -> None:
    relations = uform.Relations(attract=([0, 0, 1, 1, 1], [3]))
    found = contrastive(executor, vectors(), relations=relations, temperature_groups=[0, 0, 1, 0],
                        contrastive=uform.Contrastive(temperature_groups=2))  # fmt: skip
    assert found.rows.tolist() == [1]
    assert found.row_losses.shape == (1,)
    assert found.log_inverse_temperature_gradient.shape == (2,)
    assert found.log_inverse_temperature_gradient[1] == 0


def test_DST_05_strided_vectors_are_as_good(executor: uform.Executor) -> None:
    wide = np.zeros((4, 20), np.float32)
    wide[:, 2:18:2] = vectors()
    expected = contrastive(executor, vectors(), relations=edges())
    for given in (wide[:, 2:18:2], np.asfortranarray(vectors()), vectors().T.copy().T, memoryview(vectors())):
        found = contrastive(executor, given, relations=edges())
        assert found.loss == expected.loss
        assert np.array_equal(found.gradient, expected.gradient)
        assert found.gradient.flags.c_contiguous


def _any_call(executor: uform.Executor, generator: Any) -> Any:
    """One of another size, of other edges, groups and modalities, refused, or of tokens."""
    items = int(generator.integers(1, 40))
    given = vectors(3 * items)
    offsets = np.concatenate([[0], np.cumsum(generator.integers(0, 3, items))])
    relations = uform.Relations(
        attract=(offsets, generator.integers(0, items, offsets[-1]).tolist()),
        repel=(np.arange(items + 1), generator.integers(0, items, items).tolist())
        if generator.random() < 0.5
        else None,
    )
    modalities = generator.integers(0, 2, items).astype(np.uint8)
    if generator.random() < 0.3:
        return late_interaction(executor, given, 3 * np.arange(items + 1, dtype=np.uint64), relations=relations,
                                sides=generator.integers(1, 4, items).astype(np.uint8),
                                modalities=modalities)  # fmt: skip
    groups = generator.integers(0, 2, items).astype(np.uint32)
    form = uform.Contrastive(temperature_groups=2, ambient_scope=uform.AmbientScope.CROSS_MODAL)
    with pytest.raises(ValueError, match=r"relations\.attract"):
        contrastive(executor, given, relations=relations)
    return contrastive(executor, given[:items], relations=relations, contrastive=form, modalities=modalities,
                       temperature_groups=groups)  # fmt: skip


def test_nothing_of_one_call_reaches_the_next(executor: uform.Executor) -> None:
    """An executor keeps the host memory that its calls went through."""
    kept, fresh = np.random.default_rng(3), np.random.default_rng(3)
    for _ in range(40):
        found, expected = _any_call(executor, kept), _any_call(uform.Executor.for_ram(threads=1), fresh)
        assert found.loss == expected.loss
        for part, other in zip(found[1:], expected[1:], strict=True):
            assert np.array_equal(part, other)


def test_many_items_are_planned_by_any_number_of_threads_alike() -> None:
    """More than one thread's share of items, bags and rows of pairs; few of them have pairs."""
    generator, items = np.random.default_rng(5), 20_000
    counts = np.zeros(items, np.uint64)
    counts[generator.integers(0, items, 50)] = 3
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)

    def edges_of_some() -> tuple[Any, Any]:
        return offsets, np.repeat(generator.integers(0, items, int(offsets[-1]) // 3), 3).astype(np.uint32)

    given: dict[str, Any] = {
        "relations": uform.Relations(attract=edges_of_some(), repel=edges_of_some(), ignore=edges_of_some()),
        "modalities": generator.integers(0, 2, items).astype(np.uint8),
        "contrastive": uform.Contrastive(ambient_scope=uform.AmbientScope.CROSS_MODAL),
    }
    one, three = (
        contrastive(uform.Executor.for_ram(threads=threads), vectors(items, 2), **given) for threads in (1, 3)
    )
    assert one.rows.size > 40
    assert one.loss == three.loss
    for part, other in zip(one[1:], three[1:], strict=True):
        assert np.array_equal(part, other)


def test_what_makes_an_array_may_use_the_executor(executor: uform.Executor) -> None:
    """So may a signal's handler that comes meanwhile: a loss has the executor while it computes, not before."""

    class Produced:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            masked_bytes(executor, np.zeros((1, 256), np.float32), bytes(1))
            return vectors()

    produced: Any = Produced()
    assert contrastive(executor, produced, relations=edges()).rows.size == 4
    assert contrastive(executor, vectors(), relations=edges(), modalities=[uform.Modality.TEXT] * 4).rows.size == 4


def test_vectors_are_not_written(executor: uform.Executor) -> None:
    given = vectors()
    given.flags.writeable = False
    contrastive(executor, given, relations=edges())
    assert np.array_equal(given, vectors())


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8, bool, object])
def test_other_types_are_refused_by_name(executor: uform.Executor, dtype: Any) -> None:
    with pytest.raises(TypeError, match=f"embeddings has the dtype {np.dtype(dtype)}: expected float32"):
        contrastive(executor, vectors().astype(dtype), relations=edges())
    with pytest.raises(TypeError, match=f"logits has the dtype {np.dtype(dtype)}: expected float32"):
        masked_bytes(executor, np.zeros((2, 256), dtype), bytes(2))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_its_item(executor: uform.Executor, wrong: float) -> None:
    given = vectors()
    given[2, 5] = wrong
    with pytest.raises(ValueError, match=r"embeddings\[2\] is not finite"):
        contrastive(executor, given, relations=edges())
    logits = np.zeros((3, 256), np.float32)
    logits[1, 7] = wrong
    with pytest.raises(ValueError, match=r"logits\[1\] is not finite"):
        masked_bytes(executor, logits, bytes(3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"relations": ([0], [])}, TypeError, "relations is of type tuple: expected Relations, or None"),
        (
            {"relations": edges(), "contrastive": {}},
            TypeError,
            "contrastive is of type dict: expected Contrastive, or None",
        ),
        (
            {"relations": uform.Relations(attract=([0, 1], [0]))},
            ValueError,
            r"relations\.attract\.offsets has 2 entries",
        ),
        ({"relations": edges(), "modalities": [0]}, ValueError, "modalities has 1 entries: expected 4"),
        ({"relations": edges(), "modalities": [0, 1, 2, 4]}, ValueError, r"modalities\[3\] is 4"),
        ({"relations": edges(), "sides": [0, 0, 0, 9]}, ValueError, r"sides\[3\] is 9"),
        ({"relations": edges(), "temperature_groups": [0, 0, 0, 1]}, ValueError, "temperature_groups"),
        (
            {"relations": edges(), "contrastive": uform.Contrastive(ambient_scope=uform.AmbientScope.CROSS_MODAL)},
            ValueError,
            "modalities is None: expected for the ambient scope CROSS_MODAL",
        ),
        (
            {"relations": edges(), "contrastive": uform.Contrastive(ambient_scope=uform.AmbientScope.CROSS_SIDE)},
            ValueError,
            "sides is None: expected for the ambient scope CROSS_SIDE",
        ),
        ({"relations": edges(), "contrastive": uform.Contrastive(matryoshka_dimensions=[9])}, ValueError, "matryoshka"),
    ],
)
def test_wrong_arguments_are_refused(
    executor: uform.Executor, arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        contrastive(executor, vectors(), **arguments)


@pytest.mark.parametrize("form", [uform.PairLossForm.BALANCED, uform.PairLossForm.RANKED])
def test_a_bias_that_the_form_does_not_read_is_refused(executor: uform.Executor, form: uform.PairLossForm) -> None:
    """As a run refuses it: its gradient would be 0 for good."""
    told = rf"bias is -1: nothing reads it, since pair_loss is {form.name}$"
    with pytest.raises(ValueError, match=rf"^Contrastive\.{told}"):
        contrastive(executor, vectors(), relations=edges(), contrastive=uform.Contrastive(pair_loss=form, bias=-1.0))
    with pytest.raises(ValueError, match=rf"^LateInteraction\.{told}"):
        late_interaction(
            executor,
            vectors(),
            np.arange(5),
            sides=[1, 1, 2, 2],  # type: ignore[list-item]
            relations=edges(),
            late_interaction=uform.LateInteraction(pair_loss=form, bias=-1.0),
        )


def test_shapes_are_checked(executor: uform.Executor) -> None:
    with pytest.raises(ValueError, match="embeddings has 1 axes: expected 2"):
        contrastive(executor, np.zeros(4, np.float32), relations=None)
    with pytest.raises(TypeError, match="embeddings is of type list: expected a float32 array"):
        contrastive(executor, [[1.0]], relations=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"logits has the shape \(2, 255\): expected 256 columns"):
        masked_bytes(executor, np.zeros((2, 255), np.float32), bytes(2))
    with pytest.raises(ValueError, match="targets has 3 entries: expected 2, one a row of logits"):
        masked_bytes(executor, np.zeros((2, 256), np.float32), bytes(3))
    with pytest.raises(ValueError, match=r"targets\[1\] is 256"):
        masked_bytes(executor, np.zeros((2, 256), np.float32), [0, 256])
    with pytest.raises(TypeError, match="executor is of type NoneType: expected an Executor"):
        masked_bytes(None, np.zeros((2, 256), np.float32), bytes(2))  # type: ignore[call-overload]


class OnGPU:
    """An array that says where it lies."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 3

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("it was asked for its memory")


@pytest.mark.parametrize(("kind", "name"), [(2, "vram:3"), (10, r"DLPack's device \(10, 3\)")])
def test_arrays_elsewhere_are_refused(executor: uform.Executor, kind: int, name: str) -> None:
    message = f"lies on {name}, and the executor computes in RAM: expected an array in RAM"
    with pytest.raises(ValueError, match=f"embeddings {message}"):
        contrastive(executor, OnGPU(kind), relations=edges())
    with pytest.raises(ValueError, match=f"logits {message}"):
        masked_bytes(executor, OnGPU(kind), OnGPU(kind))
    with pytest.raises(ValueError, match=f"targets {message}"):
        masked_bytes(executor, np.zeros((2, 256), np.float32), OnGPU(kind))


def test_losses_are_generic() -> None:
    assert PairLoss[Any].__origin__ is PairLoss  # type: ignore[attr-defined]
    assert MaskedLoss[Any].__origin__ is MaskedLoss  # type: ignore[attr-defined]


def test_MSK_07_uniform_logits(executor: uform.Executor) -> None:
    found = masked_bytes(executor, np.zeros((3, 256), np.float32), np.array([0, 7, 255], np.uint8))
    assert isinstance(found, MaskedLoss)
    assert found.loss == pytest.approx(5.545177, abs=1e-6)
    assert found.gradient.shape == (3, 256)
    assert np.abs(found.gradient.sum(axis=1)).max() < 1e-6


def test_relations_of_nothing(executor: uform.Executor) -> None:
    found = contrastive(executor, vectors(), relations=None)
    assert found.loss == 0
    assert not found.gradient.any()
    assert found.rows.size == 0


@pytest.mark.parametrize("form", [uform.PairLossForm.BALANCED, uform.PairLossForm.RANKED, uform.PairLossForm.SIGMOID])
@pytest.mark.parametrize(
    ("factor", "term"), [(1e19, r"log_inverse_temperature_gradient\[0\]"), (3e19, "loss"), (1e30, "loss")]
)
def test_finite_vectors_too_large_for_the_loss_are_refused_by_the_term(
    executor: uform.Executor, form: uform.PairLossForm, factor: float, term: str
) -> None:
    with pytest.raises(FloatingPointError, match=rf"^{term} is .*finite"):
        contrastive(
            executor,
            (vectors() * factor).astype(np.float32),
            relations=edges(),
            contrastive=uform.Contrastive(pair_loss=form),
        )


@pytest.mark.parametrize("factor", [1e-30, 1e10, 1e17])
def test_what_is_answered_is_finite(executor: uform.Executor, factor: float) -> None:
    found = contrastive(executor, (vectors() * factor).astype(np.float32), relations=edges())
    parts = (found.loss, found.gradient, found.log_inverse_temperature_gradient, found.bias_gradient, found.row_losses)
    assert all(np.isfinite(part).all() for part in parts)


def test_huge_logits_are_answered_with_finite_numbers(executor: uform.Executor) -> None:
    """Their differences are past float32, but the cross-entropy of the rest is not."""
    logits = np.full((2, 256), -3e38, np.float32)
    logits[:, 7] = 3e38
    found = masked_bytes(executor, logits, np.full(2, 7, np.uint8))
    assert found.loss == 0
    assert np.isfinite(found.gradient).all()
