"""The losses of `uform.losses` as PyTorch's own: tensors in, a scalar out, and gradients by `backward`.

PyTorch is imported when a loss is first asked for; nothing else of this package needs it. Tensors on a GPU are read and
answered there, on an executor of that GPU; tensors in RAM on one of RAM.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from uform import losses
from uform._ext.config import Contrastive, LateInteraction
from uform._ext.enums import PairLossForm
from uform._ext.executor import Executor

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["contrastive", "late_interaction", "masked_bytes"]

# A configuration's bias of 0 derives; by this magnitude, which it takes for 0, a learned bias of 0 says that it is one.
_TRUE_ZERO = -1e-30

_FIELDS = {kind: tuple(inspect.signature(kind).parameters) for kind in (Contrastive, LateInteraction)}


@dataclasses.dataclass(frozen=True)
class _Answer:
    """A loss and what it is differentiated by, in the order of the function's tensors."""

    loss: float
    gradients: tuple[Any, ...]


def contrastive(
    executor: Executor,
    embeddings: Tensor,
    /,
    *,
    inverse_temperature: Tensor | None = None,
    bias: Tensor | None = None,
    contrastive: Contrastive | None = None,
    **given: Any,
) -> Tensor:
    """`uform.losses.contrastive` of a tensor `[bags, width]`, as a scalar tensor that can be differentiated.

    Args:
        executor: where to compute: of the tensor's GPU, or of RAM.
        embeddings: float32, on a GPU also bfloat16.
        inverse_temperature: a learned scalar in the place of the configuration's, between 1 and 100, for SIGMOID 1000;
            one temperature group. It may lie on another device.
        bias: a learned scalar in the place of the configuration's, whatever its value; one temperature group. A form
            left to derive becomes SIGMOID, which alone reads it.
        contrastive: the rest of the configuration.
        given: `relations`, `modalities`, `sides`, `temperature_groups`, as for `uform.losses.contrastive`.

    Raises:
        ValueError, TypeError: as `uform.losses.contrastive` does, and where a learned scalar meets several groups, or
            a bias a form other than SIGMOID.
    """
    _check_tensor(embeddings, "embeddings")
    own = _learned(contrastive or Contrastive(), inverse_temperature, bias)

    def compute(values: Any) -> _Answer:
        found = losses.contrastive(executor, values, contrastive=own, **given)
        return _answer(found, inverse_temperature, bias)

    return _apply(compute, embeddings, inverse_temperature, bias)


def late_interaction(
    executor: Executor,
    tokens: Tensor,
    offsets: Any,
    /,
    *,
    inverse_temperature: Tensor | None = None,
    bias: Tensor | None = None,
    late_interaction: LateInteraction | None = None,
    **given: Any,
) -> Tensor:
    """`uform.losses.late_interaction` of token vectors `[tokens, width]`, as a scalar tensor.

    Args:
        executor: where to compute: of the tensor's GPU, or of RAM.
        tokens: float32, on a GPU also bfloat16.
        offsets: where each item's tokens begin, and the end, on the host.
        inverse_temperature: a learned scalar in the place of the configuration's, bounded likewise.
        bias: a learned scalar in the place of the configuration's, whatever its value. A form left to derive becomes
            SIGMOID, which alone reads it.
        late_interaction: the rest of the configuration.
        given: `sides`, `relations`, `contrastive`, `modalities`, as for `uform.losses.late_interaction`.

    Raises:
        ValueError, TypeError: as `uform.losses.late_interaction` does, and where a bias meets a form other than
            SIGMOID.
    """
    _check_tensor(tokens, "tokens")
    own = _learned(late_interaction or LateInteraction(), inverse_temperature, bias)

    def compute(values: Any) -> _Answer:
        found = losses.late_interaction(executor, values, offsets, late_interaction=own, **given)
        return _answer(found, inverse_temperature, bias)

    return _apply(compute, tokens, inverse_temperature, bias)


