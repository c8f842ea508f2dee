"""The losses as functions over arrays on a GPU: taken where they lie, answered there, as RAM has them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import uform
from tests.gpu.memory import least_lost
from uform import AmbientScope, LateInteractionSide, Modality, PairLossForm
from uform.losses import MaskedLoss, PairLoss, contrastive, masked_bytes

ITEMS, WIDTH = 96, 64
FORMS = [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID]


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def vectors(items: int = ITEMS, width: int = WIDTH, seed: int = 7) -> Any:
    values = np.random.default_rng(seed).normal(size=(items, width)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def partners(items: int = ITEMS) -> uform.Relations:
    """Item `i` and item `items / 2 + i` attract each other; the last two items attract none."""
    half = items // 2
    counted = [place for place in range(items) if place % half != half - 1]
    offsets = np.concatenate([[0], np.cumsum([place in counted for place in range(items)])])
    return uform.Relations(attract=(offsets.astype(np.uint64), [(place + half) % items for place in counted]))


def options(form: PairLossForm, scope: AmbientScope = AmbientScope.EVERY, **fields: Any) -> dict[str, Any]:
    return {
        "relations": partners(),
        "contrastive": uform.Contrastive(pair_loss=form, ambient_scope=scope, temperature_groups=2, **fields),
        "modalities": [Modality.TEXT] * (ITEMS // 2) + [Modality.IMAGE] * (ITEMS // 2),
        "sides": [LateInteractionSide.QUERY, LateInteractionSide.DOCUMENT] * (ITEMS // 2),
        "temperature_groups": [place % 2 for place in range(ITEMS)],
    }


def seen(torch: Any, buffer: Any) -> Any:
    """A buffer's values as NumPy has them, whichever their type."""
    return torch.from_dlpack(buffer).float().cpu().numpy()


def distance(left: Any, right: Any) -> float:
    return float(np.linalg.norm(left - right) / max(float(np.linalg.norm(right)), 1e-30))


@pytest.mark.parametrize("prefixes", [None, [16, 64]])
@pytest.mark.parametrize("scope", list(AmbientScope))
@pytest.mark.parametrize("form", FORMS)
def test_contrastive_is_that_of_ram(
    form: PairLossForm, scope: AmbientScope, prefixes: Any, gpu: uform.Executor, ram: uform.Executor, torch: Any
) -> None:
    asked = options(form, scope, matryoshka_dimensions=prefixes)
    given = torch.from_numpy(vectors()).cuda()
    there, here = contrastive(gpu, given, **asked), contrastive(ram, vectors(), **asked)
    assert isinstance(there, PairLoss)
    assert there.loss == pytest.approx(here.loss, rel=1e-3)
    np.testing.assert_array_equal(there.rows, here.rows)
    for name in ("gradient", "log_inverse_temperature_gradient", "bias_gradient", "row_losses"):
        on_gpu, in_ram = getattr(there, name), getattr(here, name)
        assert (on_gpu.device, on_gpu.scalar, on_gpu.shape) == ("vram:0", uform.Scalar.FLOAT32, in_ram.shape)
        assert distance(seen(torch, on_gpu), in_ram) < (1e-3 if name == "row_losses" else 2e-2)
    np.testing.assert_array_equal(given.cpu().numpy(), vectors())


def test_the_same_loss_twice_gives_the_same_bits(gpu: uform.Executor, torch: Any) -> None:
    given = torch.from_numpy(vectors()).cuda()
    first, second = (contrastive(gpu, given, **options(PairLossForm.BALANCED)) for _ in range(2))
    assert first.loss == second.loss
    np.testing.assert_array_equal(first.gradient.numpy(), second.gradient.numpy())


def test_bfloat16_is_answered_in_bfloat16(gpu: uform.Executor, torch: Any) -> None:
    given = torch.from_numpy(vectors()).cuda().bfloat16()
    asked = options(PairLossForm.BALANCED)
    narrow, wide = contrastive(gpu, given, **asked), contrastive(gpu, given.float(), **asked)
    assert narrow.loss == wide.loss
    assert narrow.gradient.scalar is uform.Scalar.BFLOAT16
    assert torch.equal(torch.from_dlpack(narrow.gradient), torch.from_dlpack(wide.gradient).bfloat16())
    assert narrow.row_losses.scalar is uform.Scalar.FLOAT32
    np.testing.assert_array_equal(narrow.row_losses.numpy(), wide.row_losses.numpy())


