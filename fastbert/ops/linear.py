"""Matrix products: the linear layer."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fastbert.ops import backend


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x (tokens, in), weight (out, in), bias (out,). Under autocast the operands are cast."""
    return backend.select("linear", x.device)(x, weight, bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


backend.register("linear", "eager", _linear)
