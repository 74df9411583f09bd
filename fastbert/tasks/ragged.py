"""Arithmetic of runs of tokens that lie end to end."""

from __future__ import annotations

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
