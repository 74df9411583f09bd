"""Baselines: the scores of predictions that need no model, by a task's own scorer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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


def scored(score: Scorer, dataset: Dataset[Any], key: str, name: str, field: str, values: Sequence[Any]) -> Baseline:
    """Return the baseline that predicts the given value, under `field`, for each example."""
    predictions = [{"id": example.id, field: value} for example, value in zip(dataset, values, strict=True)]
    with unlogged():
        return Baseline(key, name, score(dataset, predictions))
