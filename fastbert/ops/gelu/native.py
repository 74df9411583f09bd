"""`bias_gelu` by the row-wise C++ kernels."""

from __future__ import annotations

from torch import Tensor

from fastbert.ops.gelu.arguments import BiasGeluArguments
from fastbert.ops.native import rowwise, rowwise_gradients
from fastbert.ops.native.backend import NativeBackend
from fastbert.ops.native.rowwise_tensors import unsupported_rows
from fastbert.ops.operation import Reason


class Native(NativeBackend[BiasGeluArguments]):
    """bf16 and fp32 on CPUs with a bias in either; fp32 arithmetic, nothing rounded before the result."""

    def supports(self, arguments: BiasGeluArguments) -> Reason | None:
        """Support rows of bf16 and fp32 outside of compilers, tracers and transforms."""
        return unsupported_rows(arguments.x, arguments.bias)

    def forward(self, arguments: BiasGeluArguments) -> Tensor:
        """Return GELU(x + bias), contiguous, shape and dtype of x."""
        return rowwise.bias_gelu(arguments.x, arguments.bias, arguments.tanh)

    def backward(self, arguments: BiasGeluArguments, grad: Tensor, sums: bool) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of x and, with `sums`, its fp32 sums over all but the last axis."""
        return rowwise_gradients.gelu_backward(grad, arguments.x, arguments.bias, arguments.tanh, sums)[:2]
