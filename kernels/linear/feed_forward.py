"""The matmuls next to GELU in a feed-forward layer: fused kernels where the configurations prefer them, else passes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.kernels.columns import Reduction, column_sums
from fastbert.kernels.gelu import bias_gelu
from fastbert.kernels.linear import linear


def _fuses(x: Tensor, weight: Tensor, *, backward: bool = False) -> bool:
    half = x.dtype in (torch.bfloat16, torch.float16)
    return half and all(size % 16 == 0 for size in weight.shape) and linear.prefers_fused(x, backward=backward)


def up_projection(x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, keep_u: bool) -> tuple[Tensor, Tensor]:
    """Return h = gelu(u) and u = x weight^T + bias, which may be empty without `keep_u`.

    x (rows, depth) and weight (columns, depth) have one dtype, bias (columns,) that or fp32.
    """
    if _fuses(x, weight):
        return linear.linear_gelu(x, weight, bias, tanh, keep_u)
    u = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    return bias_gelu.forward(u, None, tanh), u


def down_projection_backward(
    grad: Tensor, weight: Tensor, u: Tensor, tanh: bool, reduction: Reduction = column_sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of u, h = gelu(u) recomputed, and the fp32 sums of the former over the rows, by `reduction`.

    grad (rows, depth) is the gradient of the down-projection h weight^T, with weight (depth, columns) in its dtype.
    """
    if _fuses(grad, weight, backward=True):
        return linear.linear_gelu_backward(grad, weight, u, tanh, reduction)
    return bias_gelu.backward_with_output(grad @ weight, u, tanh, reduction)