def masked_bytes(executor: Executor, logits: Tensor, targets: Tensor, /) -> Tensor:
    """`uform.losses.masked_bytes` of logits `[rows, 256]` and bytes uint8 `[rows]`, as a scalar tensor.

    Raises:
        ValueError, TypeError: as `uform.losses.masked_bytes` does.
    """
    _check_tensor(logits, "logits")
    _check_tensor(targets, "targets")
    own = _readable(targets)

    def compute(values: Any) -> _Answer:
        found = losses.masked_bytes(executor, values, own)
        return _Answer(found.loss, (found.gradient,))

    return _apply(compute, logits)


def _learned(options: Any, inverse_temperature: Tensor | None, bias: Tensor | None) -> Any:
    """The configuration with the learned scalars' values."""
    fields = {}
    for name, learned in (("inverse_temperature", inverse_temperature), ("bias", bias)):
        if learned is None:
            continue
        _check_tensor(learned, name)
        if learned.numel() != 1:
            raise ValueError(f"{name} has the shape {tuple(learned.shape)}: expected one number")
        if getattr(options, "temperature_groups", 0) > 1:
            raise ValueError(f"{name} is one number, and temperature_groups is {options.temperature_groups}")
        fields[name] = learned.item()
    if "bias" in fields and options.pair_loss in (PairLossForm.BALANCED, PairLossForm.RANKED):
        raise ValueError(f"bias is {fields['bias']}: nothing reads it, since pair_loss is {options.pair_loss.name}")
    if fields.get("bias") == 0:
        fields["bias"] = _TRUE_ZERO
    if fields.get("inverse_temperature", 1.0) <= 0:
        raise ValueError(f"inverse_temperature is {fields['inverse_temperature']}: expected more than 0")
    if not fields:
        return options
    return type(options)(**{name: fields.get(name, getattr(options, name)) for name in _FIELDS[type(options)]})


def _check_tensor(given: Any, name: str) -> None:
    import torch

    if not isinstance(given, torch.Tensor):
        raise TypeError(f"{name} is of type {type(given).__name__}: expected a torch.Tensor")


def _answer(found: Any, inverse_temperature: Tensor | None, bias: Tensor | None) -> _Answer:
    """A pair loss with the gradients that its tensors ask for: by the scale itself, not by its logarithm."""
    gradients = [found.gradient]
    if inverse_temperature is not None:
        gradients.append(_tensor(found.log_inverse_temperature_gradient)[0] / inverse_temperature.item())
    if bias is not None:
        gradients.append(_tensor(found.bias_gradient)[0])
    return _Answer(found.loss, tuple(gradients))


def _readable(tensor: Tensor) -> Any:
    """What the losses take: the tensor itself on a GPU, its memory as an array in RAM."""
    import torch

    own = tensor.detach()
    return own if own.is_cuda or own.dtype == torch.bfloat16 else own.contiguous().numpy()  # NumPy has no bfloat16


def _tensor(values: Any) -> Tensor:
    import torch

    return values if isinstance(values, torch.Tensor) else torch.from_dlpack(values)


def _apply(compute: Callable[[Any], _Answer], values: Tensor, *learned: Tensor | None) -> Tensor:
    loss: Tensor = _function().apply(compute, values, *(one for one in learned if one is not None))
    return loss


def _make_function() -> Any:
    """What PyTorch differentiates; made when it is first asked for, as its base is PyTorch's."""
    import torch

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, compute: Callable[[Any], _Answer], *tensors: Tensor) -> Tensor:
            answer = compute(_readable(tensors[0]))
            context.save_for_backward(*map(_tensor, answer.gradients))
            context.like = [(tensor.shape, tensor.device, tensor.dtype) for tensor in tensors]
            return tensors[0].new_tensor(answer.loss, dtype=torch.float32)

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(context: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
            scaled: Sequence[Tensor] = [upstream * gradient for gradient in context.saved_tensors]
            # A learned scalar may lie elsewhere than the vectors, and be of another type.
            return None, *(
                one.reshape(shape).to(device, dtype)
                for one, (shape, device, dtype) in zip(scaled, context.like, strict=True)
            )

    return Loss


_function = functools.cache(_make_function)
