"""The k largest dot products of queries with vectors, exactly, in bounded memory.

Vectors are read in blocks. On CPUs a block is prepacked once and multiplied with all queries by fastbert's own matmul,
so that a score has the same bits for any block size, number of queries and number of threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.errors import UserError, require_whole
from fastbert.ops.native import matmul

BLOCK_ROWS = 16384
"""Vectors that are multiplied at a time."""
MOST_SCORES = 1 << 24
"""Scores that are in memory at a time, unless one query has more."""

Vectors = Tensor | np.ndarray


def top_k(
    queries: Tensor,
    vectors: Vectors,
    k: int,
    *,
    excluded: Sequence[Sequence[int]] | None = None,
    block_rows: int = BLOCK_ROWS,
) -> tuple[Tensor, Tensor]:
    """Return the k largest dot products of each query, and the indices of their vectors, best first.

    queries fp32 (q, width); vectors fp32 or fp16 (n, width), a tensor or an array, which may be memory-mapped. Scores
    are fp32 (q, min(k, n)) and indices int64 of the same shape, both on the vectors' device, where all is computed;
    products and sums are fp32. Equal scores are ordered by index, the smaller first. `excluded` lists, per query, the
    indices of vectors that it must not return; a query with fewer than k others ends with scores of -inf and indices
    of -1. Memory is bounded by `block_rows`, the vectors per block, which does not change the result.

    Raises UserError for other shapes and dtypes, for a NaN or an infinity, by its row, and for products that overflow.
    """
    require_whole("k", k, 1)
    require_whole("block_rows", block_rows, 1)
    device = vectors.device if isinstance(vectors, Tensor) else torch.device("cpu")
    check_vectors("vectors", vectors, (torch.float32, torch.float16, np.dtype(np.float32), np.dtype(np.float16)))
    check_vectors("queries", queries, (torch.float32,), width=vectors.shape[1])
    check_finite("queries", queries)
    count, rows = len(queries), len(vectors)
    exclusions = None if excluded is None else _Exclusions.of(excluded, count, rows, device)
    k = min(k, rows)
    scores = torch.full((count, k), float("-inf"), device=device)
    indices = torch.full((count, k), -1, device=device)
    if not count or not k:
        return scores, indices
    with torch.no_grad():
        queries = queries.detach().to(device).contiguous()
        group = max(1, MOST_SCORES // min(block_rows, rows))
        for first, block in blocks(vectors, block_rows):
            check_finite("vectors", block, first)
            product = _Products(block)
            for begin in range(0, count, group):
                of_group = slice(begin, begin + group)
                block_scores = product(queries[of_group])
                if exclusions is not None:
                    exclusions.apply(block_scores, begin, first)
                best, columns = largest(block_scores, k)
                scores[of_group], indices[of_group] = merged(
                    scores[of_group], indices[of_group], best, columns + first, k
                )
    if exclusions is not None:
        indices[scores == float("-inf")] = -1
    _check_overflow(scores, indices)
    return scores, indices


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest scores per row and their columns, best first, equal ones by column: (rows, min(k, columns)).

    Scores must not be NaN.
    """
    columns = scores.shape[1]
    if k >= columns:
        return torch.sort(scores, dim=1, descending=True, stable=True)
    # One more than k shows where equal scores cross the boundary: torch.topk chooses among these at will.
    values, chosen = torch.topk(scores, k + 1, dim=1)
    ambiguous = torch.nonzero(values[:, k] == values[:, k - 1])[:, 0]
    chosen = chosen[:, :k]
    if len(ambiguous):
        chosen[ambiguous] = _smallest_columns(scores[ambiguous], values[ambiguous, k - 1 : k], k)
    chosen = chosen.sort(dim=1).values
    values, order = torch.sort(scores.gather(1, chosen), dim=1, descending=True, stable=True)
    return values, chosen.gather(1, order)


