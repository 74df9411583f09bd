"""The micro-batches of a pre-training run: their preparation in the background, and their parts of a step's loss.

The loss of an optimiser step is a sum over its micro-batches, so that splitting a batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastbert.data.mixing import SampleData
from fastbert.data.step_samples import StepSamples
from fastbert.models.electra.pretraining import DISCRIMINATOR_WEIGHT
from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch
from fastbert.training.schedules import ScheduledValue
from fastbert.training.step_spec import Cursor, StepSpec

STEPS_AHEAD = 4  # whose tokens are fetched while a step is prepared, where shards are streamed
LABEL_SAMPLES = 64  # samples in memory while their labels are counted


@dataclass(frozen=True)
class Phase:
    """A part of a run with sequences of one length, up to the finished fraction `end` of the run."""

    end: float
    train: SampleData
    validation: SampleData


class PretrainingBatches:
    """The steps of a pre-training run, over the samples of `PretrainingData`; see `StepSource`.

    Samples are numbered over all epochs of a phase. With `size` processes, process r has samples r, r + size, ... of a
    step, so that the step is the same for every number of processes.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        *,
        batch_size: ScheduledValue,
        mask_prob: ScheduledValue | None = None,
        batch_tokens: int | None = None,
        micro_batch_tokens: int | None = None,
    ) -> None:
        """`batch_size` is in sequences per step, `batch_tokens`, instead of it, in tokens; `mask_prob` None: that of
        the phases' data; `micro_batch_tokens` takes the place of a number of sequences per micro-batch."""
        self.phases: tuple[Phase, ...] = tuple(phases)
        self.batch_size = batch_size
        self.mask_prob = mask_prob
        self.batch_tokens = batch_tokens
        self.micro_batch_tokens = micro_batch_tokens
        self._steps = [StepSamples(phase.train) for phase in phases]

    @property
    def train(self) -> SampleData:
        """Return the training data of the first phase."""
        return self.phases[0].train

    @property
    def start(self) -> Cursor:
        """Return the cursor of a run that has taken no step."""
        return (0,) * len(self.phases)

    def spec(self, number: int, cursor: Cursor, progress: float) -> StepSpec:
        """Return step `number`, from 1, at the finished fraction `progress` of the run."""
        phase = self.phase_at(progress)
        first = cursor[phase]
        if self.batch_tokens is None:
            samples = self._steps[phase].next_step(first, sequences=max(round(self.batch_size.at(progress)), 1))
        else:
            samples = self._steps[phase].next_step(first, tokens=self.batch_tokens)
        after = (*cursor[:phase], samples.stop, *cursor[phase + 1 :])
        mask_prob = None if self.mask_prob is None else self.mask_prob.at(progress)
        return StepSpec(number, progress, samples, after, phase, mask_prob)

    def batches(self, spec: StepSpec, micro_batch: int, rank: int = 0, size: int = 1) -> list[PackedBatch]:
        """Return the micro-batches of process `rank` of `size`; longer sequences of a later phase have smaller ones."""
        data, steps = self.phases[spec.phase].train, self._steps[spec.phase]
        by_tokens = self.batch_tokens is not None
        mine = steps.share(spec.samples, rank, size, by_tokens=by_tokens)
        tokens = self.micro_batch_tokens or (micro_batch * self.train.max_length if by_tokens else None)
        sequences = self._scaled(micro_batch, spec.phase) if tokens is None else None
        parts = steps.micro_batches(mine, sequences=sequences, tokens=tokens)
        data.read_ahead(mine.tolist())
        self._read_ahead(spec, rank, size)
        return [data.samples(part, mask_prob=spec.mask_prob) for part in parts]

    def _read_ahead(self, spec: StepSpec, rank: int, size: int) -> None:
        """Begin to fetch the tokens of the next steps, about, where shards are streamed."""
        data, steps = self.phases[spec.phase].train, self._steps[spec.phase]
        if data.is_local:
            return
        start = spec.samples.stop
        for _ in range(STEPS_AHEAD):
            if self.batch_tokens is None:
                samples = steps.next_step(start, sequences=len(spec.samples))
            else:
                samples = steps.next_step(start, tokens=self.batch_tokens)
            data.read_ahead(steps.share(samples, rank, size, by_tokens=self.batch_tokens is not None).tolist())
            start = samples.stop

    def steps_per_epoch(self, phase: int = 0) -> float:
        """Return the number of steps of epoch 0 of a phase; with a schedule of batch sizes, of those of its start."""
        data = self.phases[phase].train
        samples = data.samples_per_epoch(0)
        if self.batch_tokens is None:
            return samples / self.batch_size.at(0.0)
        # The last step may reach into the next epoch.
        counter = steps = 0
        while counter < samples:
            step = self._steps[phase].next_step(counter, tokens=self.batch_tokens)
            counter, steps, size = step.stop, steps + 1, len(step)
        return steps - (counter - samples) / size

    def validation_batches(
        self, samples: int, micro_batch: int, progress: float = 1.0, rank: int = 0, size: int = 1
    ) -> list[PackedBatch]:
        """Return one process's part of the first `samples` samples of the validation split of the phase at `progress`,
        or of all where it has fewer."""
        phase = self.phase_at(progress)
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

    def phase_at(self, progress: float) -> int:
        """Return the index of the phase at the finished fraction `progress` of the run."""
        return next((index for index, phase in enumerate(self.phases) if progress < phase.end), len(self.phases) - 1)

    def _scaled(self, micro_batch: int, phase: int) -> int:
        """Return the sequences of a phase with about as many tokens as `micro_batch` of the first."""
        return max(micro_batch * self.train.max_length // self.phases[phase].train.max_length, 1)


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
