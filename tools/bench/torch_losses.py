"""This library's losses over PyTorch's tensors on the GPU, and PyTorch's own masked bytes: a line of JSON each.

    python -m tools.bench.torch_losses

InfoNCE over N pairs of width 512 in bfloat16: two modalities, edges both ways, each row against the other modality.
"Extra" memory is what the GPU has less of during the calls than before them, the gradient included. Needs PyTorch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import uform
from tools.bench.losses import MASKED_COLUMNS, MASKED_WIDTH, PAIRS, WIDTH

CLASSES, REPEATS = 256, 7


def lowest_free(run: Callable[[], object]) -> int:
    """The least free memory of the GPU while `run` goes on."""
    ended, lowest = threading.Event(), torch.cuda.mem_get_info()[0]

    def watch() -> None:
        nonlocal lowest
        while not ended.is_set():
            lowest = min(lowest, torch.cuda.mem_get_info()[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    ended.set()
    watcher.join()
    return int(lowest)


def median_ms(run: Callable[[], object]) -> float:
    """By CUDA events on the default stream, before the call and after it."""
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))


def contrastive(executor: uform.Executor, pairs: int) -> dict[str, Any]:
    """`uform.losses.contrastive` over device memory; says so where it takes none."""
    bags = 2 * pairs
    vectors = torch.nn.functional.normalize(torch.randn(bags, WIDTH, device="cuda"), dim=-1).to(torch.bfloat16)
    # As bytes: a list of as many enumerations would be the slowest part of the call.
    modalities: Any = np.repeat(np.array([uform.Modality.IMAGE, uform.Modality.TEXT], np.uint8), pairs)
    edges = (np.arange(bags + 1, dtype=np.uint64), ((np.arange(bags) + pairs) % bags).astype(np.uint32))
    form = uform.Contrastive(ambient_scope=uform.AmbientScope.CROSS_MODAL, inverse_temperature=20.0)

    def run() -> Any:
        relations = uform.Relations(attract=edges)
        return uform.losses.contrastive(executor, vectors, relations=relations, contrastive=form, modalities=modalities)

    title = f"uform.losses InfoNCE N={pairs}"
    try:
        run()
    except TypeError as refusal:
        return {"loss": title, "refused": str(refusal)}
    free = torch.cuda.mem_get_info()[0]
    extra = free - lowest_free(run)
    return {"loss": title, "pairs": pairs, "ms": median_ms(run), "extra_gib": extra / 2**30}


def masked_bytes() -> dict[str, Any]:
    """Covered bytes guessed through a tied table, forward and backward, compiled."""
    rows = torch.randn(MASKED_COLUMNS, MASKED_WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    table = (0.02 * torch.randn(CLASSES, MASKED_WIDTH, device="cuda")).requires_grad_()
    targets = torch.randint(0, CLASSES, (MASKED_COLUMNS,), device="cuda")

    def loss(given: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy((given @ weights.to(given.dtype).T).float(), targets)

    compiled = torch.compile(loss)

    def run() -> None:
        rows.grad = table.grad = None
        compiled(rows, table).backward()

    for _ in range(3):
        run()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ms = median_ms(run)
    extra = torch.cuda.max_memory_allocated() - before
    return {"peer": "masked bytes compiled", "ms": ms, "extra_gib": extra / 2**30}


def main() -> int:
    """Prints every line."""
    torch.manual_seed(0)
    executor = uform.Executor.for_vram([0])
    for pairs in PAIRS:
        print(json.dumps(contrastive(executor, pairs)), flush=True)
    print(json.dumps(masked_bytes()), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
