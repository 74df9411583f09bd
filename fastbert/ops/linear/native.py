"""The linear layer by the C++ matmul with prepacked weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastbert.ops import dispatch
from fastbert.ops.autocast import matmul_dtype
from fastbert.ops.gelu.arguments import BiasGeluArguments
from fastbert.ops.gelu.op import BIAS_GELU
from fastbert.ops.linear.arguments import GradMask, LinearArguments
from fastbert.ops.native import buffers, caching_allocator, matmul, matmul_table, prepacked_weights
from fastbert.ops.operation import NativeBackend, Reason

# Training leaves weights with fewer inputs or outputs to PyTorch: the native matmul would mostly compute padding.
MIN_TRAINED_SIZE = 32


class Native(NativeBackend[LinearArguments]):
    """bf16 and fp32 on CPUs, with bias and GELU in the epilogue of the matmul."""

    summary = "inference and training in fp32 and bf16, where the table of matmuls prefers it"

    def supports(self, arguments: LinearArguments) -> Reason | None:
        """Support parameters of plain calls where the table of matmuls prefers the native one.

        `use_backend` forces every call that the kernels support, traced ones too.
        """
        x, weight, bias, _ = arguments
        if buffers.is_transformed():
            return Reason("torch transforms the call")
        reason, dtype = buffers.unsupported(x, weight, bias), matmul_dtype(x)
        if reason is None and dtype not in buffers.DTYPES:
            return Reason(f"autocast multiplies {dtype}, not bfloat16 or float32")
        if reason is not None or dispatch.forced() == self.name:
            return reason
        if not buffers.direct(x, weight, bias):
            return Reason("the call is traced, and tracers fuse PyTorch operations")
        if not isinstance(weight, torch.nn.Parameter):
            return Reason("weight is not a parameter: a prepacked copy of it may never be used again")
        if min(weight.shape) < MIN_TRAINED_SIZE and dispatch.needs_backward(x, weight, bias):
            return Reason(f"weight has fewer than {MIN_TRAINED_SIZE} inputs or outputs, and a backward pass may follow")
        if not matmul_table.prefers_native(buffers.DTYPES[dtype], math.prod(x.shape[:-1]), *weight.shape):
            return Reason("the table of matmuls prefers PyTorch's")
        return None

    def infer(self, arguments: LinearArguments) -> Tensor:
        """Return activation(x weight^T + bias), rounded once, without a backward pass."""
        x, weight, bias, activation = arguments
        dtype, rows = matmul_dtype(x), arguments.rows
        prepacked = prepacked_weights.prepacked(weight, buffers.DTYPES[dtype], rows=len(rows))
        y = matmul.matmul(matmul.row_contiguous(rows), prepacked, bias, activation, out_dtype=dtype)
        return y.view(arguments.output_shape)

    def forward(self, arguments: LinearArguments) -> tuple[Tensor, Tensor]:
        """Return y = activation(u) and, with an activation, u = x weight^T + bias; x (rows, in) has their dtype."""
        x, weight, bias, activation = arguments
        shape = len(x), len(weight)
        u = caching_allocator.empty(shape if activation else (0, shape[1]), x.dtype)
        prepacked = prepacked_weights.prepacked(weight, buffers.DTYPES[x.dtype])
        y, rows = caching_allocator.empty(shape, x.dtype), matmul.row_contiguous(x)
        matmul.matmul(rows, prepacked, bias, activation, out=y, pre_activation=u if activation else None)
        return y, u

    def backward(
        self, arguments: LinearArguments, u: Tensor, grad: Tensor, mask: GradMask
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of x, weight and bias, each in its tensor's dtype; masked ones are empty."""
        x, weight, bias, activation = arguments
        if activation and u.shape[1]:
            gelu = BiasGeluArguments(u, None, activation == "gelu_tanh")
            grad = BIAS_GELU.backend(self.name).backward(gelu, grad, False)[0]
        grad = matmul.row_contiguous(grad)
        dx, dweight, dbias = x.new_empty(0), weight.new_empty(0), x.new_empty(0, dtype=torch.float32)
        if mask.x:
            prepacked = prepacked_weights.prepacked(weight, buffers.DTYPES[x.dtype], transposed=True)
            dx = matmul.matmul(grad, prepacked, out=caching_allocator.empty(tuple(x.shape), x.dtype))
        if mask.weight:
            dweight, sums = matmul.weight_gradient(grad, matmul.row_contiguous(x), sums=mask.bias)
            dbias = dbias if sums is None else sums
        elif mask.bias:
            dbias = grad.sum(0, dtype=torch.float32)
        return dx, dweight.to(weight.dtype), dbias if bias is None else dbias.to(bias.dtype)
