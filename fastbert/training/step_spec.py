"""What an optimiser step is made of: its samples, its learning rate, and what schedules give it.

A step is a pure function of the run's flags, its shards, its seed and its number, so that a resumed run, and one with
another number of processes, takes the same steps. In a run by the clock (--hours) the finished fraction of the run is
one more input, which RUN/schedule.jsonl stores for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastbert.packing import PackedBatch

Cursor = tuple[int, ...]
"""The number of samples drawn so far, per phase of the run."""


@dataclass
class Position:
    """Where a run stands after its last step."""

    cursor: Cursor
    step: int = 0
    """The number of steps taken."""
    tokens: int = 0
    """Tokens of all steps."""
    seconds: float = 0.0
    """Seconds of training."""

    def take(self, loaded: LoadedStep) -> None:
        """Count a step that was taken."""
        self.step, self.cursor = loaded.spec.number, loaded.spec.after
        self.tokens += round(loaded.counts.tokens)


@dataclass(frozen=True)
class StepSpec:
    """An optimiser step before its batches are made."""

    number: int
    """From 1."""
    progress: float
    """The finished fraction of the run in the middle of the step."""
    samples: range
    """The counters of its samples in the data of its phase, over all processes."""
    after: Cursor
    """The samples drawn when the step is done."""
    phase: int = 0
    mask_prob: float | None = None
    """The fraction of tokens that are masked; None: that of the data."""
    learning_rate: float = 0.0


@dataclass(frozen=True)
class StepCounts:
    """Counts of a step's micro-batches, by which their losses are weighted: over all processes, so that a sum of
    gradients over micro-batches and processes is the gradient of the step's mean loss."""

    predictions: float = 0.0
    sequences: float = 0.0
    tokens: float = 0.0
    pairs: float = 0.0
    """Pairs of tokens that attend to each other; 0 where no loss is weighted by them."""

    @classmethod
    def of(cls, batches: Sequence[PackedBatch], *, pairs: bool = False) -> StepCounts:
        """Count the micro-batches of one process, on the host; with `pairs`, those of tokens too."""
        return cls(
            sum(0 if batch.labels is None else len(batch.labels) for batch in batches),
            sum(len(batch) for batch in batches),
            sum(batch.num_tokens for batch in batches),
            sum(int(batch.cu_seqlens.diff().long().square().sum()) for batch in batches) if pairs else 0,
        )

    @property
    def weights(self) -> tuple[float, float, float]:
        """Return 1 / predictions, 1 / sequences and 1 / tokens."""
        predictions, sequences, tokens = (1 / max(n, 1) for n in (self.predictions, self.sequences, self.tokens))
        return predictions, sequences, tokens

    def shares(self, batch: PackedBatch) -> tuple[float, float]:
        """Return a micro-batch's shares of the step's tokens, and of its pairs of tokens."""
        pairs = int(batch.cu_seqlens.diff().long().square().sum())
        return batch.num_tokens / max(self.tokens, 1), pairs / max(self.pairs, 1)


@dataclass
class LoadedStep:
    """A step with the micro-batches of this process, ready to be computed."""

    spec: StepSpec
    batches: list[Any]
    """`PackedBatch`, or `FilledBatch` for CUDA graphs."""
    counts: StepCounts = field(default_factory=StepCounts)
    passes: int = 0
    """The most micro-batches that one of several processes has."""


class StepSource(Protocol):
    """The data of a run; all methods are pure functions of their arguments."""

    @property
    def start(self) -> Cursor:
        """Return the cursor of a run that has taken no step."""

    def spec(self, number: int, cursor: Cursor, progress: float) -> StepSpec:
        """Return a step, without its learning rate."""

    def batches(self, spec: StepSpec, micro_batch: int, rank: int, size: int) -> list[PackedBatch]:
        """Return the micro-batches of one of `size` processes."""

    def validation_batches(
        self, samples: int, micro_batch: int, progress: float = 1.0, rank: int = 0, size: int = 1
    ) -> list[PackedBatch]:
        """Return one process's part of the first `samples` samples of the validation split."""
