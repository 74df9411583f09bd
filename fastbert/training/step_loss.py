"""The loss of an optimiser step as a sum over its micro-batches, with or without a teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch
from fastbert.training.batches import micro_batch_loss
from fastbert.training.step_spec import StepCounts

DistillationLoss = Callable[..., tuple[Tensor, PreTrainingOutput]]
"""(model, micro-batch, weights of predictions and of sequences, shares) -> the micro-batch's part of its step's loss,
and the model's output."""


@dataclass(frozen=True)
class Part:
    """How a micro-batch counts in its step: the weights and shares of `StepCounts`."""

    weights: tuple[float, float, float]
    shares: tuple[float, float] = (1.0, 1.0)


class StepLoss(nn.Module):
    """The loss of a model's micro-batches, with or without a teacher."""

    def __init__(self, model: Any, distillation: DistillationLoss | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.distillation = distillation

    def counts(self, batches: Sequence[PackedBatch]) -> StepCounts:
        """Count what the losses of a step's micro-batches are weighted by."""
        return StepCounts.of(batches, pairs=self.distillation is not None)

    def parts(self, batches: Sequence[PackedBatch], counts: StepCounts | None = None) -> list[Part]:
        """Return the part of each micro-batch, on the host, in a step with these counts, by default their own; shares
        are read by a teacher's loss only."""
        counts = self.counts(batches) if counts is None else counts
        if self.distillation is None:
            return [Part(counts.weights)] * len(batches)
        return [Part(counts.weights, counts.shares(batch)) for batch in batches]

    def forward(self, batch: PackedBatch, part: Part) -> tuple[Tensor, PreTrainingOutput]:
        """Return a micro-batch's part of its step's loss, and the model's output."""
        if self.distillation is not None:
            return self.distillation(self.model, batch, *part.weights[:2], part.shares)
        output = self.model(batch)
        return micro_batch_loss(output, *part.weights), output
