"""`gated_activation` by the row-wise C++ kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops.gated.arguments import GatedArguments
from fastbert.ops.native import buffers, rowwise
from fastbert.ops.native.caching_allocator import empty
from fastbert.ops.operation import NativeBackend, Reason


class Native(NativeBackend[GatedArguments]):
    """bf16 and fp32 on CPUs with a bias in either; fp32 arithmetic, nothing rounded before the result."""

    def supports(self, arguments: GatedArguments) -> Reason | None:
        """Support rows of bf16 and fp32 outside of compilers, tracers and transforms."""
        return rowwise.unsupported(arguments.x, arguments.bias)

    def forward(self, arguments: GatedArguments) -> Tensor:
        """Return the product, contiguous (..., width) in the dtype of x."""
        x, bias, activation = arguments
        y = empty((*x.shape[:-1], arguments.width), x.dtype)
        x, rows, stride = rowwise.as_rows(x)
        bias = None if bias is None else bias.contiguous()
        _C.gated_activation(
            rows, arguments.width, buffers.DTYPES[x.dtype], x.data_ptr(), stride, buffers.address("bias", bias),
            "fp32" if bias is None else buffers.DTYPES[bias.dtype], activation, y.data_ptr(),
        )  # fmt: skip
        return y

    def backward(self, arguments: GatedArguments, grad: Tensor, sums: bool) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of x and, with `sums`, its fp32 sums over all but the last axis, both contiguous."""
        x, bias, activation = arguments
        dx, total = empty(x.shape, x.dtype), empty(x.shape[-1:], torch.float32) if sums else None
        x, rows, x_stride = rowwise.as_rows(x)
        grad, grad_rows, grad_stride = rowwise.as_rows(grad.to(x.dtype))
        assert grad_rows == rows
        bias = None if bias is None else bias.contiguous()
        _C.gated_activation_backward(
            rows, arguments.width, buffers.DTYPES[x.dtype], grad.data_ptr(), grad_stride, x.data_ptr(), x_stride,
            buffers.address("bias", bias), "fp32" if bias is None else buffers.DTYPES[bias.dtype], activation,
            dx.data_ptr(), 0 if total is None else total.data_ptr(),
        )  # fmt: skip
        return dx, total
