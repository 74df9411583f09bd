"""The micro-batches of a pre-training run: their preparation in the background, and their parts of a step's loss.

The loss of an optimiser step is a sum over its micro-batches, so that splitting a batch changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastbert.data.pretraining import PretrainingData
from fastbert.models.electra.pretraining import DISCRIMINATOR_WEIGHT
from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch
from fastbert.training.schedules import ScheduledValue
from fastbert.training.step_spec import Cursor, LoadedStep, StepSpec

STEPS_AHEAD = 4  # whose tokens are fetched while a step is prepared, where shards are streamed
LABEL_SAMPLES = 64  # samples in memory while their labels are counted


@dataclass(frozen=True)
class Phase:
    """A part of a run with sequences of one length, up to the finished fraction `end` of the run."""

    end: float
    train: PretrainingData
    validation: PretrainingData


class PretrainingBatches:
    """The steps of a pre-training run, over the samples of `PretrainingData`; see `StepSource`.

    Samples are numbered over all epochs of a phase. With `size` processes, process r has samples r, r + size, ... of a
    step, so that the step is the same for every number of processes.
    """

    def __init__(
        self, phases: Sequence[Phase], *, batch_size: ScheduledValue, mask_prob: ScheduledValue | None = None
    ) -> None:
        """`batch_size` is in sequences per step; `mask_prob` None: that of the phases' data."""
        self.phases, self.batch_size, self.mask_prob = tuple(phases), batch_size, mask_prob

    @property
    def train(self) -> PretrainingData:
        """Return the training data of the first phase."""
        return self.phases[0].train

    @property
    def start(self) -> Cursor:
        """Return the cursor of a run that has taken no step."""
        return (0,) * len(self.phases)

    def spec(self, number: int, cursor: Cursor, progress: float) -> StepSpec:
        """Return step `number`, from 1, at the finished fraction `progress` of the run."""
        phase = self._phase(progress)
        first = cursor[phase]
        samples = range(first, first + max(round(self.batch_size.at(progress)), 1))
        after = (*cursor[:phase], samples.stop, *cursor[phase + 1 :])
        mask_prob = None if self.mask_prob is None else self.mask_prob.at(progress)
        return StepSpec(number, progress, samples, after, phase, mask_prob)

    def batches(self, spec: StepSpec, micro_batch: int, rank: int = 0, size: int = 1) -> list[PackedBatch]:
        """Return the micro-batches of process `rank` of `size`; longer sequences of a later phase have smaller ones."""
        data = self.phases[spec.phase].train
        mine = spec.samples[rank::size]
        step = self._scaled(micro_batch, spec.phase)
        first, count = spec.samples.start, len(spec.samples)
        for start in range(first, first + (1 + STEPS_AHEAD) * count, count):
            data.read_ahead(range(start, start + count)[rank::size])
        options = {} if spec.mask_prob is None else {"mask_prob": spec.mask_prob}
        return [data.samples(mine[start : start + step], **options) for start in range(0, len(mine), step)]

    def validation_batches(
        self, samples: int, micro_batch: int, progress: float = 1.0, rank: int = 0, size: int = 1
    ) -> list[PackedBatch]:
        """Return one process's part of the first `samples` samples of the validation split of the phase at `progress`,
        or of all where it has fewer."""
        phase = self._phase(progress)
        data = self.phases[phase].validation
        indices = np.arange(min(samples, data.samples_per_epoch(0)))[rank::size]
        step = self._scaled(micro_batch, phase)
        return [data.batch(0, indices[start : start + step]) for start in range(0, len(indices), step)]

    def validation_labels(self, samples: int, vocab_size: int) -> NDArray[np.int64]:
        """Return how often each id is a masked token of these samples of the last phase, int64 (vocab_size,)."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for batch in self.validation_batches(samples, LABEL_SAMPLES):
            if batch.labels is not None:
                counts += np.bincount(batch.labels.numpy(), minlength=vocab_size)
        return counts

    def _phase(self, progress: float) -> int:
        """Return the index of the phase at the finished fraction `progress` of the run."""
        return next((index for index, phase in enumerate(self.phases) if progress < phase.end), len(self.phases) - 1)

    def _scaled(self, micro_batch: int, phase: int) -> int:
        """Return the sequences of a phase with about as many tokens as `micro_batch` of the first."""
        return max(micro_batch * self.train.max_length // self.phases[phase].train.max_length, 1)


class Prefetcher:
    """Prepares the next step's batches in the background."""

    def __init__(self, load: Callable[[StepSpec], LoadedStep]) -> None:
        self._load = load
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fastbert-data")
        self._pending: Future[LoadedStep] | None = None
        self.waited = 0.0
        """Seconds that the run has waited for batches."""

    def __enter__(self) -> Prefetcher:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the background thread, after what it is preparing."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, spec: StepSpec) -> None:
        """Begin to prepare a step, the one that the next call of `result` returns."""
        self._pending = self._pool.submit(self._load, spec)

    def result(self) -> LoadedStep:
        """Return the submitted step, once it is ready."""
        assert self._pending is not None
        started = time.perf_counter()
        loaded = self._pending.result()
        self.waited += time.perf_counter() - started
        return loaded


def micro_batch_loss(
    output: PreTrainingOutput,
    per_prediction: Tensor | float,
    per_sequence: Tensor | float,
    per_token: Tensor | float = 0.0,
) -> Tensor:
    """Return a micro-batch's part of its step's loss: its sums of losses times the weights of `StepCounts`, that of a
    discriminator `DISCRIMINATOR_WEIGHT` times."""
    assert output.mlm_loss_sum is not None
    loss = output.mlm_loss_sum * per_prediction
    if output.nsp_loss_sum is not None:
        loss = loss + output.nsp_loss_sum * per_sequence
    detection: Tensor | None = getattr(output, "rtd_loss_sum", None)
    return loss if detection is None else loss + detection * (DISCRIMINATOR_WEIGHT * per_token)
