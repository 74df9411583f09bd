"""The loss of an optimiser step as a sum over its micro-batches, with or without a teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from fastbert.models.heads.pretraining import ForPreTraining
from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch
from fastbert.training.batches import loss_weights, micro_batch_loss, micro_batch_shares

DistillationLoss = Callable[..., tuple[Tensor, PreTrainingOutput]]
"""(model, micro-batch, weights of predictions and of sequences, shares) -> the micro-batch's part of its step's loss,
and the model's output."""


@dataclass(frozen=True)
class Part:
    """How a micro-batch counts in its step: the weights of `loss_weights` and the shares of `micro_batch_shares`."""

    weights: tuple[float, float, float]
    shares: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class StepLoss:
    """The loss of a model's micro-batches."""

    model: ForPreTraining
    distillation: DistillationLoss | None = None

    def parts(self, batches: Sequence[PackedBatch]) -> list[Part]:
        """Return the part of each micro-batch, on the host; shares are read by a teacher's loss only."""
        weights = loss_weights(batches)
        if self.distillation is None:
            return [Part(weights)] * len(batches)
        return [Part(weights, shares) for shares in micro_batch_shares(batches)]

    def __call__(self, batch: PackedBatch, part: Part) -> tuple[Tensor, PreTrainingOutput]:
        """Return a micro-batch's part of its step's loss, and the model's output."""
        if self.distillation is not None:
            return self.distillation(self.model, batch, *part.weights[:2], part.shares)
        output = self.model(batch)
        return micro_batch_loss(output, *part.weights), output
