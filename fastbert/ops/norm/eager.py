"""LayerNorm, RMSNorm and their fusions composed of PyTorch operations."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.autocast import without_autocast
from fastbert.ops.dropout.op import dropout
from fastbert.ops.gelu.arguments import BiasGeluArguments
from fastbert.ops.gelu.eager import Eager as EagerBiasGelu
from fastbert.ops.norm.arguments import GeluLayerNormArguments, LayerNormArguments
from fastbert.ops.operation import EagerBackend


class LayerNorm(EagerBackend[LayerNormArguments]):
    """The norm in fp32, or in float64 if one of the dtypes is, of a sum that is rounded to the dtype of x."""

    def forward(self, arguments: LayerNormArguments, return_sum: bool) -> tuple[Tensor, Tensor]:
        """Return the norm and the sum, shape and dtype of x."""
        x, x_bias, residual, weight, bias, eps, token_dropout, rms = arguments
        if x_bias is not None:
            x = x + x_bias.to(x.dtype)
        total = dropout(x, token_dropout)
        if residual is not None:
            total = total + residual.to(x.dtype)
        return _rms_norm(total, weight, eps) if rms else _layer_norm(total, weight, bias, eps), total


class GeluLayerNorm(EagerBackend[GeluLayerNormArguments]):
    """LayerNorm of a GELU that is rounded to the dtype of x."""

    def forward(self, arguments: GeluLayerNormArguments) -> Tensor:
        """Return the norm, shape and dtype of x."""
        x, x_bias, weight, bias, eps, tanh = arguments
        return _layer_norm(EagerBiasGelu().forward(BiasGeluArguments(x, x_bias, tanh)), weight, bias, eps)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    with without_autocast(x.device):
        y = x.to(wide)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.to(wide)
    return y.to(x.dtype)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    vectors = [weight] if bias is None else [weight, bias]
    trained = torch.is_grad_enabled() and any(vector.requires_grad for vector in vectors)
    # PyTorch's CPU kernel accepts bf16 rows with fp32 weights, but sums the weights' gradients in bf16.
    mixed = x.device.type == "cpu" and x.dtype == torch.bfloat16 and not trained
    # An int also while torch.jit traces: the ONNX exporter rejects a width that depends on the input.
    shape = (int(weight.shape[0]),)
    with without_autocast(x.device):
        dtypes = {vector.dtype for vector in vectors}
        if dtypes == {x.dtype} or (mixed and dtypes == {torch.float32}):
            return F.layer_norm(x, shape, weight, bias, eps)
        # Two half-precision dtypes promote to fp32: nothing is rounded before the norm.
        wide = functools.reduce(torch.promote_types, dtypes, x.dtype)
        wide_bias = None if bias is None else bias.to(wide)
        return F.layer_norm(x.to(wide), shape, weight.to(wide), wide_bias, eps).to(x.dtype)
