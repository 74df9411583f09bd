"""Baselines: the scores of predictions that need no model, by a task's own scorer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fastbert.io.log import logger
from fastbert.tasks.examples import Dataset, Prediction
from fastbert.tasks.reports.report import Baseline

Scorer = Callable[[Dataset[Any], Sequence[Prediction]], dict[str, float]]


@contextmanager
def unlogged() -> Iterator[None]:
    """Drop what a scorer logs about the gold labels, which has been logged once."""

    def drop(record: object) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def frequency_loss(
    labels: np.ndarray, weights: np.ndarray | None = None, *, smoothing: float = 0.0, classes: int = 0
) -> float:
    """Return the mean cross-entropy of predicting the frequencies of the `labels`, int64 (labels,), in nats: their
    entropy. With `weights` (labels,) both the mean and the frequencies are weighted. With label `smoothing` each label
    is spread over all of the `classes`, and so is the prediction."""
    counts = np.bincount(labels, weights, minlength=classes).astype(np.float64)
    if smoothing:
        counts = counts * (1 - smoothing) + counts.sum() * smoothing / len(counts)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum()) + 0.0  # without the sign of zero


def label_set_loss(labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the mean binary cross-entropy of predicting the frequency of each label, in nats: the mean of the labels'
    entropies. `labels` are 0 and 1, (examples, labels); `weights` (examples, labels) multiply the terms of a mean over
    the number of terms."""
    weights = np.ones_like(labels) if weights is None else weights
    terms = [
        column_weights.sum(dtype=np.float64) * frequency_loss(column.astype(np.int64), column_weights)
        for column, column_weights in zip(labels.T, weights.T)
    ]
    return float(sum(terms)) / labels.size


def scored(score: Scorer, dataset: Dataset[Any], key: str, name: str, field: str, values: Sequence[Any]) -> Baseline:
    """Return the baseline that predicts the given value, under `field`, for each example."""
    predictions = [{"id": example.id, field: value} for example, value in zip(dataset, values, strict=True)]
    with unlogged():
        return Baseline(key, name, score(dataset, predictions))
