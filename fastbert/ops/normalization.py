"""LayerNorm, alone and behind dropout and a residual connection."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops import backend
from fastbert.ops.dropout import TokenDropout, dropout


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-12) -> Tensor:
    """LayerNorm over the last axis (Ba et al. 2016): x (tokens, width), weight and bias (width,).

    Mean, variance, weight and bias are used in fp32 whatever the dtype of `x`, which the result keeps.
    """
    return backend.select("layer_norm", x.device)(x, weight, bias, eps)


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-12,
    token_dropout: TokenDropout | None = None,
) -> Tensor:
    """LayerNorm(residual + dropout(x)), the end of both halves of an encoder layer (Vaswani et al. 2017, section 3.1).

    x and residual (tokens, width); the sum is rounded to the dtype of `x`, statistics are fp32.
    """
    return backend.select("dropout_add_layer_norm", x.device)(x, residual, weight, bias, eps, token_dropout)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    with backend.without_autocast(x.device):
        if x.dtype == weight.dtype or (x.device.type == "cpu" and x.dtype == torch.bfloat16):
            return F.layer_norm(
                x, x.shape[-1:], weight, bias, eps
            )  # torch's CPU kernel takes bf16 rows and fp32 weights
        return F.layer_norm(x.to(weight.dtype), x.shape[-1:], weight, bias, eps).to(x.dtype)


def _dropout_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, token_dropout: TokenDropout | None
) -> Tensor:
    return _layer_norm(dropout(x, token_dropout) + residual.to(x.dtype), weight, bias, eps)


backend.register("layer_norm", "eager", _layer_norm)
backend.register("dropout_add_layer_norm", "eager", _dropout_add_layer_norm)
