"""Which items each step reads: an epoch's order, split over hosts and into batches.

The order is a pure function of the count, the seed and the epoch, so nothing about it needs to be saved: a run that
goes on says how many batches it has read. Items are sorted by their keys, ties by their ids, and the keys are the raw
words of `numpy.random.Philox(key=[seed, epoch])`: Philox4x64-10, its counter from 1 on. NumPy promises these words for
good, as it does not for `shuffle`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import count as count_from
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

# uint32 where every id fits, else uint64.
Ids: TypeAlias = NDArray[np.unsignedinteger[Any]]

_WORDS = 1 << 64
_MOST = 1 << 60  # so many words, of 8 bytes, are what an address reaches


def order(
    count: SupportsIndex,
    /,
    *,
    epoch: SupportsIndex,
    seed: SupportsIndex = 0,
    host_domain_index: SupportsIndex = 0,
    host_domain_count: SupportsIndex = 1,
) -> Ids:
    """A host's share of the ids `0 .. count - 1` in the order of one epoch.

    The shares of all hosts, one behind the other, are the order of one host: every id is in exactly one of them, and
    their lengths differ by at most one.

    Args:
        count: items in the data set.
        epoch: which pass over the data this is; there is no default, so that it can not be forgotten.
        seed: another seed gives other orders.
        host_domain_index: which host asks, as `MeshOptions` has it.
        host_domain_count: hosts in the run.

    Raises:
        TypeError, ValueError: a value is no int, or out of range; the message names it.
    """
    items = _within("count", count, 0, _MOST)
    keys = (_within("seed", seed, 0, _WORDS), _within("epoch", epoch, 0, _WORDS))
    host, hosts = _hosts(host_domain_index, host_domain_count)
    return _share(_whole_order(items, *keys), host, hosts)


def batches(
    count: SupportsIndex,
    /,
    *,
    size: SupportsIndex,
    step: SupportsIndex = 0,
    seed: SupportsIndex = 0,
    host_domain_index: SupportsIndex = 0,
    host_domain_count: SupportsIndex = 1,
) -> Iterator[Ids]:
    """A host's ids for each step from `step` on, epoch after epoch without end.

    `size` items of the epoch's order make the whole world's batch of a step, of which each host takes its share. The
    last batch of an epoch is as short as what is left, so that no item comes twice in a batch or is left out; a share
    may be empty. As shares lie one behind the other in the order of the hosts, a step sees the same items in the same
    order however many hosts share it. A run may therefore go on with another number of hosts, but not of `size`.

    Args:
        count: items in the data set, at least one.
        size: items in a step, those of all hosts together.
        step: batches read before. A run that goes on gives `trainer.describe()["step"]`, and adds the steps that were
            refused for their numbers, which the trainer does not count.
        seed: as in `order`.
        host_domain_index: as in `order`.
        host_domain_count: as in `order`.

    Raises:
        ValueError: a value is out of range; the message names it.
    """
    items, many = _within("count", count, 1, _MOST), _within("size", size, 1, _WORDS)
    read, word = _within("step", step, 0, _WORDS), _within("seed", seed, 0, _WORDS)
    host, hosts = _hosts(host_domain_index, host_domain_count)
    epoch, skipped = divmod(read, -(-items // many))  # batches in an epoch, rounded up

    def every_batch() -> Iterator[Ids]:
        for current in count_from(epoch):
            ids = _whole_order(items, word, current)
            for begin in range(skipped * many if current == epoch else 0, items, many):
                yield _share(ids[begin : begin + many], host, hosts)

    return every_batch()


def _whole_order(count: int, seed: int, epoch: int) -> Ids:
    keys = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(count)
    return np.argsort(keys, kind="stable").astype(np.uint32 if count <= 1 << 32 else np.uint64)


def _share(ids: Ids, host: int, hosts: int) -> Ids:
    return ids[len(ids) * host // hosts : len(ids) * (host + 1) // hosts].copy()


def _hosts(index: SupportsIndex, count: SupportsIndex) -> tuple[int, int]:
    hosts = _within("host_domain_count", count, 1, _WORDS)
    return _within("host_domain_index", index, 0, hosts), hosts


def _within(name: str, value: SupportsIndex, low: int, end: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}: expected an int")
    number = operator.index(value)
    if not low <= number < end:
        shown = number if abs(number) < _WORDS**2 else f"an int of {number.bit_length()} bits"
        raise ValueError(f"{name} is {shown}: expected at least {low} and less than {end}")
    return number
