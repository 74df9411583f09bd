"""The feed-forward network of an encoder layer around GELU, forward and backward: by our matmuls with GELU in their
epilogues where the default configurations prefer them, else by torch's library with one pass behind it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.kernels.gelu import bias_gelu
from fastbert.kernels.linear import linear


def _fuses_gelu(x: Tensor, weight: Tensor) -> bool:
    """Return whether our matmuls, with GELU in their epilogues, compute the feed-forward network."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    return half and all(size % 16 == 0 for size in weight.shape) and linear.prefers_own(x)


def expand(y1: Tensor, weight: Tensor, bias: Tensor, tanh: bool, keep: bool) -> tuple[Tensor, Tensor]:
    """Return h = GELU(u) and u = y1 weight^T + bias; u may be empty without `keep`."""
    weight = weight.to(y1.dtype)
    if _fuses_gelu(y1, weight):
        return linear.linear_gelu(y1, weight, bias, tanh, keep)
    u = F.linear(y1, weight, bias.to(y1.dtype))
    return bias_gelu.forward(u, None, tanh), u


def contract_backward(df: Tensor, u: Tensor, weight: Tensor, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of u, h computed again, and the fp32 sums of the former over its rows; df is the gradient of
    h weight^T."""
    weight = weight.to(df.dtype)
    if _fuses_gelu(df, weight):
        return linear.gelu_gradient_product(df, weight, u, tanh)
    return bias_gelu.backward_again(df @ weight, u, tanh)
