"""MaxSim, the score of late interaction (Khattab and Zaharia 2020, section 3.3): the sum, over a query's vectors, of
the largest dot product with a vector of the document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.retrieval.ragged import TokenVectors, check_ragged

Vectors = TokenVectors | Sequence[Tensor]
MOST_PRODUCTS = 1 << 22
"""Dot products that are in memory at a time, unless one pair of texts has more."""


def maxsim(queries: Vectors, documents: Vectors, *, most_products: int = MOST_PRODUCTS) -> Tensor:
    """Return the scores of all pairs, fp32 (queries, documents), on the device of the queries.

    Queries and documents are `TokenVectors`, or lists of tensors (tokens, width) of any floating dtype; products and
    sums are fp32. A document without vectors has the score -inf with every query that has some; a query without vectors
    has the score 0. Texts are packed: nothing is computed for padding. `most_products` bounds memory, not the result.

    Raises UserError for vectors of different widths, and for shapes other than these.

    Example:
        >>> import torch
        >>> import fastbert
        >>> queries = [torch.tensor([[1.0, 0.0], [0.0, 1.0]])]
        >>> documents = [torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])]
        >>> fastbert.maxsim(queries, documents)
        tensor([[1., 2.]])
    """
    query, document = _packed(queries, "queries"), _packed(documents, "documents")
    if query.vectors.shape[1] != document.vectors.shape[1] and len(query) and len(document):
        raise UserError(
            f"queries are {query.vectors.shape[1]} numbers wide and documents {document.vectors.shape[1]}; encode both"
            " with one model"
        )
    device = query.vectors.device
    scores = torch.zeros(len(query), len(document), device=device)
    with torch.no_grad():
        for rows in _ranges(query.offsets, max(1, most_products // 256)):
            q = query.vectors[query.offsets[rows.start] : query.offsets[rows.stop]].float()
            if not len(q):
                continue
            for columns in _ranges(document.offsets, max(1, most_products // len(q))):
                first, end = document.offsets[columns.start], document.offsets[columns.stop]
                products = document.vectors[first:end].to(device, torch.float32) @ q.T
                best = _largest(products, document.offsets[columns.start : columns.stop + 1] - first)
                part = _sums(best, query.offsets[rows.start : rows.stop + 1] - query.offsets[rows.start])
                scores[rows.start : rows.stop, columns.start : columns.stop] = part
    return scores


def _packed(texts: Vectors, name: str) -> TokenVectors:
    if not isinstance(texts, TokenVectors):
        listed = list(texts)
        for index, tensor in enumerate(listed):
            if not isinstance(tensor, Tensor) or tensor.dim() != 2 or not tensor.is_floating_point():
                shown = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise UserError(f"{name}[{index}] must be a tensor of floats (tokens, width), not {shown}")
            if tensor.shape[1] != listed[0].shape[1]:
                raise UserError(f"{name}[{index}] is {tensor.shape[1]} numbers wide, not {listed[0].shape[1]}")
        sizes = torch.tensor([0, *map(len, listed)])
        vectors = torch.cat(listed) if listed else torch.empty(0, 0)
        texts = TokenVectors(vectors=vectors, offsets=sizes.cumsum(0), token_ids=torch.empty(0, dtype=torch.int32))
    check_ragged(texts, name)
    # Slices need host integers.
    return TokenVectors(vectors=texts.vectors, offsets=texts.offsets.cpu(), token_ids=texts.token_ids)


def _ranges(offsets: Tensor, most: int) -> Iterator[range]:
    """Yield ranges of texts with at most `most` vectors together; a longer text stands alone."""
    first, texts = 0, len(offsets) - 1
    while first < texts:
        last = int(torch.searchsorted(offsets, offsets[first] + most, right=True)) - 1
        last = min(max(last, first + 1), texts)
        yield range(first, last)
        first = last


def _largest(products: Tensor, offsets: Tensor) -> Tensor:
    """Return the maxima over the vectors of each document: (tokens, query tokens) -> (documents, query tokens)."""
    if products.device.type != "cpu":
        return torch.segment_reduce(products, "max", offsets=offsets.to(products.device), initial=float("-inf"))
    # A maximum per document reads memory in order; segment_reduce takes several times as long on a CPU.
    best = products.new_full((len(offsets) - 1, products.shape[1]), float("-inf"))
    for index, block in enumerate(products.split(offsets.diff().tolist())):
        if len(block):
            torch.amax(block, 0, out=best[index])
    return best


def _sums(best: Tensor, offsets: Tensor) -> Tensor:
    """Return the sums over the vectors of each query: (documents, query tokens) -> (queries, documents)."""
    return torch.segment_reduce(best.T.contiguous(), "sum", offsets=offsets.to(best.device), initial=0.0)
