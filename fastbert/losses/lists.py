"""Losses of cross-encoders: scores of pairs, of one query's candidates together, and of their order."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import require_whole
from fastbert.losses.checks import (
    Shapes,
    check_values,
    divisor,
    in_working_precision,
    require_choice,
    require_number,
)
from fastbert.losses.ragged import Lists

Targets = Literal["normalized", "softmax"]
LambdaWeights = Literal["ndcg2++", "ndcg2", "lambdarank", "none"]
MOST_GRADE = 100
"""The largest label of `lambda_rank`, whose gain is 2^label."""
SMALLEST_DCG = 1e-10


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, *, positive_weight: float | None = None, items: float | None = None
) -> Tensor:
    """Compute the cross-entropy of independent pairs: an fp32 scalar.

    mean of -(w y log(sigmoid(x)) + (1 - y) log(1 - sigmoid(x))); sentence-transformers' BinaryCrossEntropyLoss.
    `positive_weight`: w, default 1; the number of negatives per positive balances them.

    `logits` (n,) of any floating dtype; `labels` (n,) numbers from 0 to 1 of any dtype. `items`: divisor instead of n.
    Raises UserError for wrong shapes, weights and labels out of range.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> logits, labels = torch.tensor([0.0, 4.0]), torch.tensor([1, 0])
        >>> round(losses.binary_cross_entropy(logits, labels).item(), 3)
        2.356
    """
    shapes = Shapes()
    shapes.check("logits", logits, "n")
    shapes.check("labels", labels, "n", "number")
    check_values("labels", labels, 0, 1)
    weight = None
    (logits,) = in_working_precision(logits)
    if positive_weight is not None:
        require_number("positive_weight", positive_weight, above=0)
        weight = logits.new_tensor(positive_weight)
    target = labels.to(logits.dtype)
    total = F.binary_cross_entropy_with_logits(logits, target, reduction="sum", pos_weight=weight)
    return total / divisor(items, len(logits))


def list_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    targets: Targets = "normalized",
    items: float | None = None,
) -> Tensor:
    """Compute the cross-entropy over each query's candidates: an fp32 scalar.

    mean over lists of -sum over candidates of t log(softmax(x)). `targets`: "normalized", t = label / sum of the list's
    labels, which is the plain cross-entropy if one label of the list is not 0; or "softmax", t = softmax(labels), the
    top-one probabilities of ListNet (Cao et al. 2007); sentence-transformers' ListNetLoss. With "normalized" a list
    without a label above 0 adds nothing to the sum, and counts in the mean.

    `logits` (rows,) of any floating dtype and `labels` (rows,) numbers of any dtype, at least 0 with "normalized": one
    row per candidate. `offsets` int64 (lists + 1,): query i has the rows `offsets[i] : offsets[i + 1]`. `items`:
    divisor instead of the number of lists. Raises UserError for wrong shapes, offsets, labels and lists without
    candidates.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> logits, labels = torch.tensor([2.0, 0.0, 0.0, 1.0, 1.0]), torch.tensor([1, 0, 0, 0, 1])
        >>> offsets = torch.tensor([0, 3, 5])  # queries with 3 and 2 candidates
        >>> round(losses.list_cross_entropy(logits, labels, offsets).item(), 3)
        0.466
    """
    shapes = Shapes()
    shapes.check("logits", logits, "rows")
    shapes.check("labels", labels, "rows", "number")
    require_choice("targets", targets, ("normalized", "softmax"))
    check_values("labels", labels, 0 if targets == "normalized" else -math.inf)
    lists = Lists.of(offsets, logits)
    count = divisor(items, lists.shape[0])
    (logits,) = in_working_precision(logits)
    if not len(logits):
        return logits.sum()
    labels = labels.to(logits.dtype)
    if targets == "softmax":
        target = lists.packed(lists.padded(labels, float("-inf")).softmax(dim=1))
    else:
        sums = lists.padded(labels, 0.0).sum(dim=1)
        target = labels / torch.where(sums > 0, sums, 1.0)[lists.row]
    log_probabilities = lists.packed(lists.padded(logits, float("-inf")).log_softmax(dim=1))
    return -(target * log_probabilities).sum() / count


def lambda_rank(
    logits: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    weights: LambdaWeights = "ndcg2++",
    k: int | None = None,
    sigma: float = 1.0,
    mu: float = 10.0,
    items: float | None = None,
) -> Tensor:
    """Compute the LambdaLoss of each query's candidates, a bound of nDCG: an fp32 scalar.

    mean over pairs i, j of one list with labels_i > labels_j of -w_ij log2(sigmoid(sigma (x_i - x_j))) (Wang et al.
    2018); sentence-transformers' LambdaLoss. With gains G = (2^label - 1) / the list's best DCG@k, ranks r by the
    logits and discounts D(r) = log2(1 + r), `weights` are

    - "lambdarank": |G_i - G_j| |1 / D(r_i) - 1 / D(r_j)| (Burges et al. 2006);
    - "ndcg2": |G_i - G_j| |1 / D(d) - 1 / D(d + 1)| with d = |r_i - r_j| (NDCGLoss2);
    - "ndcg2++": mu times "ndcg2" plus "lambdarank" (NDCGLoss2++), the best of the paper;
    - "none": 1, which is RankNet (Burges et al. 2005).

    `k`: count the pairs with one of the first k ranks only. Equal logits rank in the order of their rows. Lists whose
    labels are all equal have no pairs.

    `logits` (rows,) of any floating dtype and `labels` (rows,) grades from 0 to 100 of any dtype, one row per
    candidate. `offsets` int64 (lists + 1,): query i has the rows `offsets[i] : offsets[i + 1]`. `items`: divisor
    instead of the number of pairs, such as the number of queries. Raises UserError for wrong shapes, offsets, options,
    labels and lists without candidates.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> logits, grades = torch.tensor([0.0, 1.0, 2.0], requires_grad=True), torch.tensor([3, 1, 0])
        >>> loss = losses.lambda_rank(logits, grades, torch.tensor([0, 3]))
        >>> loss.backward()
        >>> logits.grad.sign()
        tensor([-1.,  1.,  1.])
    """
    shapes = Shapes()
    shapes.check("logits", logits, "rows")
    shapes.check("labels", labels, "rows", "number")
    require_choice("weights", weights, ("ndcg2++", "ndcg2", "lambdarank", "none"))
    require_whole("k", k, 1, optional=True)
    require_number("sigma", sigma, above=0)
    require_number("mu", mu, least=0)
    check_values("labels", labels, 0, MOST_GRADE)
    lists = Lists.of(offsets, logits)
    count = None if items is None else divisor(items, 1)
    (logits,) = in_working_precision(logits)
    if not len(logits):
        return logits.sum()
    grades = lists.padded(labels.to(logits.dtype), 0.0)
    order = lists.padded(logits.detach(), float("-inf")).sort(dim=1, descending=True, stable=True).indices
    ranked = grades.gather(1, order)
    present = lists.padded(torch.ones_like(logits, dtype=torch.bool), False).gather(1, order)
    pairs = (ranked[:, :, None] > ranked[:, None, :]) & (present[:, :, None] & present[:, None, :])
    if k is not None:
        pairs[:, k:, k:] = False
    scores = lists.padded(logits, 0.0).gather(1, order)
    losses = -F.logsigmoid(sigma * (scores[:, :, None] - scores[:, None, :])) / math.log(2)
    losses = losses * _pair_weights(grades, ranked, weights, k, mu)
    total = torch.where(pairs, losses, 0.0).sum()
    return total / (pairs.sum().clamp(min=1) if count is None else count)


def _pair_weights(grades: Tensor, ranked: Tensor, weights: LambdaWeights, k: int | None, mu: float) -> Tensor:
    """Return the weights of all pairs, fp32 (lists, longest, longest), of grades in the order of the rows and of the
    ranks, (lists, longest); "none" has a scalar."""
    if weights == "none":
        return grades.new_ones(())
    ranks = torch.arange(1, grades.shape[1] + 1, device=grades.device)
    inverse = 1 / torch.log2(1 + ranks.to(grades.dtype))
    best = grades.sort(dim=1, descending=True).values
    ideal = ((2**best - 1) * inverse)[:, :k].sum(dim=1, keepdim=True).clamp(min=SMALLEST_DCG)
    gains = (2**ranked - 1) / ideal
    by_rank = (inverse[:, None] - inverse).abs()
    if weights != "lambdarank":
        steps = torch.cat((inverse.new_zeros(1), inverse[:-1] - inverse[1:]))
        by_difference = steps[(ranks[:, None] - ranks).abs()]
        by_rank = by_difference if weights == "ndcg2" else mu * by_difference + by_rank
    return by_rank * (gains[:, :, None] - gains[:, None, :]).abs()
