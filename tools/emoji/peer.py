"""The same run in PyTorch, as strong as a user would write it: packed attention, torch.compile, bfloat16, fused AdamW.

The encoder and the loss are those of this library, parameter by parameter under the same names, so that both runs begin
with the same weights. A step's pictures come first, then its names end to end; the names are padded to a fixed count of
columns, so that nothing is compiled twice. Needs PyTorch 2.9 or newer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tools.emoji.batches import Batch
from tools.emoji.data import Emojis, Pictures
from tools.emoji.recall import Vectors
from tools.emoji.recipe import Recipe

HEAD, PAIRS, BASE = 64, 32, 10_000.0
TEXT_MARKER, PICTURE_MARKER = 256, 0
EPSILON = 1e-6
EMBEDDED_AT_ONCE = 256  # pictures, or names, of an evaluation


class Packed(NamedTuple):
    """What the twin reads: pictures, then the names' columns end to end.

    Attributes:
        pictures: uint8 `[n, side, side, 3]`.
        codes: int64 `[columns]`, of the names: markers, bytes, padding.
        positions: int64 `[columns]`, 0 at markers.
        name_of: int64 `[columns]`, the names' count at padding.
        offsets: int32 `[segments + 1]`, the first columns of all pictures, names and parts of the padding, and the end.
    """

    pictures: Tensor
    codes: Tensor
    positions: Tensor
    name_of: Tensor
    offsets: Tensor


def send(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """The array on the device, where it arrives while the host goes on."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def pack(
    pictures: Pictures, names: list[str], picture_columns: int, capacity: int, longest: int, device: torch.device
) -> Packed:
    """Packs pictures and names; the padding lies in segments of at most `longest` columns."""
    encoded = [name.encode() for name in names]
    sizes = np.array([1 + len(name) for name in encoded], np.int64)
    used = int(sizes.sum())
    if used > capacity:
        raise ValueError(f"the names take {used} columns: there is room for {capacity}")
    codes, positions = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    name_of = np.full(capacity, len(names), np.int64)
    starts = np.cumsum(sizes) - sizes
    name_of[:used] = np.repeat(np.arange(len(names)), sizes)
    positions[:used] = np.arange(used) - np.repeat(starts, sizes)
    codes[:used][positions[:used] > 0] = np.frombuffer(b"".join(encoded), np.uint8)
    codes[starts] = TEXT_MARKER
    rest = np.minimum(used + longest * np.arange(1, math.ceil(capacity / longest) + 1), capacity)
    first = len(pictures) * picture_columns
    offsets = np.concatenate([picture_columns * np.arange(len(pictures)), first + starts, [first + used], first + rest])

    arrays = (pictures, codes, positions, name_of, offsets.astype(np.int32))
    return Packed(*(send(array, device) for array in arrays))


