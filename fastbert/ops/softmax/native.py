"""`softmax` by the row-wise C++ kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops.dropout.arguments import quantized_attention
from fastbert.ops.native import buffers, rowwise
from fastbert.ops.native.caching_allocator import empty
from fastbert.ops.operation import NativeBackend, Reason
from fastbert.ops.softmax.arguments import SoftmaxArguments

# Sizes, dtype, address and strides of scores; address and strides of their mask; scale; key, site, threshold and scale
# of their dropout.
_KernelInputs: TypeAlias = tuple[
    Sequence[int], str, int, Sequence[int], int, Sequence[int], float, tuple[int, int, int, float] | None
]


class Native(NativeBackend[SoftmaxArguments]):
    """bf16 and fp32 of any strides; fp32 arithmetic, nothing rounded before the result."""

    def supports(self, arguments: SoftmaxArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        return rowwise.unsupported(arguments.scores)

    def forward(self, arguments: SoftmaxArguments) -> Tensor:
        """Return probabilities, contiguous, shape and dtype of scores."""
        values, _tensors = _kernel_inputs(arguments)
        probabilities = empty(arguments.scores.shape, arguments.scores.dtype)
        _C.softmax(*values, probabilities.data_ptr())
        return probabilities

    def backward(self, arguments: SoftmaxArguments, grad: Tensor) -> Tensor:
        """Return the gradient of scores, contiguous; the probabilities are recomputed."""
        values, _tensors = _kernel_inputs(arguments)
        grad = grad.to(arguments.scores.dtype).contiguous()
        dscores = empty(arguments.scores.shape, arguments.scores.dtype)
        _C.softmax_backward(*values, grad.data_ptr(), dscores.data_ptr())
        return dscores


def _kernel_inputs(arguments: SoftmaxArguments) -> tuple[_KernelInputs, tuple[Tensor | None, ...]]:
    """Return scores, mask and dropout as kernels receive them, and the tensors that must outlive the call."""
    scores, mask, scale, dropout_p, dropout_key, dropout_site = arguments
    if scores.shape[3] > 1 and scores.stride(3) != 1:
        # contiguous() would not copy scores without elements.
        scores = scores.clone(memory_format=torch.contiguous_format)
    mask = None if mask is None else mask.expand(scores.shape)
    dropout = None
    if dropout_key is not None:
        dropout_key = dropout_key.contiguous()
        dropout = (dropout_key.data_ptr(), dropout_site, *quantized_attention(dropout_p))
    values = (
        scores.shape, buffers.DTYPES[scores.dtype], scores.data_ptr(), scores.stride(), buffers.address("mask", mask),
        (0, 0, 0, 0) if mask is None else mask.stride(), scale, dropout,
    )  # fmt: skip
    return values, (scores, mask, dropout_key)
