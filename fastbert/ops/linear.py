"""Matrix products: the linear layer, and the vocabulary product with its loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops import backend
from fastbert.packing import IGNORE_INDEX


@dataclass(frozen=True)
class CrossEntropy:
    """Loss summed over the labelled rows (fp32 scalar), the number of labelled rows, and of those predicted right."""

    loss_sum: Tensor
    count: Tensor
    correct: Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x (tokens, in), weight (out, in), bias (out,). Under autocast the operands are cast."""
    return backend.select("linear", x.device)(x, weight, bias)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> CrossEntropy:
    """Cross-entropy of softmax(x weight^T + bias) against `labels`: x (rows, width), weight (vocabulary, width), labels
    int64 (rows,). Rows labelled `ignore_index` count for nothing. The softmax is computed in fp32.
    """
    return backend.select("linear_cross_entropy", x.device)(x, weight, bias, labels, ignore_index, label_smoothing)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, ignore_index: int, label_smoothing: float
) -> CrossEntropy:
    logits = F.linear(x, weight, bias)
    with backend.without_autocast(x.device):
        loss_sum = F.cross_entropy(
            logits.float(), labels, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="sum"
        )
    with torch.no_grad():
        counted = labels != ignore_index
        correct = ((logits.argmax(-1) == labels) & counted).sum()
    return CrossEntropy(loss_sum, counted.sum(), correct)


backend.register("linear", "eager", _linear)
backend.register("linear_cross_entropy", "eager", _linear_cross_entropy)
