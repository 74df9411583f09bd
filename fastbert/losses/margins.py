"""Losses with a margin: triplets, and pairs that belong together or not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.losses.checks import Shapes, check_values, divisor, require_number
from fastbert.losses.similarities import Distance, pairwise_distance


def triplet(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    margin: float = 5.0,
    distance: Distance = "euclidean",
    items: float | None = None,
) -> Tensor:
    """Compute the triplet loss: an fp32 scalar.

    mean of max(0, d(anchor, positive) - d(anchor, negative) + margin) (Schroff et al. 2015, without their squares);
    sentence-transformers' TripletLoss. `distance`: "euclidean", "cosine", which is 1 - cosine and asks for a margin
    below 1, or "manhattan".

    `anchors`, `positives` and `negatives` (n, d) of any floating dtype. `items`: divisor instead of n. Raises UserError
    for wrong shapes and options.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> anchor, positive, negative = torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]], [[0.0, 8.0]]])
        >>> losses.triplet(anchor, positive, negative, margin=5.0)  # distances 5 and 8
        tensor(2.)
    """
    shapes = Shapes()
    shapes.check("anchors", anchors, "n d")
    shapes.check("positives", positives, "n d")
    shapes.check("negatives", negatives, "n d")
    require_number("margin", margin, least=0)
    gaps = pairwise_distance(anchors, positives, distance) - pairwise_distance(anchors, negatives, distance)
    return F.relu(gaps + margin).sum() / divisor(items, len(anchors))


def contrastive(
    a: Tensor,
    b: Tensor,
    labels: Tensor,
    *,
    margin: float = 0.5,
    distance: Distance = "cosine",
    items: float | None = None,
) -> Tensor:
    """Compute the contrastive loss: an fp32 scalar.

    mean of (y d^2 + (1 - y) max(0, margin - d)^2) / 2 (Hadsell et al. 2006, equation 4, but with y = 1 for pairs that
    belong together); sentence-transformers' ContrastiveLoss. Distances are those of `triplet`.

    `a` and `b` (n, d) of any floating dtype; `labels` (n,) numbers from 0 to 1. `items`: divisor instead of n. Raises
    UserError for wrong shapes, options and labels out of range.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> a, b = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> losses.contrastive(a, b, torch.tensor([1, 0]), margin=0.5)  # distances 1 and 0
        tensor(0.3125)
    """
    distances = _labelled_distances(a, b, labels, margin, distance)
    y = labels.to(distances.dtype)
    losses = y * distances.square() + (1 - y) * F.relu(margin - distances).square()
    return losses.sum() / 2 / divisor(items, len(labels))


def online_contrastive(
    a: Tensor, b: Tensor, labels: Tensor, *, margin: float = 0.5, distance: Distance = "cosine"
) -> Tensor:
    """Compute the contrastive loss of the hard pairs of a batch: an fp32 scalar, a sum.

    Pairs that belong together count, as d^2, if they are further apart than the nearest pair that does not; pairs that
    do not, as max(0, margin - d)^2, if they are nearer than the furthest pair that does. If the batch has pairs of one
    label alone, the mean of their distances takes the place of the missing bound. sentence-transformers'
    OnlineContrastiveLoss.

    `a` and `b` (n, d) of any floating dtype; `labels` (n,) 0 or 1 of any dtype. Raises UserError for wrong shapes,
    options and labels.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> a, b = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> losses.online_contrastive(a, b, torch.tensor([1, 0]))
        tensor(1.2500)
    """
    distances = _labelled_distances(a, b, labels, margin, distance)
    is_positive = labels == 1
    if labels.device.type == "cpu" and bool((~is_positive & (labels != 0)).any()):
        raise UserError("labels of online_contrastive must be 0 or 1; use contrastive for labels between them")
    if not len(labels):
        return distances.sum()
    # Selected by masks, whose number of pairs the host need not know.
    positives, negatives = is_positive.sum(), (~is_positive).sum()
    furthest = distances.masked_fill(~is_positive, float("-inf")).max()
    nearest = distances.masked_fill(is_positive, float("inf")).min()
    mean = distances.mean()
    is_hard_negative = ~is_positive & (distances < torch.where(positives > 0, furthest, mean))
    is_hard_positive = is_positive & (distances > torch.where(negatives > 0, nearest, mean))
    losses = torch.where(is_positive, distances.square(), F.relu(margin - distances).square())
    return torch.where(is_hard_negative | is_hard_positive, losses, 0.0).sum()


def _labelled_distances(a: Tensor, b: Tensor, labels: Tensor, margin: float, distance: Distance) -> Tensor:
    shapes = Shapes()
    shapes.check("a", a, "n d")
    shapes.check("b", b, "n d")
    shapes.check("labels", labels, "n", "number")
    require_number("margin", margin, least=0)
    check_values("labels", labels, 0, 1)
    return pairwise_distance(a, b, distance)
