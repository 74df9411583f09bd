"""Arithmetic of runs of tokens that lie end to end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def bounds(sizes: np.ndarray) -> np.ndarray:
    """Return the offsets of runs of these sizes, and the end of the last: int64 (runs + 1,)."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def runs(begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the token indices of runs, one run after the other: `begins[0]`, `begins[0] + 1`, ... int64."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - sizes), sizes)


def by_length(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Yield the numbers of runs, longest first, in groups of at most `batch_tokens` tokens; a longer run stands
    alone."""
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    first = done = 0
    while first < len(order):
        last = max(first + 1, int(np.searchsorted(ends, done + batch_tokens, side="right")))
        yield order[first:last]
        first, done = last, int(ends[last - 1])
