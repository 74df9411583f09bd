"""Padded batches, the form that other encoders than fastbert's read. Imports only numpy."""

from __future__ import annotations

import numpy as np

from fastbert.benchmarks.peers import Arrays


def padded(arrays: Arrays) -> dict[str, np.ndarray]:
    """Return `input_ids` and `attention_mask`, int64 (sequences, padded length), padded at the end with id 0."""
    lengths, width = arrays["lengths"], int(arrays["padded_to"])
    real = np.arange(width) < lengths[:, None]
    ids = np.zeros(real.shape, np.int64)
    ids[real] = arrays["input_ids"]
    return {"input_ids": ids, "attention_mask": real.astype(np.int64)}


def real_tokens(hidden: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
    """Return the rows of (sequences, length, width) that belong to real tokens: fp32 (tokens, width)."""
    return np.asarray(hidden[attention_mask.astype(bool)], np.float32)
