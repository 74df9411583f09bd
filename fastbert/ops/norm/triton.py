"""The LayerNorm family by the Triton kernels, which are imported when they first run. x is (rows, width)."""

from __future__ import annotations

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
        x, x_bias, residual, weight, bias, _, _ = arguments
        return _unsupported(x, weight, bias, residual, x_bias)

    def forward_rows(self, arguments: LayerNormArguments, save: bool) -> tuple[Tensor, ...]:
        """Return norm, sum, and mean and rstd fp32 (rows,); all but the norm are empty without `save`."""
        from fastbert.kernels.norm import layer_norm as kernels

        x, x_bias, residual, weight, bias, eps, dropout = arguments
        return kernels.forward(x, x_bias, residual, weight, bias, eps, kernel_inputs(dropout), save)

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
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return dx, dresidual, and the rows dweight, dbias and, with x_bias, dx_bias of one fp32 tensor.

        dresidual is None without a residual, and where it equals dx.
        """
        from fastbert.kernels.norm import layer_norm as kernels

        inputs = kernel_inputs(dropout)
        return kernels.backward(grad, grad_total, total, mean, rstd, weight, inputs, x_bias=x_bias, residual=residual)


class GeluLayerNorm(TritonBackend[GeluLayerNormArguments]):
    """bf16, fp16 and fp32; fp32 arithmetic, nothing rounded before the result."""

    def supports(self, arguments: GeluLayerNormArguments) -> Reason | None:
        """Support half precision and fp32 up to WIDEST columns on GPUs, and in Triton's interpreter."""
        return _unsupported(arguments.x, arguments.weight, arguments.bias, arguments.x_bias)

    def forward_rows(self, arguments: GeluLayerNormArguments, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the norm, and mean and rstd of the GELU, fp32 (rows,), which are empty without `save`."""
        from fastbert.kernels.norm import gelu_layer_norm as kernels

        return kernels.forward(*arguments, save)

    def backward(
        self, grad: Tensor, x: Tensor, x_bias: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, tanh: bool
    ) -> tuple[Tensor, Tensor]:
        """Return dx; dweight, dbias and, with x_bias, dx_bias as rows of one fp32 tensor."""
        from fastbert.kernels.norm import gelu_layer_norm as kernels

        return kernels.backward(grad, x, x_bias, mean, rstd, weight, tanh)


def _unsupported(x: Tensor, *others: Tensor | None) -> Reason | None:
    TritonBackend.require_device(x.device, "x")
    reason = unsupported_dtype("a tensor", x, *others)
    if reason is None and not 1 <= x.shape[-1] <= WIDEST:
        reason = Reason(f"x has {x.shape[-1]} columns, not 1 to {WIDEST}")
    return reason
