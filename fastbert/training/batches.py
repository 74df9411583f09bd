"""The micro-batches of a pre-training run: their preparation in the background, and their parts of a step's loss.

The loss of an optimiser step is a sum over its micro-batches, so that splitting a batch changes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastbert.data.pretraining import PretrainingData
from fastbert.models.electra.pretraining import DISCRIMINATOR_WEIGHT
from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch

STEPS_AHEAD = 4  # whose tokens are fetched while a step is prepared, where shards are streamed
LABEL_SAMPLES = 64  # samples in memory while their labels are counted


class PretrainingBatches:
    """Batches of `PretrainingData`; both methods are pure functions of their arguments."""

    def __init__(self, train: PretrainingData, validation: PretrainingData) -> None:
        self.train, self.validation = train, validation

    def training_step(self, step: int, batch_size: int, micro_batch: int) -> list[PackedBatch]:
        """Return the micro-batches of an optimiser step, counted from 0."""
        first, end = step * batch_size, (step + 1) * batch_size
        self.train.read_ahead(range(first, end + STEPS_AHEAD * batch_size))
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

    def validation_labels(self, samples: int, vocab_size: int) -> NDArray[np.int64]:
        """Return how often each id is a masked token of these samples, int64 (vocab_size,)."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for batch in self.validation_batches(samples, LABEL_SAMPLES):
            if batch.labels is not None:
                counts += np.bincount(batch.labels.numpy(), minlength=vocab_size)
        return counts


@contextlib.contextmanager
def prefetch(load: Callable[[int], list[Any]]) -> Iterator[Prefetcher]:
    """Yield a function like `load` that prepares the next step's batches in the background."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fastbert-data") as pool:
        yield Prefetcher(load, pool)


class Prefetcher:
    """Return the batches of a step from `load`, and prepare those of the next one on a thread of `pool`."""

    def __init__(self, load: Callable[[int], list[Any]], pool: ThreadPoolExecutor) -> None:
        self._load, self._pool = load, pool
        self._pending: dict[int, Future[list[Any]]] = {}
        self.seconds_waited = 0.0
        """Time for which callers waited, that of the first call aside: the compute had nothing to do."""
        self._is_first = True

    def __call__(self, step: int) -> list[Any]:
        began = time.perf_counter()
        batches = (self._pending.pop(step, None) or self._pool.submit(self._load, step)).result()
        if not self._is_first:
            self.seconds_waited += time.perf_counter() - began
        self._is_first = False
        self._pending[step + 1] = self._pool.submit(self._load, step + 1)
        return batches


def micro_batch_loss(
    output: PreTrainingOutput,
    per_prediction: Tensor | float,
    per_sequence: Tensor | float,
    per_token: Tensor | float = 0.0,
) -> Tensor:
    """Return a micro-batch's part of its step's loss: its sums of losses times the weights of `loss_weights`, that of a
    discriminator `DISCRIMINATOR_WEIGHT` times."""
    assert output.mlm_loss_sum is not None
    loss = output.mlm_loss_sum * per_prediction
    if output.nsp_loss_sum is not None:
        loss = loss + output.nsp_loss_sum * per_sequence
    detection: Tensor | None = getattr(output, "rtd_loss_sum", None)
    return loss if detection is None else loss + detection * (DISCRIMINATOR_WEIGHT * per_token)


def loss_weights(batches: Sequence[PackedBatch]) -> tuple[float, float, float]:
    """Return 1 / the masked predictions, 1 / the sequences and 1 / the tokens of a step's micro-batches."""
    masked = sum(0 if batch.labels is None else len(batch.labels) for batch in batches)
    counts = (masked, sum(len(batch) for batch in batches), sum(batch.num_tokens for batch in batches))
    predictions, sequences, tokens = (1 / max(count, 1) for count in counts)
    return predictions, sequences, tokens


def micro_batch_shares(batches: Sequence[PackedBatch]) -> list[tuple[float, float]]:
    """Return each micro-batch's shares of its step's tokens, and of its pairs of tokens that attend to each other."""
    tokens = [batch.num_tokens for batch in batches]
    pairs = [int(batch.cu_seqlens.diff().long().square().sum()) for batch in batches]
    return [(a / max(sum(tokens), 1), b / max(sum(pairs), 1)) for a, b in zip(tokens, pairs, strict=True)]
