"""The LayerNorm family by the row-wise C++ kernels.

`forward` computes results alone, of any shape; `forward_rows` also what backward reads, of x (rows, width).
"""

from __future__ import annotations

from torch import Tensor

from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.native import rowwise, rowwise_gradients
from fastbert.ops.native.backend import NativeBackend
from fastbert.ops.native.caching_allocator import empty
from fastbert.ops.native.rowwise_tensors import unsupported_rows
from fastbert.ops.norm.arguments import DropoutAddLayerNormArguments, GeluLayerNormArguments, LayerNormArguments
from fastbert.ops.operation import Reason


class NativeLayerNorm(NativeBackend[LayerNormArguments]):
    """bf16 and fp32 of any width; fp32 arithmetic, nothing rounded before the result."""

    def supports(self, arguments: LayerNormArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        return unsupported_rows(arguments.x, arguments.weight, arguments.bias)

    def forward(self, arguments: LayerNormArguments) -> Tensor:
        """Return the norm, contiguous, shape and dtype of x."""
        return rowwise.layer_norm(*arguments)

    def forward_rows(self, arguments: LayerNormArguments, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the norm, and mean and rstd fp32 (rows,), which are empty without `save`."""
        x, weight, bias, eps = arguments
        y, _, mean, rstd = rowwise.norm_forward(x, None, None, weight, bias, eps, None, save)
        return y, mean, rstd

    def backward(self, grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return dx, and dweight and dbias as the rows of one fp32 tensor."""
        dx, _, sums = rowwise_gradients.norm_gradients(
            grad, None, x, mean, rstd, weight, None, x_bias=False, residual=False
        )
        return dx, sums


class NativeDropoutAddLayerNorm(NativeBackend[DropoutAddLayerNormArguments]):
    """bf16 and fp32 of any width; fp32 arithmetic, in which the sum alone is rounded before the result."""

    def supports(self, arguments: DropoutAddLayerNormArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        x, x_bias, residual, weight, bias, _, _ = arguments
        return unsupported_rows(x, weight, bias, residual, x_bias)

    def forward(self, arguments: DropoutAddLayerNormArguments, return_sum: bool) -> tuple[Tensor, Tensor]:
        """Return the norm and, with `return_sum`, the sum, else the norm twice; contiguous, shape and dtype of x."""
        total = empty(arguments.x.shape, arguments.x.dtype) if return_sum else None
        y = rowwise.sum_layer_norm(*arguments, total)
        return y, y if total is None else total

    def forward_rows(self, arguments: DropoutAddLayerNormArguments, save: bool) -> tuple[Tensor, ...]:
        """Return norm, sum, and mean and rstd fp32 (rows,); all but the norm are empty without `save`."""
        return rowwise.norm_forward(*arguments, save)

    def backward(
        self,
        grad: Tensor,
        grad_total: Tensor | None,
        total: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor,
        dropout: TokenDropout | None,
        x_bias: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return dx; dresidual, None where it equals dx; dweight, dbias and, with x_bias, dx_bias as fp32 rows."""
        return rowwise_gradients.norm_gradients(
            grad, grad_total, total, mean, rstd, weight, dropout, x_bias=x_bias, residual=True
        )


class NativeGeluLayerNorm(NativeBackend[GeluLayerNormArguments]):
    """bf16 and fp32 of any width; fp32 arithmetic, nothing rounded before the result."""

    def supports(self, arguments: GeluLayerNormArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        return unsupported_rows(arguments.x, arguments.weight, arguments.bias, arguments.x_bias)

    def forward(self, arguments: GeluLayerNormArguments) -> Tensor:
        """Return the norm, contiguous, shape and dtype of x."""
        return rowwise.gelu_layer_norm(*arguments)

    def forward_rows(self, arguments: GeluLayerNormArguments, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the norm, and mean and rstd of the GELU, fp32 (rows,), which are empty without `save`."""
        return rowwise.gelu_norm_forward(*arguments, save)

    def backward(
        self, grad: Tensor, x: Tensor, x_bias: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, tanh: bool
    ) -> tuple[Tensor, Tensor]:
        """Return dx; dweight, dbias and, with x_bias, dx_bias as rows of one fp32 tensor."""
        return rowwise_gradients.gelu_norm_gradients(grad, x, x_bias, mean, rstd, weight, tanh)
