"""Probabilities of classes from a model's logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def class_probabilities(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the softmax of logits (examples, classes) of any floating dtype, float64 (examples, classes)."""
    logits = logits.astype(np.float64)
    powers = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
    probabilities: NDArray[np.float64] = powers / powers.sum(-1, keepdims=True)
    return probabilities


def label_probabilities(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the sigmoid of logits (examples, classes) of any floating dtype and size, float64 (examples, classes)."""
    probabilities: NDArray[np.float64] = 0.5 + 0.5 * np.tanh(0.5 * logits.astype(np.float64))
    return probabilities
