"""LayerNorm, RMSNorm and their fusions by the Triton kernels, imported when they first run. x is (rows, width)."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert.kernels.configs.norm import WIDEST
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.dropout.triton import kernel_inputs
from fastbert.ops.norm.arguments import GeluLayerNormArguments, LayerNormArguments
from fastbert.ops.operation import Reason
from fastbert.ops.triton_backend import TritonBackend, unsupported_dtype


class LayerNorm(TritonBackend[LayerNormArguments]):
    """bf16, fp16 and fp32; fp32 arithmetic, in which the sum alone is rounded before the result."""

    def supports(self, arguments: LayerNormArguments) -> Reason | None:
        """Support half precision and fp32 up to WIDEST columns on GPUs, and in Triton's interpreter."""
        x, x_bias, residual, weight, bias, *_ = arguments
        return _unsupported(x, weight, bias, residual, x_bias)

    def forward_rows(self, arguments: LayerNormArguments, save: bool) -> tuple[Tensor, ...]:
        """Return norm, sum, and mean and rstd fp32 (rows,); all but the norm are empty without `save`."""
        from fastbert.kernels.norm import layer_norm, rms_norm

        x, x_bias, residual, weight, bias, eps, dropout, rms = arguments
        if rms:
            y, total, rstd = rms_norm.forward(x, x_bias, residual, weight, eps, kernel_inputs(dropout), save)
            return y, total, rstd.new_empty(0), rstd
        bias = torch.zeros_like(weight) if bias is None else bias
        return layer_norm.forward(x, x_bias, residual, weight, bias, eps, kernel_inputs(dropout), save)

    def backward(
        self,
        grad: Tensor,
        grad_total: Tensor | None,
        total: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor,
        dropout: TokenDropout | None,
        *,
        x_bias: bool,
        residual: bool,
        bias: bool = True,
        rms: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return dx, dresidual, and the rows dweight, dbias with a bias, dx_bias with x_bias of one fp32 tensor.

        dresidual is None without a residual, and where it equals dx.
        """
        from fastbert.kernels.norm import layer_norm, rms_norm

        inputs = kernel_inputs(dropout)
        if rms:
            return rms_norm.backward(grad, grad_total, total, rstd, weight, inputs, x_bias=x_bias, residual=residual)
        dx, dresidual, sums = layer_norm.backward(
            grad, grad_total, total, mean, rstd, weight, inputs, x_bias=x_bias, residual=residual
        )
        return dx, dresidual, sums if bias else _without_bias(sums)


class GeluLayerNorm(TritonBackend[GeluLayerNormArguments]):
    """bf16, fp16 and fp32; fp32 arithmetic, nothing rounded before the result."""

    def supports(self, arguments: GeluLayerNormArguments) -> Reason | None:
        """Support half precision and fp32 up to WIDEST columns on GPUs, and in Triton's interpreter."""
        return _unsupported(arguments.x, arguments.weight, arguments.bias, arguments.x_bias)

    def forward_rows(self, arguments: GeluLayerNormArguments, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the norm, and mean and rstd of the GELU, fp32 (rows,), which are empty without `save`."""
        from fastbert.kernels.norm import gelu_layer_norm as kernels

        x, x_bias, weight, bias, eps, tanh = arguments
        bias = torch.zeros_like(weight) if bias is None else bias
        return kernels.forward(x, x_bias, weight, bias, eps, tanh, save)

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        x_bias: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor,
        tanh: bool,
        bias: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return dx; dweight, dbias with a bias, dx_bias with x_bias as rows of one fp32 tensor."""
        from fastbert.kernels.norm import gelu_layer_norm as kernels

        dx, sums = kernels.backward(grad, x, x_bias, mean, rstd, weight, tanh)
        return dx, sums if bias else _without_bias(sums)


def _without_bias(sums: Tensor) -> Tensor:
    """Return the rows dweight and, where there is one, dx_bias: the kernels of LayerNorm always sum the bias too."""
    return torch.cat([sums[:1], sums[2:]])


def _unsupported(x: Tensor, *others: Tensor | None) -> Reason | None:
    TritonBackend.require_device(x.device, "x")
    reason = unsupported_dtype("a tensor", x, *others)
    if reason is None and not 1 <= x.shape[-1] <= WIDEST:
        reason = Reason(f"x has {x.shape[-1]} columns, not 1 to {WIDEST}")
    return reason
