"""The loss of an optimiser step as a sum over its micro-batches, so that splitting a batch changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch


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
