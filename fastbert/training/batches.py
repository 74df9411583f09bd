"""The micro-batches of a pre-training run, and their preparation in the background."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from fastbert.data.pretraining import PretrainingData
from fastbert.packing import PackedBatch


class Batches(Protocol):
    """A source of batches; both methods are pure functions of their arguments."""

    def training_step(self, step: int, batch_size: int, micro_batch: int) -> list[PackedBatch]:
        """Return the micro-batches of an optimiser step, counted from 0."""

    def validation_batches(self, samples: int, micro_batch: int) -> list[PackedBatch]:
        """Return the same held-out sequences every time, at most `samples` of them."""


class PretrainingBatches:
    """Batches of `PretrainingData`."""

    def __init__(self, train: PretrainingData, validation: PretrainingData) -> None:
        self.train, self.validation = train, validation

    def training_step(self, step: int, batch_size: int, micro_batch: int) -> list[PackedBatch]:
        """Return the micro-batches of an optimiser step, counted from 0."""
        first, end = step * batch_size, (step + 1) * batch_size
        return [
            self.train.samples(range(start, min(start + micro_batch, end))) for start in range(first, end, micro_batch)
        ]

    def validation_batches(self, samples: int, micro_batch: int) -> list[PackedBatch]:
        """Return the first `samples` samples of the validation split, or all where it has fewer."""
        indices = np.arange(min(samples, self.validation.samples_per_epoch(0)))
        return [
            self.validation.batch(0, indices[start : start + micro_batch])
            for start in range(0, len(indices), micro_batch)
        ]


@contextlib.contextmanager
def prefetch(load: Callable[[int], list[Any]]) -> Iterator[Callable[[int], list[Any]]]:
    """Yield a function like `load` that prepares the next step's batches in the background."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fastbert-data") as pool:
        pending: dict[int, Future[list[Any]]] = {}

        def fetch(step: int) -> list[Any]:
            batches = (pending.pop(step, None) or pool.submit(load, step)).result()
            pending[step + 1] = pool.submit(load, step + 1)
            return batches

        yield fetch