def merged(scores: Tensor, indices: Tensor, later: Tensor, later_indices: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of two results per row; all indices of the second are larger than those of the first."""
    values, order = torch.sort(torch.cat([scores, later], 1), dim=1, descending=True, stable=True)
    return values[:, :k], torch.cat([indices, later_indices], 1).gather(1, order[:, :k])


def blocks(vectors: Vectors, block_rows: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the vectors as fp32 tensors (block_rows, width), each with the index of its first row."""
    for first in range(0, len(vectors), block_rows):
        block = vectors[first : first + block_rows]
        if isinstance(block, Tensor):
            yield first, block.detach().float().contiguous()
        else:  # a copy, since the file of a memory-mapped array is read-only
            yield first, torch.from_numpy(np.array(block, dtype=np.float32))


def check_vectors(
    name: str, vectors: Any, dtypes: Collection[torch.dtype | np.dtype[Any]], *, width: int | None = None
) -> None:
    """Raise UserError unless `vectors` is a matrix of one of the dtypes, of torch or NumPy, and as wide as `width`."""
    tensors = any(isinstance(dtype, torch.dtype) for dtype in dtypes)
    arrays = any(isinstance(dtype, np.dtype) for dtype in dtypes)
    if not ((tensors and isinstance(vectors, Tensor)) or (arrays and isinstance(vectors, np.ndarray))):
        kinds = " or ".join(["a tensor"] * tensors + ["an array"] * arrays)
        raise UserError(f"{name} must be {kinds} (rows, width), not {type(vectors).__name__}")
    if vectors.dtype not in dtypes:
        known = " or ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise UserError(f"{name} has dtype {vectors.dtype}: it must be {known}")
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise UserError(f"{name} has shape {tuple(vectors.shape)}: it must be (rows, width)")
    if width is not None and vectors.shape[1] != width:
        raise UserError(f"{name} are {vectors.shape[1]} numbers wide and vectors {width}; encode both with one model")


def check_finite(name: str, vectors: Tensor, first: int = 0) -> None:
    """Raise UserError, with its index, for a row with a NaN or an infinity; `first` is the index of the first row."""
    # A sum is finite unless a number is not, or it overflows: only then is every number looked at.
    if bool(vectors.sum(dtype=torch.float64).isfinite()):
        return
    finite = vectors.isfinite().all(1)
    if not bool(finite.all()):
        row = first + int((~finite).nonzero()[0, 0])
        raise UserError(f"{name}[{row}] holds a NaN or an infinity: leave it out, or check the model that made it")


class _Products:
    """The dot products of queries with a block of vectors, fp32 (block rows, width)."""

    def __init__(self, block: Tensor) -> None:
        self.block = block
        self.packed = matmul.prepack(block, "fp32") if block.device.type == "cpu" else None

    def __call__(self, queries: Tensor) -> Tensor:
        """Return the scores, fp32 (queries, block rows)."""
        return queries @ self.block.T if self.packed is None else matmul.matmul(queries, self.packed)


@dataclass(frozen=True, eq=False)
class _Exclusions:
    """Pairs of a query and a vector, int64 (pairs,) each, sorted by vector."""

    queries: Tensor
    vectors: Tensor
    sorted_vectors: np.ndarray

    @classmethod
    def of(cls, excluded: Sequence[Sequence[int]], count: int, rows: int, device: torch.device) -> _Exclusions:
        if len(excluded) != count:
            raise UserError(f"excluded has {len(excluded)} lists for {count} queries: give one per query")
        sizes = [len(indices) for indices in excluded]
        vectors = np.fromiter((int(index) for indices in excluded for index in indices), np.int64, sum(sizes))
        wrong = np.flatnonzero((vectors < 0) | (vectors >= rows))
        if len(wrong):
            query = int(np.searchsorted(np.cumsum(sizes), wrong[0], side="right"))
            raise UserError(f"excluded[{query}] holds {vectors[wrong[0]]}, and there are {rows} vectors")
        order = np.argsort(vectors, kind="stable")
        queries, vectors = np.repeat(np.arange(count), sizes)[order], vectors[order]
        return cls(torch.from_numpy(queries).to(device), torch.from_numpy(vectors).to(device), vectors)

    def apply(self, scores: Tensor, first_query: int, first_vector: int) -> None:
        """Set the scores of a block's pairs to -inf; the block's first query and vector are given."""
        begin, end = np.searchsorted(self.sorted_vectors, [first_vector, first_vector + scores.shape[1]])
        queries, vectors = self.queries[begin:end] - first_query, self.vectors[begin:end] - first_vector
        inside = (queries >= 0) & (queries < len(scores))
        scores[queries[inside], vectors[inside]] = float("-inf")


def _smallest_columns(scores: Tensor, threshold: Tensor, k: int) -> Tensor:
    """Return, per row, the columns of all scores above its threshold, and of those equal to it the first up to k."""
    above, equal = scores > threshold, scores == threshold
    missing = k - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1) <= missing))
    return chosen.nonzero()[:, 1].view(len(scores), k)


def _check_overflow(scores: Tensor, indices: Tensor) -> None:
    """Raise UserError for a score that is not finite, of a pair that is not excluded."""
    wrong = ~scores.isfinite() & (indices >= 0)
    if bool(wrong.any()):
        query, rank = wrong.nonzero()[0].tolist()
        raise UserError(
            f"the product of queries[{query}] and vectors[{int(indices[query, rank])}] overflows fp32: scale the"
            " vectors, to unit length for example"
        )