def test_DST_05_strided_vectors_are_as_good(gpu: uform.Executor, torch: Any) -> None:
    dense = torch.from_numpy(vectors()).cuda()
    asked = options(PairLossForm.BALANCED)
    for values in (dense, dense.bfloat16()):
        expected = contrastive(gpu, values, **asked)
        wide = torch.zeros(ITEMS, 3 * WIDTH, device="cuda", dtype=values.dtype)
        wide[:, 1 : 1 + 2 * WIDTH : 2] = values
        shifted = torch.zeros(ITEMS * WIDTH + 1, device="cuda", dtype=values.dtype)
        shifted[1:] = values.reshape(-1)
        for given in (wide[:, 1 : 1 + 2 * WIDTH : 2], values.T.contiguous().T, shifted[1:].view(ITEMS, WIDTH)):
            found = contrastive(gpu, given, **asked)
            assert found.loss == expected.loss
            np.testing.assert_array_equal(found.gradient.numpy(), expected.gradient.numpy())
    one = dense[:1].expand(ITEMS, WIDTH)
    assert one.stride() == (0, 1)
    assert contrastive(gpu, one, **asked).loss == contrastive(gpu, one.contiguous(), **asked).loss
    flat = dense.new_full((1, 1), 0.125).expand(ITEMS, WIDTH)
    assert flat.stride() == (0, 0)
    assert contrastive(gpu, flat, **asked).loss == contrastive(gpu, flat.contiguous(), **asked).loss


