"""From the vectors of tokens to one vector a text, with the same bits in every batch.

Sums are taken token by token, and norms by halving the width: no order depends on how many texts are at hand, as that
of torch's own sums does.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError

POOLINGS = ("cls", "mean", "max")
SMALLEST_NORM = 1e-12  # vectors below it are divided by it, as in torch.nn.functional.normalize


def check_pooling(pooling: str) -> None:
    """Refuse what is no way to pool."""
    if pooling not in POOLINGS:
        raise UserError(f"pooling={pooling!r} must be {', '.join(map(repr, POOLINGS[:-1]))} or {POOLINGS[-1]!r}")


def pool(vectors: Tensor, offsets: Tensor, pooling: str) -> Tensor:
    """vectors (tokens, width) of any floating dtype -> fp32 (rows, width): the sum of each row's vectors, or with "max"
    their maximum.

    offsets int64 (rows + 1,): row i has `vectors[offsets[i] : offsets[i + 1]]`, at least one. A NaN makes its row NaN.
    """
    vectors = vectors.float()
    if pooling == "max":
        return torch.segment_reduce(vectors, "max", offsets=offsets)
    # A bag is summed in the order of its indices, whatever the other bags are.
    index = torch.arange(len(vectors), device=vectors.device)
    return F.embedding_bag(index, vectors, offsets[:-1], mode="sum")


def normalized(vectors: Tensor) -> Tensor:
    """vectors fp32 (rows, width), each divided by its Euclidean norm, or by 1e-12 where that is larger."""
    squares = vectors.double().square()
    while (width := squares.shape[1]) > 1:
        half = width // 2
        halves = squares[:, :half] + squares[:, half : 2 * half]
        squares = torch.cat((halves, squares[:, 2 * half :]), dim=1)
    return vectors / squares.sqrt().clamp(min=SMALLEST_NORM).to(vectors.dtype)
