"""`softmax` composed of PyTorch operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastbert.ops.autocast import without_autocast
from fastbert.ops.dropout.masks import attention_mask
from fastbert.ops.native import buffers
from fastbert.ops.operation import EagerBackend
from fastbert.ops.softmax.arguments import SoftmaxArguments


class Eager(EagerBackend[SoftmaxArguments]):
    """Softmax of scores that are scaled in their own dtype.

    It reads its results on a CPU, so a compiler calls it as one opaque operation; hence `backward`.
    """

    opaque = True

    def forward(self, arguments: SoftmaxArguments) -> Tensor:
        """Return probabilities in the shape and dtype of scores."""
        return softmax_eager(*arguments)

    def backward(self, arguments: SoftmaxArguments, grad: Tensor) -> Tensor:
        """Return the gradient of scores, computed in fp32, or in float64 for float64."""
        scores, _, scale, dropout_p, dropout_key, dropout_site = arguments
        wide = torch.promote_types(scores.dtype, torch.float32)
        with without_autocast(scores.device):
            p = softmax_eager(*arguments._replace(dropout_p=0.0, dropout_key=None)).to(wide)
            dp = grad.to(wide)
            if dropout_key is not None:
                dp = _drop(dp, dropout_p, dropout_key, dropout_site)
            dscores = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
        return dscores.to(scores.dtype)


def softmax_eager(
    scores: Tensor, mask: Tensor | None, scale: float, dropout_p: float, dropout_key: Tensor | None, dropout_site: int
) -> Tensor:
    """Return dropout(softmax(scale * scores)), differentiable by PyTorch; the arguments of `SoftmaxArguments`."""
    with without_autocast(scores.device):
        probabilities = _probabilities(scores * scale if scale != 1.0 else scores, mask)
        if dropout_key is not None:
            probabilities = _drop(probabilities, dropout_p, dropout_key, dropout_site)
        return probabilities


def _drop(x: Tensor, p: float, key: Tensor, site: int) -> Tensor:
    sequences, heads, queries, keys = x.shape
    # Masks of zero sequences cannot be stacked.
    return x * attention_mask((sequences, heads, queries, keys), p, key, site, x.dtype) if sequences else x


def _probabilities(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax over the visible keys; rows in which every score is -inf become zeros."""
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    probabilities = scores.softmax(-1)
    if scores.numel() == 0:
        return probabilities
    # A row without a visible key is NaN throughout. On a CPU reading its first element is cheaper than two more passes
    # over the scores; on a GPU it would be a host-device sync, and recorded or transformed calls have nothing to read.
    readable = scores.device.type == "cpu" and buffers.direct(scores)
    if readable and not bool(probabilities.detach()[..., 0].isnan().any()):
        return probabilities
    masked_rows = scores.detach().amax(-1, keepdim=True) == -math.inf
    return scores.masked_fill(masked_rows, 0.0).softmax(-1).masked_fill(masked_rows, 0.0)
