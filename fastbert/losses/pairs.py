"""Losses of pairs of texts with a score: CoSENT, AnglE, and regression of the similarity."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert.losses.checks import Shapes, check_values, divisor, in_working_precision, require_number
from fastbert.losses.similarities import pairwise_angle


def cosent(similarities: Tensor, scores: Tensor, *, scale: float = 20.0) -> Tensor:
    """Compute CoSENT's ranking loss: an fp32 scalar.

    log(1 + sum of exp(scale (s_k - s_i))) over all i, k with scores_i > scores_k (Huang et al. 2024, CoSENT);
    sentence-transformers' CoSENTLoss. Only the order of the scores counts. Pairs are compared within the call, so it is
    no mean over examples.

    `similarities` (n,) of any floating dtype, usually cosines; `scores` (n,) numbers of any dtype. Memory and time are
    linear in n, but for the sorting. Raises UserError for wrong shapes and scores that are not finite.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> cosines, scores = torch.tensor([0.2, 0.9]), torch.tensor([5.0, 1.0])  # in the wrong order
        >>> round(losses.cosent(cosines, scores).item(), 3)
        14.0
    """
    shapes = Shapes()
    shapes.check("similarities", similarities, "n")
    shapes.check("scores", scores, "n", "number")
    require_number("scale", scale, above=0)
    check_values("scores", scores)
    (similarities,) = in_working_precision(similarities)
    ranked, order = (scores.int() if scores.dtype == torch.bool else scores).sort()
    logits = similarities[order] * scale
    # For each pair of texts, the sum over those with a higher score: a tail of the order, where ties are left out.
    tails = torch.logcumsumexp(-logits.flip(0), dim=0).flip(0)
    tails = torch.cat((tails, tails.new_full((1,), float("-inf"))))
    higher = torch.searchsorted(ranked, ranked, right=True)
    return torch.logsumexp(torch.cat((logits.new_zeros(1), logits + tails[higher])), dim=0)


def angle(a: Tensor, b: Tensor, scores: Tensor, *, scale: float = 20.0) -> Tensor:
    """Compute AnglE's ranking loss: the `cosent` of angles in the complex plane instead of cosines, an fp32 scalar.

    Li and Li 2024, by their reference code; sentence-transformers' AnglELoss. Its gradient does not vanish where
    cosines saturate; the paper adds it to `cosent` and `info_nce`.

    `a` and `b` (n, d) of any floating dtype: the texts of each pair. `scores` (n,) numbers of any dtype. Raises
    UserError for wrong shapes and scores that are not finite.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> a, b = torch.randn(2, 4, 8).unbind()  # four pairs
        >>> losses.angle(a, b, torch.tensor([5.0, 3.0, 1.0, 0.0])).shape
        torch.Size([])
    """
    shapes = Shapes()
    shapes.check("a", a, "n d")
    shapes.check("b", b, "n d")
    shapes.check("scores", scores, "n", "number")
    return cosent(pairwise_angle(a, b), scores, scale=scale)


def cosine_regression(similarities: Tensor, scores: Tensor, *, items: float | None = None) -> Tensor:
    """Compute the mean squared error of similarities: an fp32 scalar.

    mean of (s_i - scores_i)^2; with cosines, sentence-transformers' CosineSimilarityLoss (Reimers and Gurevych 2019).

    `similarities` (n,) of any floating dtype; `scores` (n,) numbers of any dtype in the range of the similarities, of
    cosines -1 to 1: a scale of 0 to 5 must be divided by 5 first. `items`: divisor instead of n. Raises UserError for
    wrong shapes and scores that are not finite.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> cosines, scores = torch.tensor([0.5, 1.0]), torch.tensor([1.0, 5.0]) / 5
        >>> round(losses.cosine_regression(cosines, scores).item(), 3)
        0.045
    """
    shapes = Shapes()
    shapes.check("similarities", similarities, "n")
    shapes.check("scores", scores, "n", "number")
    check_values("scores", scores)
    (similarities,) = in_working_precision(similarities)
    errors = similarities - scores.to(similarities.dtype)
    return errors.square().sum() / divisor(items, len(scores))
