"""The micro-batches of a pre-training run: their preparation in the background, and their parts of a step's loss.

The loss of an optimiser step is a sum over its micro-batches, so that splitting a batch changes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
from torch import Tensor

from fastbert.data.pretraining import PretrainingData
from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch


class PretrainingBatches:
    """Batches of `PretrainingData`; both methods are pure functions of their arguments."""

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
    """Yield a function like `load` that prepares the next step's batches in the background.

    The end of the block waits for the batches in preparation, except after a KeyboardInterrupt: planning an epoch of a
    large corpus takes seconds.
    """
    requests: SimpleQueue[tuple[int, Future[list[Any]]] | None] = SimpleQueue()
    pending: dict[int, Future[list[Any]]] = {}

    def prepare() -> None:
        while (request := requests.get()) is not None:
            step, batches = request
            try:
                batches.set_result(load(step))
            except BaseException as error:  # noqa: BLE001  (raised in the caller's thread)
                batches.set_exception(error)

    def submit(step: int) -> None:
        pending[step] = Future()
        requests.put((step, pending[step]))

    def fetch(step: int) -> list[Any]:
        if step not in pending:
            submit(step)
        batches = pending.pop(step).result()
        submit(step + 1)
        return batches

    thread = Thread(target=prepare, name="fastbert-data", daemon=True)
    thread.start()
    atexit.register(_end_process, thread)
    interrupted = False
    try:
        yield fetch
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        requests.put(None)
        if not interrupted:
            thread.join()


def _end_process(thread: Thread) -> None:
    """End the process if the thread is still in native code, which must not return to an interpreter that is gone."""
    if thread.is_alive():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + signal.SIGINT)


def micro_batch_loss(output: PreTrainingOutput, per_prediction: Tensor | float, per_sequence: Tensor | float) -> Tensor:
    """Return a micro-batch's part of its step's loss: its sums of losses times the weights of `loss_weights`."""
    assert output.mlm_loss_sum is not None
    loss = output.mlm_loss_sum * per_prediction
    return loss if output.nsp_loss_sum is None else loss + output.nsp_loss_sum * per_sequence


def loss_weights(batches: Sequence[PackedBatch]) -> tuple[float, float]:
    """Return 1 / the masked predictions and 1 / the sequences of a step's micro-batches."""
    masked = sum(0 if batch.labels is None else len(batch.labels) for batch in batches)
    return 1 / max(masked, 1), 1 / max(sum(len(batch) for batch in batches), 1)


def micro_batch_shares(batches: Sequence[PackedBatch]) -> list[tuple[float, float]]:
    """Return each micro-batch's shares of its step's tokens, and of its pairs of tokens that attend to each other."""
    tokens = [batch.num_tokens for batch in batches]
    pairs = [int(batch.cu_seqlens.diff().long().square().sum()) for batch in batches]
    return [(a / max(sum(tokens), 1), b / max(sum(pairs), 1)) for a, b in zip(tokens, pairs, strict=True)]
