"""Arithmetic of runs of tokens that lie end to end: where each begins, and which tokens they are."""

from __future__ import annotations

import numpy as np


def bounds(sizes: np.ndarray) -> np.ndarray:
    """Where runs of these sizes begin and, last, where they end: int64, one more than there are runs."""
    found = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def runs(begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The tokens of runs, one run behind the other: `begins[0]`, `begins[0] + 1`, ... int64."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - sizes), sizes)