def test_arenas_buffers_are_taken(gpu: uform.Executor) -> None:
    trainer = uform.Trainer.init_vram(
        gpu, depth=1, hidden=64, batch=uform.BatchShape(max_rows_per_device=2, max_columns_per_row=64)
    )
    texts = [Modality.TEXT] * 4
    pairs = uform.Relations(attract=([0, 1, 2, 3, 4], [1, 0, 3, 2]))
    answers: list[Any] = [
        trainer.step(texts, ["one", "two", "six", "ten"], arena=uform.Arena.for_vram(), outputs_scalar=scalar)
        for scalar in (uform.Scalar.FLOAT32, uform.Scalar.BFLOAT16, uform.Scalar.FLOAT16)
    ]
    found = contrastive(gpu, answers[0], relations=pairs)
    assert found.gradient.shape == (4, 64)
    assert found.gradient.numpy().any()
    assert contrastive(gpu, answers[1], relations=pairs).gradient.scalar is uform.Scalar.BFLOAT16
    with pytest.raises(TypeError, match="embeddings has the dtype float16: expected float32 or bfloat16"):
        contrastive(gpu, answers[2], relations=pairs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_stream_that_writes_late_is_waited_for(gpu: uform.Executor, torch: Any, dtype: str) -> None:
    good = torch.from_numpy(vectors()).cuda().to(getattr(torch, dtype))
    asked = options(PairLossForm.BALANCED)
    expected = contrastive(gpu, good, **asked)
    given, side = torch.zeros_like(good), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        given.copy_(good)
        found = contrastive(gpu, given, **asked)
    assert found.loss == expected.loss
    np.testing.assert_array_equal(found.gradient.numpy(), expected.gradient.numpy())


def test_masked_bytes_wait_for_a_stream(gpu: uform.Executor, torch: Any) -> None:
    good = torch.randn(33, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    bytes_of = (torch.arange(33, device="cuda") * 7 % 256).to(torch.uint8)
    expected = masked_bytes(gpu, good, bytes_of)
    logits, targets, side = torch.zeros_like(good), torch.zeros_like(bytes_of), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        logits.copy_(good)
        targets.copy_(bytes_of)
        found = masked_bytes(gpu, logits, targets)
    assert found.loss == expected.loss
    np.testing.assert_array_equal(found.gradient.numpy(), expected.gradient.numpy())


@pytest.mark.parametrize("rows", [0, 1, 3, 1000])
def test_masked_bytes_are_those_of_torch_and_ram(
    rows: int, gpu: uform.Executor, ram: uform.Executor, torch: Any
) -> None:
    rng = np.random.default_rng(rows)
    logits, targets = rng.normal(size=(rows, 256)).astype(np.float32), rng.integers(0, 256, rows).astype(np.uint8)
    there = masked_bytes(gpu, torch.from_numpy(logits).cuda(), torch.from_numpy(targets).cuda())
    here = masked_bytes(ram, logits, targets)
    assert isinstance(there, MaskedLoss)
    assert (there.gradient.device, there.gradient.shape) == ("vram:0", (rows, 256))
    assert there.loss == pytest.approx(here.loss, rel=1e-6)
    np.testing.assert_allclose(there.gradient.numpy(), here.gradient, rtol=1e-4, atol=1e-9)
    if rows:
        expected = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(targets).long())
        assert there.loss == pytest.approx(float(expected), rel=1e-5)


def test_masked_bytes_of_bfloat16_and_strides(gpu: uform.Executor, torch: Any) -> None:
    wide = torch.randn(40, 600, device="cuda", generator=torch.Generator("cuda").manual_seed(5))
    targets = (torch.arange(40, device="cuda") * 11 % 256).to(torch.uint8)
    for given in (wide[:, 3 : 3 + 512 : 2], wide[:, :256].bfloat16(), wide.bfloat16()[:, 1:257]):
        found, expected = masked_bytes(gpu, given, targets), masked_bytes(gpu, given.float().contiguous(), targets)
        assert found.loss == expected.loss
        assert torch.equal(torch.from_dlpack(found.gradient), torch.from_dlpack(expected.gradient).to(given.dtype))


def test_no_items(gpu: uform.Executor, torch: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        found = contrastive(gpu, torch.zeros(0, 8, device="cuda", dtype=dtype), relations=None)
        assert (found.loss, found.gradient.shape, found.row_losses.shape) == (0, (0, 8), (0,))
        assert found.log_inverse_temperature_gradient.numpy().tolist() == [0]


def test_results_outlive_all_that_made_them(torch: Any) -> None:
    executor = uform.Executor.for_vram([0])
    given = torch.from_numpy(vectors()).cuda()
    found = contrastive(executor, given, **options(PairLossForm.BALANCED))
    expected, tensor = found.gradient.numpy(), torch.from_dlpack(found.gradient)
    del executor, given, found
    gc.collect()
    torch.cuda.empty_cache()
    np.testing.assert_array_equal(tensor.cpu().numpy(), expected)


@pytest.mark.alone
def test_what_was_taken_is_let_go_of(gpu: uform.Executor, torch: Any) -> None:
    asked = options(PairLossForm.BALANCED)
    given = torch.from_numpy(vectors()).cuda()
    contrastive(gpu, given, **asked)
    gc.collect()  # what tests before this one left in cycles is none of its own
    held = torch.cuda.memory_allocated()

    def again() -> None:
        for _ in range(20):
            contrastive(gpu, given.clone(), **asked)
            masked_bytes(gpu, torch.zeros(8, 256, device="cuda"), torch.zeros(8, device="cuda", dtype=torch.uint8))
            spoilt = given.clone()
            spoilt[3, 3] = torch.nan
            with pytest.raises(ValueError, match="not finite"):
                contrastive(gpu, spoilt, **asked)
        del spoilt
        gc.collect()

    assert least_lost(again) < 4 << 20
    assert torch.cuda.memory_allocated() == held


def test_a_training_loop_in_torch_goes_through_it(gpu: uform.Executor, torch: Any) -> None:
    class Loss(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, embeddings: Any) -> Any:
            found = contrastive(gpu, embeddings.detach(), **options(PairLossForm.BALANCED))
            context.save_for_backward(torch.from_dlpack(found.gradient))
            return embeddings.new_tensor(found.loss)

        @staticmethod
        def backward(context: Any, upstream: Any) -> Any:
            return upstream * context.saved_tensors[0]

    weights = torch.from_numpy(vectors()).cuda().requires_grad_()
    optimizer = torch.optim.SGD([weights], lr=5.0)
    losses = []
    for _ in range(20):
        loss = Loss.apply(torch.nn.functional.normalize(weights, dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8", "bool"])
def test_other_types_are_refused_by_name(gpu: uform.Executor, torch: Any, dtype: str) -> None:
    given = torch.zeros(4, 8, device="cuda").to(getattr(torch, dtype))
    with pytest.raises(TypeError, match=f"embeddings has the dtype {dtype}.*: expected float32 or bfloat16"):
        contrastive(gpu, given, relations=None)
    with pytest.raises(TypeError, match=f"logits has the dtype {dtype}.*: expected float32 or bfloat16"):
        masked_bytes(gpu, given, torch.zeros(4, device="cuda", dtype=torch.uint8))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_its_item(gpu: uform.Executor, torch: Any, wrong: float, dtype: str) -> None:
    given = torch.from_numpy(vectors()).cuda().to(getattr(torch, dtype))
    given[5, 9] = given[70, 0] = wrong
    with pytest.raises(ValueError, match=rf"embeddings\[5\] is not finite: it has {wrong} in column 9"):
        contrastive(gpu, given, **options(PairLossForm.BALANCED))
    logits = torch.zeros(3, 256, device="cuda", dtype=given.dtype)
    logits[1, 7] = wrong
    with pytest.raises(ValueError, match=rf"logits\[1\] is not finite: it has {wrong} in column 7"):
        masked_bytes(gpu, logits, torch.zeros(3, device="cuda", dtype=torch.uint8))


def test_arrays_elsewhere_are_refused(gpu: uform.Executor, ram: uform.Executor, torch: Any) -> None:
    there, here = torch.zeros(4, 256, device="cuda"), np.zeros((4, 256), np.float32)
    for given in (here, torch.zeros(4, 256), torch.zeros(4, 256).pin_memory()):
        with pytest.raises(ValueError, match=r"embeddings lies on ram: expected an array on .* GPUs, \[0\]"):
            contrastive(gpu, given, relations=None)
        with pytest.raises(ValueError, match=r"logits lies on ram: expected an array on"):
            masked_bytes(gpu, given, np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match=r"targets lies on ram: expected an array on"):
        masked_bytes(gpu, there, np.zeros(4, np.uint8))
    with pytest.raises(TypeError, match="embeddings is of type list: expected an array with __dlpack__"):
        contrastive(gpu, [[1.0]], relations=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="embeddings lies on vram:0, and the executor computes in RAM"):
        contrastive(ram, there, relations=None)
    with pytest.raises(ValueError, match="targets lies on vram:0, and the executor computes in RAM"):
        masked_bytes(ram, here, torch.zeros(4, device="cuda", dtype=torch.uint8))
    assert contrastive(ram, torch.from_numpy(vectors()), **options(PairLossForm.BALANCED)).loss > 0


def test_shapes_are_checked(gpu: uform.Executor, torch: Any) -> None:
    bytes_of = torch.zeros(2, device="cuda", dtype=torch.uint8)
    with pytest.raises(ValueError, match="embeddings has 1 axes: expected 2"):
        contrastive(gpu, torch.zeros(4, device="cuda"), relations=None)
    with pytest.raises(ValueError, match=r"embeddings has the shape \(4, 0\): expected at least one column"):
        contrastive(gpu, torch.zeros(4, 0, device="cuda"), relations=None)
    with pytest.raises(ValueError, match=r"logits has the shape \(2, 255\): expected 256 columns"):
        masked_bytes(gpu, torch.zeros(2, 255, device="cuda"), bytes_of)
    with pytest.raises(ValueError, match="targets has 2 entries: expected 3, one a row of logits"):
        masked_bytes(gpu, torch.zeros(3, 256, device="cuda"), bytes_of)
    with pytest.raises(ValueError, match="targets has 2 axes: expected 1"):
        masked_bytes(gpu, torch.zeros(2, 256, device="cuda"), bytes_of[:, None])
    with pytest.raises(TypeError, match="targets has the dtype int64: expected uint8"):
        masked_bytes(gpu, torch.zeros(2, 256, device="cuda"), bytes_of.long())
    with pytest.raises(ValueError, match="targets has the stride 2: expected its bytes end to end"):
        masked_bytes(gpu, torch.zeros(2, 256, device="cuda"), torch.zeros(4, device="cuda", dtype=torch.uint8)[::2])


def test_tensors_that_require_gradients_say_so(gpu: uform.Executor, torch: Any) -> None:
    with pytest.raises(BufferError, match="require"):
        contrastive(gpu, torch.zeros(4, 8, device="cuda", requires_grad=True), relations=None)


def test_wrong_arguments_are_refused_before_any_work(gpu: uform.Executor, torch: Any) -> None:
    given = torch.from_numpy(vectors()).cuda()
    with pytest.raises(ValueError, match=r"relations\.attract\.offsets"):
        contrastive(gpu, given, relations=uform.Relations(attract=([0, 1], [0])))
    with pytest.raises(ValueError, match="modalities is None"):
        contrastive(
            gpu,
            given,
            relations=partners(),
            contrastive=uform.Contrastive(ambient_scope=AmbientScope.CROSS_MODAL),
        )
    assert contrastive(gpu, given, **options(PairLossForm.BALANCED)).loss > 0
