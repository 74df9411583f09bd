"""Regularisers of sparse vectors over a vocabulary, and SPLADE's loss with them."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert.errors import UserError, require_whole
from fastbert.losses.checks import Shapes, divisor, in_working_precision, require_number


def flops(vectors: Tensor, *, threshold: int | None = None) -> Tensor:
    """Compute the FLOPS regulariser: an fp32 scalar.

    sum over the vocabulary of (mean over n of |v|)^2, a smooth stand-in for the multiplications of an inverted index
    (Paria et al. 2020; SPLADE, Formal et al. 2021); sentence-transformers' FlopsLoss. It is not a mean over examples:
    compute it for the whole batch. `threshold`: vectors with at most so many entries other than 0 count as 0, and get
    no gradient (Shen et al. 2025).

    `vectors` (n, vocab) of any floating dtype. Raises UserError for wrong shapes and thresholds.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> losses.flops(torch.tensor([[2.0, 0.0], [2.0, 1.0]]))  # means 2 and 0.5
        tensor(4.2500)
    """
    Shapes().check("vectors", vectors, "n vocab")
    require_whole("threshold", threshold, 0, optional=True)
    (vectors,) = in_working_precision(vectors)
    # The gradient of |v| at 0 is that from above: weights are not negative.
    magnitudes = torch.where(vectors < 0, -vectors, vectors)
    if threshold is not None:
        is_dense = (vectors != 0).sum(dim=1) > threshold
        magnitudes = magnitudes * is_dense[:, None]
    return (magnitudes.sum(dim=0) / max(len(vectors), 1)).square().sum()


def l1(vectors: Tensor, *, items: float | None = None) -> Tensor:
    """Compute the L1 regulariser: the mean over n of the sum of |v| over the vocabulary, an fp32 scalar.

    Lassance and Clinchant 2022 use it for SPLADE's queries. `vectors` (n, vocab) of any floating dtype. `items`:
    divisor instead of n. Raises UserError for wrong shapes.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> losses.l1(torch.tensor([[2.0, 0.0], [2.0, 1.0]]))
        tensor(2.5000)
    """
    Shapes().check("vectors", vectors, "n vocab")
    (vectors,) = in_working_precision(vectors)
    return torch.where(vectors < 0, -vectors, vectors).sum() / divisor(items, len(vectors))


def splade(
    loss: Tensor,
    queries: Tensor,
    documents: Tensor,
    query_weight: float,
    document_weight: float,
    *,
    query_threshold: int | None = None,
    document_threshold: int | None = None,
) -> Tensor:
    """Add the `flops` of queries and of documents to a ranking loss: an fp32 scalar.

    loss + query_weight flops(queries) + document_weight flops(documents) (Formal et al. 2021);
    sentence-transformers' SpladeLoss. Weights are raised from 0 over the first part of a training, by the caller.

    `loss`: a scalar, such as the `info_nce` of dot products. `queries` (n, vocab) and `documents` (m, vocab), positives
    and negatives, of any floating dtype; the thresholds are those of `flops`. Raises UserError for wrong shapes and
    options.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> queries, documents = torch.rand(2, 100, requires_grad=True), torch.rand(4, 100)
        >>> ranking = losses.info_nce(queries, documents, similarity="dot", temperature=1.0)
        >>> losses.splade(ranking, queries, documents, query_weight=5e-5, document_weight=3e-5).backward()
    """
    shapes = Shapes()
    shapes.check("queries", queries, "n vocab")
    shapes.check("documents", documents, "m vocab")
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = tuple(loss.shape) if isinstance(loss, Tensor) else repr(loss)
        raise UserError(f"loss={shown} must be a scalar tensor; give a ranking loss such as info_nce's result")
    require_number("query_weight", query_weight, least=0)
    require_number("document_weight", document_weight, least=0)
    (loss,) = in_working_precision(loss)
    query_term = flops(queries, threshold=query_threshold) * query_weight
    return loss.reshape(()) + query_term + flops(documents, threshold=document_threshold) * document_weight
