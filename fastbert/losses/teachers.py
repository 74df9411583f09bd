"""Losses from the scores of a teacher: the margin between texts, and the distribution over candidates."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.losses.checks import Shapes, divisor, in_working_precision, require_number


def margin_mse(
    positive_scores: Tensor,
    negative_scores: Tensor,
    teacher_positive: Tensor,
    teacher_negatives: Tensor,
    *,
    items: float | None = None,
) -> Tensor:
    """Compute the mean squared error of the margins between positives and negatives: an fp32 scalar.

    mean over n and k of ((s_positive - s_negative) - (t_positive - t_negative))^2 (Hofstätter et al. 2020);
    sentence-transformers' MarginMSELoss. Margins leave the student the level of its scores.

    `positive_scores` (n,) and `negative_scores` (n, k) of any floating dtype, usually dot products;
    `teacher_positive` (n,) and `teacher_negatives` (n, k) numbers of any dtype, without gradients. A teacher's margins
    themselves are `teacher_positive` beside zeros (n, k). `items`: divisor instead of n, of means over k. Raises
    UserError for wrong shapes.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> positive, negatives = torch.tensor([3.0]), torch.tensor([[1.0, 2.0]])  # margins of 2 and 1
        >>> teacher_positive, teacher_negatives = torch.tensor([9.0]), torch.tensor([[7.0, 7.0]])  # 2 and 2
        >>> losses.margin_mse(positive, negatives, teacher_positive, teacher_negatives)
        tensor(0.5000)
    """
    shapes = Shapes()
    shapes.check("positive_scores", positive_scores, "n")
    shapes.check("negative_scores", negative_scores, "n k")
    shapes.check("teacher_positive", teacher_positive, "n", "number")
    shapes.check("teacher_negatives", teacher_negatives, "n k", "number")
    _require_candidates("negative_scores", negative_scores, 1)
    positive_scores, negative_scores = in_working_precision(positive_scores, negative_scores)
    dtype = positive_scores.dtype
    margins = positive_scores[:, None] - negative_scores
    target = teacher_positive.detach().to(dtype)[:, None] - teacher_negatives.detach().to(dtype)
    return (margins - target).square().sum() / (divisor(items, len(margins)) * margins.shape[1])


def kl_distillation(
    scores: Tensor,
    teacher_scores: Tensor,
    *,
    temperature: float = 1.0,
    teacher_temperature: float | None = None,
    items: float | None = None,
) -> Tensor:
    """Compute the divergence from a teacher's distribution over candidates: an fp32 scalar.

    mean over n of T^2 KL(softmax(teacher_scores / T) || softmax(scores / T)) (Hinton et al. 2015; for retrieval, Lin et
    al. 2020); sentence-transformers' DistillKLDivLoss. `teacher_temperature` is the teacher's T where its scores have a
    different spread; the factor stays the student's T^2.

    `scores` (n, k) of any floating dtype: of each query's k candidates, k at least 2. `teacher_scores` (n, k) numbers
    of any dtype, without gradients. `items`: divisor instead of n. Raises UserError for wrong shapes and options.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> scores, teacher = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[2.0, 3.0, 1.0]])
        >>> losses.kl_distillation(scores, teacher).abs() < 1e-6  # equal up to a constant
        tensor(True)
    """
    shapes = Shapes()
    shapes.check("scores", scores, "n k")
    shapes.check("teacher_scores", teacher_scores, "n k", "number")
    require_number("temperature", temperature, above=0)
    if teacher_temperature is None:
        teacher_temperature = temperature
    require_number("teacher_temperature", teacher_temperature, above=0)
    _require_candidates("scores", scores, 2)
    (scores,) = in_working_precision(scores)
    target = F.log_softmax(teacher_scores.detach().to(scores.dtype) / teacher_temperature, dim=1)
    prediction = F.log_softmax(scores / temperature, dim=1)
    total = F.kl_div(prediction, target, reduction="sum", log_target=True)
    return total * temperature**2 / divisor(items, len(scores))


def _require_candidates(name: str, scores: Tensor, least: int) -> None:
    if scores.shape[1] < least:
        raise UserError(f"{name} has shape {tuple(scores.shape)}; give at least {least} scores per query")
