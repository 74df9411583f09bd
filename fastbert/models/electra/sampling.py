"""Samples from a softmax that are a function of keys and positions: the tokens with which ELECTRA's generator replaces
masked ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.models.heads.prediction import VocabularyHead
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.reference import philox
from fastbert.packing import PackedBatch

_BLOCK = 256  # tokens of the vocabulary per block
_ELEMENTS = 1 << 24  # logits in memory at once


def uniform_draws(batch: PackedBatch, key: Tensor, tokens: Tensor) -> Tensor:
    """Return a number between 0 and 1 per token of `tokens`, int64 (rows,): float64 (rows,).

    It is a function of the key of the token's sequence, `key` int64 (sequences,), and of the token's position there,
    not of the batch: the 53 highest bits of a Philox block with a counter of its own.
    """
    sequence_ids, offsets = (
        batch.sequence_ids.index_select(0, tokens),
        batch.offsets_in_sequence.index_select(0, tokens),
    )
    zero = torch.zeros_like(offsets)
    high, low, _, _ = philox((zero, offsets, zero, Site.GENERATED_TOKEN.of_layer(0)), key.index_select(0, sequence_ids))
    return ((high << 21 | low >> 11).double() + 0.5) * 2.0**-53


def sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return a sample of each softmax over logits (rows, vocabulary): int64 (rows,).

    A sample is the inverse of the distribution function at `uniform`, float64 (rows,). Its sums are float64 and formed
    by matmuls, first over blocks of the vocabulary and then inside of one, which are deterministic on every device.
    """
    rows, size = logits.shape
    probabilities = logits.float().softmax(-1)
    blocks = F.pad(probabilities, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    ends = _cumulated(blocks.sum(-1, dtype=torch.float64))
    target = uniform * ends[:, -1]
    block = _first_above(ends, target)
    target = target - F.pad(ends, (1, 0)).gather(1, block[:, None])[:, 0]
    inside = blocks.gather(1, block[:, None, None].expand(-1, 1, _BLOCK))[:, 0].double()
    return (block * _BLOCK + _first_above(_cumulated(inside), target)).clamp(max=size - 1)


def sample_tokens(head: VocabularyHead, x: Tensor, uniform: Tensor) -> Tensor:
    """Return a token of the head's softmax for each of the hidden states x (rows, hidden_size): int64 (rows,).

    Logits are computed for some rows at a time, so that few are in memory.
    """
    step = max(1, _ELEMENTS // head.decoder.out_features)
    parts = [sample(head(x[rows]), uniform[rows]) for rows in _slices(len(x), step)]
    return torch.cat(parts) if parts else uniform.new_zeros(0, dtype=torch.int64)


def _slices(count: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, count, step))


def _cumulated(values: Tensor) -> Tensor:
    """Return the sums of each row of values (rows, columns) up to and including each column."""
    columns = values.shape[1]
    return values @ torch.ones(columns, columns, dtype=values.dtype, device=values.device).triu()


def _first_above(sums: Tensor, target: Tensor) -> Tensor:
    """Return the first column of each row whose sum is above the row's target, int64 (rows,); the last if none is."""
    return (sums <= target[:, None]).sum(1).clamp(max=sums.shape[1] - 1)
