"""Packed batches of an embedder's rows, and the tokens in them that count."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastbert.embeddings.rows import Rows
from fastbert.packing import PackedBatch
from fastbert.tasks.rows import bounds, runs


def packed(rows: Rows, indices: np.ndarray, cls: int, sep: int) -> PackedBatch:
    """Return the rows of these indices as one batch, between [CLS] and [SEP]."""
    lengths = rows.lengths[indices]
    offsets = bounds(lengths)
    sequences = np.repeat(np.arange(len(indices)), lengths)
    # A row's special tokens lie in `ids` too, or are other tokens if it was cut: they are overwritten.
    ids = rows.ids[runs(rows.begins[indices] - 1, lengths)].astype(np.int64)
    ids[offsets[:-1]], ids[offsets[1:] - 1] = cls, sep
    return PackedBatch(
        input_ids=torch.from_numpy(ids),
        cu_seqlens=torch.from_numpy(offsets.astype(np.int32)),
        max_seqlen=int(lengths.max()),
        position_ids=torch.from_numpy(np.arange(offsets[-1]) - offsets[sequences]),
        sequence_ids=torch.from_numpy(sequences),
    )


def counted_tokens(rows: Rows, indices: np.ndarray) -> tuple[Tensor | None, Tensor]:
    """Return the tokens that count in a batch of the rows of these indices, int64, None for all; and the offsets of
    each row's among them, int64 (rows + 1,)."""
    lengths, counts = rows.lengths[indices], (rows.ends - rows.firsts)[indices]
    offsets = bounds(counts)
    if (counts == lengths).all():
        return None, torch.from_numpy(offsets)
    begins = np.cumsum(lengths) - lengths + rows.firsts[indices]
    return torch.from_numpy(runs(begins, counts)), torch.from_numpy(offsets)
