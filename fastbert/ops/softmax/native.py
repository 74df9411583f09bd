"""`softmax` by the row-wise C++ kernels."""

from __future__ import annotations

from torch import Tensor

from fastbert.ops.native import rowwise, rowwise_gradients
from fastbert.ops.native.backend import NativeBackend
from fastbert.ops.native.rowwise_tensors import unsupported_rows
from fastbert.ops.operation import Reason
from fastbert.ops.softmax.arguments import SoftmaxArguments


class Native(NativeBackend[SoftmaxArguments]):
    """bf16 and fp32 of any strides; fp32 arithmetic, nothing rounded before the result."""

    def supports(self, arguments: SoftmaxArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        return unsupported_rows(arguments.scores)

    def forward(self, arguments: SoftmaxArguments) -> Tensor:
        """Return probabilities, contiguous, shape and dtype of scores."""
        return rowwise.softmax(arguments)

    def backward(self, arguments: SoftmaxArguments, grad: Tensor) -> Tensor:
        """Return the gradient of scores, contiguous; the probabilities are recomputed."""
        return rowwise_gradients.softmax_gradient(arguments, grad)
