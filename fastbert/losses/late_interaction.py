"""MaxSim, the score of late interaction, with gradients: over packed vectors of tokens, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError, require_whole
from fastbert.losses.checks import Shapes, in_working_precision, matmul
from fastbert.losses.ragged import lengths_of

MOST_PRODUCTS = 1 << 22
"""Dot products that are in memory at a time, unless one document with all queries has more."""


def maxsim_scores(
    queries: Tensor,
    query_offsets: Tensor,
    documents: Tensor,
    document_offsets: Tensor,
    *,
    most_products: int = MOST_PRODUCTS,
) -> Tensor:
    """Compute the MaxSim of each query with each document: fp32 (nq, nd), with gradients for both.

    The sum, over a query's vectors, of the largest dot product with a vector of the document (Khattab and Zaharia 2020,
    section 3.3); the scores are those of `fastbert.maxsim`, which has no gradients. For in-batch negatives give them to
    `info_nce_from_scores`.

    `queries` (tokens_q, d) and `documents` (tokens_d, d) of any floating dtype: the vectors of all texts one after the
    other. `query_offsets` int64 (nq + 1,) and `document_offsets` int64 (nd + 1,): text i has the rows `offsets[i] :
    offsets[i + 1]`. A document without vectors has the score -inf with every query that has some, and a query without
    vectors the score 0.

    Dot products are computed for some documents at a time, and backward needs none of them: only the row of each
    maximum is stored, int32 (nd, tokens_q), to which the gradient goes (of equal maxima, to the first). `most_products`
    bounds memory, not the result. Raises UserError for wrong shapes and offsets.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> queries, documents = torch.randn(5, 8, requires_grad=True), torch.randn(9, 8)
        >>> query_offsets, document_offsets = torch.tensor([0, 2, 5]), torch.tensor([0, 4, 6, 9])
        >>> scores = losses.maxsim_scores(queries, query_offsets, documents, document_offsets)
        >>> scores.shape
        torch.Size([2, 3])
        >>> losses.info_nce_from_scores(scores).backward()
    """
    query_lengths, document_lengths = _lengths(queries, query_offsets, documents, document_offsets)
    require_whole("most_products", most_products, 1)
    queries, documents = in_working_precision(queries, documents)
    blocks = list(_blocks(document_lengths, max(1, most_products // max(len(queries), 1))))
    if not blocks or not query_lengths:
        return queries.new_zeros(len(query_lengths), len(document_lengths))
    rows = documents.split([sum(block) for block in blocks])
    columns = [_MaxSim.apply(queries, row, query_lengths, block) for row, block in zip(rows, blocks)]
    return torch.cat(columns, dim=1)


def maxsim_pairs(queries: Tensor, query_offsets: Tensor, documents: Tensor, document_offsets: Tensor) -> Tensor:
    """Compute the MaxSim of each query with its own documents: fp32 (nq, k), with gradients for both.

    Query i has the documents i k, ..., i k + k - 1 of the nd = nq k documents: its candidates for `kl_distillation` or
    `margin_mse`. `queries` (tokens_q, d) and `documents` (tokens_d, d) of any floating dtype, `query_offsets` int64
    (nq + 1,) and `document_offsets` int64 (nd + 1,) follow `maxsim_scores`. Raises UserError for wrong shapes and
    offsets, and for documents that cannot be divided among the queries.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> queries, documents = torch.randn(5, 8), torch.randn(9, 8)  # two queries with two candidates each
        >>> scores = losses.maxsim_pairs(queries, torch.tensor([0, 2, 5]), documents, torch.tensor([0, 2, 4, 6, 9]))
        >>> scores.shape
        torch.Size([2, 2])
    """
    query_lengths, document_lengths = _lengths(queries, query_offsets, documents, document_offsets)
    texts, count = len(query_lengths), len(document_lengths)
    if not texts or not count or count % texts:
        raise UserError(f"{count} documents for {texts} queries; give each query the same number of documents")
    queries, documents = in_working_precision(queries, documents)
    k = count // texts
    blocks = [document_lengths[first : first + k] for first in range(0, count, k)]
    document_rows = documents.split([sum(block) for block in blocks])
    query_rows = queries.split(query_lengths)
    scores = [
        _MaxSim.apply(query, rows, [len(query)], block) for query, rows, block in zip(query_rows, document_rows, blocks)
    ]
    return torch.cat(scores, dim=0)


def _lengths(
    queries: Tensor, query_offsets: Tensor, documents: Tensor, document_offsets: Tensor
) -> tuple[list[int], list[int]]:
    shapes = Shapes()
    shapes.check("queries", queries, "tokens_q d")
    shapes.check("documents", documents, "tokens_d d")
    return (
        lengths_of(query_offsets, len(queries), "query_offsets", "vectors of queries"),
        lengths_of(document_offsets, len(documents), "document_offsets", "vectors of documents"),
    )


def _blocks(lengths: list[int], most: int) -> Iterator[list[int]]:
    """Yield the lengths of documents that have at most `most` vectors together; a longer document stands alone."""
    block: list[int] = []
    tokens = 0
    for length in lengths:
        if block and tokens + length > most:
            yield block
            block, tokens = [], 0
        block.append(length)
        tokens += length
    if block:
        yield block


class _MaxSim(torch.autograd.Function):
    """The scores (queries, documents) of packed vectors (tokens, d) in fp32 or float64."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, documents: Tensor, query_lengths: list[int], document_lengths: list[int]
    ) -> Tensor:
        values, rows = _largest(matmul(documents, queries.T), document_lengths)
        ctx.save_for_backward(queries, documents, rows)
        ctx.query_lengths, ctx.document_lengths = query_lengths, document_lengths
        lengths = torch.tensor(query_lengths, dtype=torch.int64, device=queries.device)
        return torch.segment_reduce(values.T.contiguous(), "sum", lengths=lengths, initial=0.0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        queries, documents, rows = ctx.saved_tensors
        lengths = torch.tensor(ctx.query_lengths, dtype=torch.int64, device=queries.device)
        has_rows = torch.tensor([length > 0 for length in ctx.document_lengths], device=queries.device)
        # Of each query token, (tokens_q, documents): the row of its maximum in each document, and the gradient of that.
        index = rows[has_rows].T.long()
        weights = gradient[:, has_rows].repeat_interleave(lengths, dim=0, output_size=len(queries))
        if not index.numel():
            return torch.zeros_like(queries), torch.zeros_like(documents), None, None
        for_queries = F.embedding_bag(index, documents, mode="sum", per_sample_weights=weights)
        # The same pairs in the order of the documents' rows: each row sums its query tokens in one order, on GPUs too.
        ordered, order = index.flatten().sort(stable=True)
        begins = torch.searchsorted(ordered, torch.arange(len(documents), device=ordered.device))
        tokens = order // index.shape[1]
        for_documents = F.embedding_bag(
            tokens, queries, begins, mode="sum", per_sample_weights=weights.flatten()[order]
        )
        return for_queries, for_documents, None, None


def _largest(products: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Return the maxima over the vectors of each document and their rows: fp32 (tokens_d, tokens_q) -> fp32 and int32
    (documents, tokens_q). A document without vectors has -inf and the row -1."""
    values = products.new_full((len(lengths), products.shape[1]), float("-inf"))
    rows = torch.full(values.shape, -1, dtype=torch.int32, device=products.device)
    if products.device.type != "cpu":
        return _largest_of_padded(products, lengths, values, rows)
    # A maximum per document reads memory in order, and pads nothing.
    first = 0
    for index, block in enumerate(products.split(lengths)):
        if len(block):
            best = block.max(dim=0)
            values[index] = best.values
            rows[index] = best.indices + first
        first += len(block)
    return values, rows


def _largest_of_padded(products: Tensor, lengths: list[int], values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `_largest` does by a few operations on padded products, as suits GPUs."""
    counts = torch.tensor(lengths, dtype=torch.int64)
    document = torch.arange(len(lengths)).repeat_interleave(counts)
    begins = counts.cumsum(0) - counts
    column = torch.arange(len(products)) - begins[document]
    padded = products.new_full((len(lengths), max(lengths, default=0), products.shape[1]), float("-inf"))
    if not padded.shape[1]:
        return values, rows
    device = products.device
    padded[document.to(device), column.to(device)] = products
    best = padded.max(dim=1)
    has_rows = (counts > 0).to(device)[:, None]
    rows = torch.where(has_rows, best.indices + begins.to(device)[:, None], -1).int()
    return best.values, rows