def attend(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """Attention within segments of `[columns, heads, 64]`; without a GPU by a mask, which is slow and the same."""
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        attended: Tensor = varlen_attn(
            q.contiguous(), k.contiguous(), v.contiguous(), offsets, offsets, longest, longest
        )
        return attended
    segment = torch.bucketize(torch.arange(len(q)), offsets[1:], right=True)
    mask = segment[:, None] == segment[None, :]
    q, k, v = (part.transpose(0, 1) for part in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1)


def angles(places: Tensor, pairs: int) -> Tensor:
    """`[columns, pairs]`: how much each pair turns at a place of one axis."""
    frequencies = BASE ** (-torch.arange(pairs, device=places.device) / pairs)
    return places[:, None] * frequencies[None]


def norm(x: Tensor, gain: Tensor) -> Tensor:
    """RMSNorm of rows, the gain in their own type, which the fused kernel asks for."""
    return functional.rms_norm(x, (x.shape[1],), gain.to(x.dtype), EPSILON)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns the pairs `(k, k + 32)` of `[columns, heads, 64]`."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1).to(x.dtype)


def parameter(weights: Mapping[str, NDArray[np.float32]], name: str) -> nn.Parameter:
    """A copy of one of this library's parameters."""
    return nn.Parameter(torch.tensor(weights[name]))


class Block(nn.Module):
    """One block of the encoder."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], prefix: str) -> None:
        super().__init__()
        for name in ("norm1", "qkv", "out", "norm2", "up", "down"):
            setattr(self, name, parameter(weights, prefix + name))

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, offsets: Tensor, longest: int) -> Tensor:
        """The states `[columns, hidden]` after the block."""
        heads = functional.linear(norm(x, self.norm1), self.qkv).view(len(x), 3, -1, HEAD)
        q, k, v = heads.unbind(1)
        attended = attend(rotate(q, cosine, sine), rotate(k, cosine, sine), v, offsets, longest)
        x = x + functional.linear(attended.reshape(x.shape), self.out)
        gate, up = functional.linear(norm(x, self.norm2), self.up).chunk(2, dim=-1)
        return x + functional.linear(functional.gelu(gate, approximate="tanh") * up, self.down)


class Table(nn.Module):
    """A modality's vectors, and for pictures the map of their patches."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], prefix: str, names: tuple[str, ...]) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, parameter(weights, prefix + name))


class Twin(nn.Module):
    """The encoder and the loss, with this library's weights under its names."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], patch_side: int) -> None:
        super().__init__()
        depth = sum(name.endswith(".qkv") for name in weights)
        self.patch_side = patch_side
        self.blocks = nn.ModuleList(Block(weights, f"blocks.{place}.") for place in range(depth))
        self.norm = parameter(weights, "norm")
        self.text = Table(weights, "text.", ("table",))
        self.image = Table(weights, "image.", ("table", "patch"))
        self.contrastive = Table(weights, "contrastive.", ("log_inverse_temperature",))

    def picture_columns(self, packed: Packed) -> int:
        """Columns of one picture."""
        side: int = packed.pictures.shape[1]
        return 1 + (side // self.patch_side) ** 2

    def embed_pictures(self, pictures: Tensor) -> Tensor:
        """`[n * picture_columns, hidden]`: each marker, then the patches."""
        count, side, step = len(pictures), pictures.shape[1], self.patch_side
        grid = side // step
        cut = (
            pictures.view(count, grid, step, grid, step, 3)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(count, grid * grid, step * step * 3)
        )
        patches = functional.linear(cut.float() / 127.5 - 1, self.image.patch)
        marker = self.image.table[PICTURE_MARKER].to(patches.dtype).expand(count, 1, -1)
        return torch.cat((marker, patches), dim=1).flatten(0, 1)

    def turns(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[columns, 1, 32]` of all columns: pictures have two axes, names one."""
        grid = packed.pictures.shape[1] // self.patch_side
        places = torch.arange(grid, device=packed.codes.device) + 1
        down, across = places.repeat_interleave(grid), places.repeat(grid)
        of_patches = torch.cat((angles(down, PAIRS // 2), angles(across, PAIRS // 2)), dim=1)
        of_picture = torch.cat((torch.zeros_like(of_patches[:1]), of_patches))
        turn = torch.cat((of_picture.repeat(len(packed.pictures), 1), angles(packed.positions, PAIRS)))[:, None]
        return turn.cos(), turn.sin()

    def pooled(self, packed: Packed, names: int, longest: int) -> tuple[Tensor, Tensor]:
        """Unit vectors `[n, hidden]` of the pictures and `[names, hidden]` of the names."""
        cosine, sine = self.turns(packed)
        x = torch.cat((self.embed_pictures(packed.pictures), functional.embedding(packed.codes, self.text.table)))
        if x.is_cuda:
            x = x.to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, cosine, sine, packed.offsets, longest)
        x = norm(x, self.norm).float()
        first = len(x) - len(packed.codes)
        pictures = x[:first].view(len(packed.pictures), self.picture_columns(packed), x.shape[1]).sum(1)
        sums = torch.zeros(names + 1, x.shape[1], device=x.device).index_add(0, packed.name_of, x[first:])
        return functional.normalize(pictures, dim=-1), functional.normalize(sums[:names], dim=-1)

    def forward(self, packed: Packed, ignored: Tensor, longest: int) -> Tensor:
        """The contrastive loss, a mean over pictures and names; `ignored` `[n, names]` are no pairs at all."""
        count, names = ignored.shape
        pictures, vectors = self.pooled(packed, names, longest)
        with torch.autocast(pictures.device.type, enabled=False):
            scores = self.contrastive.log_inverse_temperature.exp() * (pictures @ vectors.T)
        scores = scores.masked_fill(ignored, -math.inf)
        owners = torch.arange(names, device=scores.device) // (names // count)
        own = scores[owners, torch.arange(names, device=scores.device)]
        of_pictures = scores.logsumexp(1).sum() - own.sum() / (names // count)
        of_names = scores.logsumexp(0).sum() - own.sum()
        loss: Tensor = (of_pictures + of_names) / (count + names)
        return loss


class Peer:
    """Trains a recipe in PyTorch, from the weights that this library begins with."""

    name = "PyTorch"

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], recipe: Recipe, emojis: Emojis, device: str) -> None:
        self._recipe, self._device = recipe, torch.device(device)
        self._picture_columns = recipe.picture_columns(emojis)
        self._capacity = -(-recipe.name_columns(emojis) // 64) * 64
        self._longest = max(self._picture_columns, 1 + max(len(name.encode()) for name in emojis.all_names))
        self._twin = Twin(weights, recipe.patch_side).to(self._device)
        decayed = [one for one in self._twin.parameters() if one.ndim == 2]
        others = [one for one in self._twin.parameters() if one.ndim != 2]
        groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
        fused = self._device.type == "cuda"
        torch.set_float32_matmul_precision("high")  # of the scores alone: the rest is in bfloat16
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=EPSILON, fused=fused)
        self._loss = torch.compile(self._twin) if fused else self._twin
        self._steps = 0

    @property
    def gib(self) -> float:
        """The most memory of the GPU that PyTorch's tensors held at a time."""
        return torch.cuda.max_memory_allocated() / 2**30 if self._device.type == "cuda" else 0.0

    def warm_up(self, batch: Batch) -> None:
        """Compiles, changing nothing."""
        self._forward(batch).backward()
        self._optimizer.zero_grad(set_to_none=True)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def step(self, batch: Batch) -> None:
        """One optimizer step, which the GPU goes on with when this returns."""
        self._step(batch)

    def step_and_tell(self, batch: Batch) -> float:
        """One optimizer step; answers its loss."""
        return float(self._step(batch).item())

    def _forward(self, batch: Batch) -> Tensor:
        packed = pack(batch.pictures, batch.names, self._picture_columns, self._capacity, self._longest, self._device)
        ignored = np.zeros((len(batch.pictures), len(batch.pictures)), np.bool_)
        ignored[tuple(batch.alike.T)] = True
        alike = send(ignored, self._device).repeat_interleave(batch.names_each, 1)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            loss: Tensor = self._loss(packed, alike, self._longest)
        return loss

    def _step(self, batch: Batch) -> Tensor:
        self._steps += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.rate(self._steps)
        loss = self._forward(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self._twin.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            self._twin.contrastive.log_inverse_temperature.clamp_(0, math.log(100))
        return loss

    def embed(self, emojis: Emojis) -> tuple[Vectors, Vectors]:
        """Unit vectors of the pictures and of all names."""
        nothing = emojis.pictures[:0]
        pictures = [self._embed(emojis.pictures[at : at + EMBEDDED_AT_ONCE], [])[0] for at in _starts(len(emojis))]
        names = emojis.all_names
        vectors = [self._embed(nothing, names[at : at + EMBEDDED_AT_ONCE])[1] for at in _starts(len(names))]
        return np.concatenate(pictures), np.concatenate(vectors)

    def _embed(self, pictures: Pictures, names: list[str]) -> tuple[Vectors, Vectors]:
        columns = sum(1 + len(name.encode()) for name in names)
        longest = max([self._picture_columns, *(1 + len(name.encode()) for name in names)])
        packed = pack(pictures, names, self._picture_columns, columns, longest, self._device)
        with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=packed.codes.is_cuda):
            of_pictures, of_names = self._twin.pooled(packed, len(names), longest)
        return of_pictures.cpu().numpy(), of_names.cpu().numpy()


def _starts(count: int) -> range:
    return range(0, count, EMBEDDED_AT_ONCE)
