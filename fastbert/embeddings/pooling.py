"""Pack rows of tokens, and pool their vectors into one vector per text, with the same bits in every batch.

Sums run token by token, and norms halve the width: unlike in torch's own sums, no order depends on the number of texts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert import _C
from fastbert.embeddings.rows import Rows
from fastbert.errors import UserError
from fastbert.packing import PackedBatch
from fastbert.tasks.rows import bounds, runs

POOLINGS = ("cls", "mean", "max")
SMALLEST_NORM = 1e-12  # smaller norms are replaced by it, as in torch.nn.functional.normalize


def check_pooling(pooling: str) -> None:
    """Raise UserError for an unknown pooling."""
    if pooling not in POOLINGS:
        raise UserError(f"pooling={pooling!r} must be {', '.join(map(repr, POOLINGS[:-1]))} or {POOLINGS[-1]!r}")


def pool(vectors: Tensor, offsets: Tensor, pooling: str) -> Tensor:
    """Compute the sum of each row's vectors, or with "max" their maximum: (tokens, width) of any floating dtype -> fp32
    (rows, width).

    offsets int64 (rows + 1,): row i has `vectors[offsets[i] : offsets[i + 1]]`, at least one. A NaN makes its row NaN.
    """
    vectors = vectors.float()
    if pooling == "max":
        return torch.segment_reduce(vectors, "max", offsets=offsets)
    # A bag is summed in the order of its indices, independently of the other bags.
    index = torch.arange(len(vectors), device=vectors.device)
    return F.embedding_bag(index, vectors, offsets[:-1], mode="sum")


def normalized(vectors: Tensor) -> Tensor:
    """Divide each vector, fp32 (rows, width), by its Euclidean norm, or by 1e-12 if that is larger."""
    if vectors.device.type == "cpu" and vectors.dtype == torch.float32 and not vectors.requires_grad:
        vectors = vectors.contiguous()
        result = torch.empty_like(vectors)
        rows, width = vectors.shape
        _C.unit_rows(vectors.data_ptr(), rows, width, SMALLEST_NORM, result.data_ptr())
        return result
    squares = vectors.double().square()
    while (width := squares.shape[1]) > 1:
        half = width // 2
        halves = squares[:, :half] + squares[:, half : 2 * half]
        squares = torch.cat((halves, squares[:, 2 * half :]), dim=1)
    return vectors / squares.sqrt().clamp(min=SMALLEST_NORM).to(vectors.dtype)


def packed(rows: Rows, indices: np.ndarray) -> PackedBatch:
    """Return the rows of these indices as one batch, with the special tokens of their template."""
    lengths = rows.lengths[indices]
    offsets = bounds(lengths)
    sequences = np.repeat(np.arange(len(indices)), lengths)
    # A row's special tokens lie in `ids` too, or are other tokens if it was cut: they are overwritten.
    ids = rows.ids[runs(rows.begins[indices] - len(rows.template.before), lengths)].astype(np.int64)
    rows.template.write(ids, offsets)
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
    begins = bounds(lengths)[:-1] + rows.firsts[indices]
    return torch.from_numpy(runs(begins, counts)), torch.from_numpy(offsets)
