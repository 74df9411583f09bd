"""The losses of pre-training on held-out text: masked LM and next-sentence prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fastbert.data.pretraining import PAIRED, PretrainingData
from fastbert.embeddings.embed import inferring
from fastbert.errors import UserError
from fastbert.models.finite import refuse_non_finite
from fastbert.models.fusibility import project
from fastbert.models.heads.pretraining import MaskedLanguageModel
from fastbert.ops.cross_entropy.op import CrossEntropy
from fastbert.packing import PackedBatch
from fastbert.scoring.tokenized_texts import Progress
from fastbert.tasks.rows import tokens_per_batch


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A loss on held-out text."""

    loss: float
    """Mean cross-entropy in nats."""
    accuracy: float
    """Share of correct predictions, in per cent."""
    predictions: int
    """Masked tokens, or pairs."""
    samples: int
    """Sequences."""
    tokens: int
    """Tokens of the sequences, special ones included."""

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.exp(min(self.loss, 700.0))


def masked_lm(
    model: MaskedLanguageModel,
    data: PretrainingData,
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> HeldOut:
    """Return the masked-LM loss and accuracy of a model on all samples of epoch 0, without dropout.

    The masks follow from the seed of `data` and a sample's number, so every model gets the same. Raises `UserError` for
    samples longer than the model's positions, and for a loss that is not finite.
    """

    def loss(batch: PackedBatch) -> CrossEntropy:
        assert batch.masked_positions is not None
        assert batch.labels is not None
        x, _ = model.base_model.encode(batch, token_indices=batch.masked_positions)
        return model.cls.predictions.loss(x, batch.labels)

    return _evaluate(model, data, loss, batch_tokens, progress)


def next_sentence(
    model: Any, data: PretrainingData, batch_tokens: int | None = None, progress: Progress | None = None
) -> HeldOut:
    """Return the next-sentence loss and accuracy of a model, `ForNextSentencePrediction` or `ForPreTraining`, on all
    samples of epoch 0, half of which are followed by the next sentence; see `masked_lm`.

    Raises `UserError` for data without pairs too.
    """
    if data.objective not in PAIRED:
        raise UserError(f"objective={data.objective!r} has no pairs of segments: use {' or '.join(PAIRED)}")

    def loss(batch: PackedBatch) -> CrossEntropy:
        labels = batch.next_sentence_label
        assert labels is not None
        encoder = model.base_model
        first, _ = encoder.encode(batch, token_indices=batch.cu_seqlens[:-1].long())
        logits = project(model.cls.seq_relationship, encoder.pooler(first)).float()
        total = F.cross_entropy(logits, labels, reduction="sum")
        return CrossEntropy(total, torch.tensor(len(labels)), (logits.argmax(-1) == labels).sum())

    return _evaluate(model, data, loss, batch_tokens, progress)


def _evaluate(
    model: Any, data: PretrainingData, loss: Any, batch_tokens: int | None, progress: Progress | None
) -> HeldOut:
    """Return the mean of a loss over all samples of epoch 0."""
    limit = model.config.max_sequence_length
    if data.max_length > limit:
        raise UserError(f"max_length={data.max_length} exceeds the model's {limit} positions; choose at most {limit}")
    samples = data.samples_per_epoch(0)
    per_batch = max(1, tokens_per_batch(model.device.type, batch_tokens) // data.max_length)
    total, predictions, correct, tokens = 0.0, 0, 0, 0
    with inferring(model):
        for first in range(0, samples, per_batch):
            indices = np.arange(first, min(first + per_batch, samples))
            batch = data.batch(0, indices).to(model.device)
            result = loss(batch)
            value = float(result.loss_sum)
            if not math.isfinite(value):
                refuse_non_finite(model, f"samples {first} to {indices[-1]}")
            total, predictions = total + value, predictions + int(result.count)
            correct, tokens = correct + int(result.correct), tokens + batch.num_tokens
            if progress is not None:
                progress((int(indices[-1]) + 1) / samples)
    if not predictions:
        raise UserError(f"mask_prob={data.mask_prob}: no token is masked; raise it")
    return HeldOut(
        loss=total / predictions,
        accuracy=100.0 * correct / predictions,
        predictions=predictions,
        samples=samples,
        tokens=tokens,
    )
