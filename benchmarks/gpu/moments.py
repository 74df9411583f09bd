"""Compare results with dropout by their mean and variance over many draws of the mask.

The mean over n draws deviates from the true one by the standard error: the squared deviation of an element, relative to
its expected variance over n, is 1 on average, and so is its variance over the draws relative to the expected one. Both
are averaged over the elements, each counting the same, so that short sequences with their large variances do not
dominate; where the expected variances are estimates themselves, sums are compared. `MEAN_BOUND` and `VARIANCE_BOUND`
leave room for chance and for the rounding of bf16; a probability of 1/16 or 1/8 in place of 0.1 is 40 % or 29 % off in
variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DRAWS = 24
MEAN_BOUND, VARIANCE_BOUND = 1.5, 0.15
SMALLEST = 1e-12  # variance: smaller ones are rounding


@dataclass(frozen=True)
class Moments:
    """Mean and variance of every element over draws; `draws` is infinite where they are exact."""

    mean: Tensor
    variance: Tensor
    draws: float = float("inf")


def sample(draw: Callable[[], Tensor], draws: int = DRAWS) -> Moments:
    """Return the moments of `draws` results, each with a mask of its own."""
    first = draw().detach().double()
    total, squares = torch.zeros_like(first), torch.zeros_like(first)
    for _ in range(draws - 1):
        # Relative to the first result, so that the difference of two sums loses no digits.
        deviation = draw().detach().double() - first
        total += deviation
        squares += deviation.square()
    mean = total / draws
    return Moments(first + mean, (squares - draws * mean.square()) / (draws - 1), draws)


def attention(probabilities: Tensor, values: Tensor, dropout: float) -> Moments:
    """Return the exact moments of dropout(P) V, of independent masks, for P (..., rows, n) and V (..., n, width)."""
    variance = dropout / (1 - dropout) * (probabilities.square() @ values.square())
    return Moments(probabilities @ values, variance)


def joined(parts: Sequence[Moments]) -> Moments:
    """Return exact moments of (heads, tokens, width) of several sequences as one, (tokens, heads, width)."""
    mean, variance = (torch.cat([getattr(part, name) for part in parts], 1) for name in ("mean", "variance"))
    return Moments(mean.transpose(0, 1), variance.transpose(0, 1))


def judge(actual: Moments, expected: Moments) -> str:
    """Return "close", or which of the moments differs by more than its bound."""
    variance, squares = expected.variance.clamp(min=SMALLEST), (actual.mean - expected.mean).square()
    scale = 1 / actual.draws + 1 / expected.draws
    if expected.draws < float("inf"):
        # The mean of an estimate's reciprocal is biased: elements are pooled.
        deviation = float(squares.sum() / (scale * variance.sum()))
        ratio = float(actual.variance.sum() / variance.sum())
    else:
        deviation, ratio = float((squares / (scale * variance)).mean()), float((actual.variance / variance).mean())
    if not deviation <= MEAN_BOUND:
        return f"wrong: the mean over dropout masks deviates {deviation:.2f} times the expected square"
    if not abs(ratio - 1) <= VARIANCE_BOUND:
        return f"wrong: the variance over dropout masks is {ratio:.2f} times the expected one"
    return "close"
