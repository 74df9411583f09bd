"""A linear layer in flat buffers as a node of autograd: it has the gradient of its input alone.

As for whole layers (`fastbert/ops/encoder_layer/accumulating.py`), the matmul of the weight's gradient adds to the
buffer that the optimiser reads, in fp32; autocast would round that gradient to half precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fastbert.kernels.matmul import add_matmul
from fastbert.ops.autocast import without_autocast
from fastbert.ops.dispatch import needs_backward
from fastbert.ops.encoder_layer.flat_layer import FlatWeights


def run(x: Tensor, weight: Tensor, bias: Tensor | None, weights: FlatWeights, dtype: torch.dtype) -> Tensor:
    """Compute x weight^T + bias in `dtype`, of which `weights` hold the copies; x (..., in)."""
    if needs_backward(x, weight, bias):
        output: Tensor = _Linear.apply(x, weight, bias, weights, dtype)
        return output
    return _multiply(x.to(dtype), weight, bias, weights)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, weights: FlatWeights) -> Tensor:
    copies = [None if parameter is None else weights.shadow(parameter, x.dtype) for parameter in (weight, bias)]
    with without_autocast(x.device):
        return F.linear(x, *copies)  # type: ignore[arg-type]


class _Linear(Function):
    """The linear layer of x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weights: FlatWeights, dtype: torch.dtype
    ) -> Tensor:
        narrow = x.to(dtype)
        ctx.save_for_backward(narrow)
        ctx.parameters, ctx.weights, ctx.dtype = (weight, bias), weights, x.dtype
        return _multiply(narrow, weight, bias, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (weight, bias), weights = ctx.saved_tensors, ctx.parameters, ctx.weights
        rows = grad.reshape(-1, grad.shape[-1])
        with without_autocast(grad.device):
            dx = (grad @ weights.shadow(weight, x.dtype)).to(ctx.dtype) if ctx.needs_input_grad[0] else None
            add_matmul(weights.claim(weight), rows.t(), x.reshape(-1, x.shape[-1]), fresh=False)
            if bias is not None:
                weights.claim(bias).add_(rows.sum(0, dtype=torch.float32))
        return dx, None, None, None, None
