"""The LayerNorm family by the row-wise C++ kernels.

`forward` computes results alone, of any shape; `forward_rows` also what backward reads, of x (rows, width).
"""

from __future__ import annotations

from torch import Tensor

from fastbert.ops.native import rowwise, rowwise_gradients
from fastbert.ops.native.backend import NativeBackend
from fastbert.ops.native.caching_allocator import empty
from fastbert.ops.native.rowwise_tensors import unsupported_rows
from fastbert.ops.norm.arguments import GeluLayerNormArguments, LayerNormArguments
from fastbert.ops.operation import Reason


class NativeLayerNorm(NativeBackend[LayerNormArguments]):
    """bf16 and fp32 of any width; fp32 arithmetic, in which the sum alone is rounded before the result."""

    backward = staticmethod(rowwise_gradients.norm_gradients)

    def supports(self, arguments: LayerNormArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        x, x_bias, residual, weight, bias, _, _ = arguments
        return unsupported_rows(x, weight, bias, residual, x_bias)

    def forward(self, arguments: LayerNormArguments, return_sum: bool) -> tuple[Tensor, Tensor]:
        """Return the norm and, with `return_sum`, the sum, else the norm twice; contiguous, shape and dtype of x."""
        x, _, _, weight, bias, eps, _ = arguments
        if not arguments.is_sum:
            return rowwise.layer_norm(x, weight, bias, eps), x
        total = empty(x.shape, x.dtype) if return_sum else None
        y = rowwise.sum_layer_norm(*arguments, total)
        return y, y if total is None else total

    def forward_rows(self, arguments: LayerNormArguments, save: bool) -> tuple[Tensor, ...]:
        """Return norm, sum, and mean and rstd fp32 (rows,); all but the norm are empty without `save`."""
        return rowwise.norm_forward(*arguments, save)


class NativeGeluLayerNorm(NativeBackend[GeluLayerNormArguments]):
    """bf16 and fp32 of any width; fp32 arithmetic, nothing rounded before the result."""

    backward = staticmethod(rowwise_gradients.gelu_norm_gradients)

    def supports(self, arguments: GeluLayerNormArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        return unsupported_rows(arguments.x, arguments.weight, arguments.bias, arguments.x_bias)

    def forward(self, arguments: GeluLayerNormArguments) -> Tensor:
        """Return the norm, contiguous, shape and dtype of x."""
        return rowwise.gelu_layer_norm(*arguments)

    def forward_rows(self, arguments: GeluLayerNormArguments, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the norm, and mean and rstd of the GELU, fp32 (rows,), which are empty without `save`."""
        return rowwise.gelu_norm_forward(*arguments, save)
