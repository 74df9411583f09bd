"""The order of training examples and their dropout keys, as functions of seed, epoch and example."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of `count` examples in an epoch, counted from 0: int64 (count,)."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)


def dropout_keys(units: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return a dropout key per example, int64: splitmix64 of seed, epoch and example."""
    with np.errstate(over="ignore"):
        start = _mixed(_mixed(np.array([seed], dtype=np.uint64)) + np.uint64(epoch))
        return _mixed(start + units.astype(np.uint64)).view(np.int64)


def _mixed(x: np.ndarray) -> np.ndarray:
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def steps_of(count: int, batch_size: int, epochs: float | None, steps: int | None) -> tuple[int, int]:
    """Return the optimiser steps per epoch, whose last batch may be smaller, and in total: `epochs` or `steps`,
    whichever ends first, of those that are not None."""
    per_epoch = math.ceil(count / batch_size)
    limits = [steps, None if epochs is None else math.ceil(round(per_epoch * epochs, 6))]
    return per_epoch, min(limit for limit in limits if limit is not None)


def batches(count: int, batch_size: int, seed: int, first: int, total: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the epoch and the examples of each step from `first` to `total` - 1."""
    per_epoch = math.ceil(count / batch_size)
    order, order_epoch = np.empty(0, dtype=np.int64), -1
    for step in range(first, total):
        epoch, batch = divmod(step, per_epoch)
        if epoch != order_epoch:
            order, order_epoch = permutation(count, seed, epoch), epoch
        yield epoch, order[batch * batch_size : (batch + 1) * batch_size]
