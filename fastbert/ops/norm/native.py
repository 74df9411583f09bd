"""LayerNorm, RMSNorm and their fusions by the row-wise C++ kernels.

`forward` computes results alone, of any shape; `forward_rows` also what backward reads, of x (rows, width).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.native import buffers, caching_allocator, rowwise
from fastbert.ops.native.caching_allocator import empty
from fastbert.ops.norm.arguments import GeluLayerNormArguments, LayerNormArguments
from fastbert.ops.operation import NativeBackend, Reason


class LayerNorm(NativeBackend[LayerNormArguments]):
    """bf16 and fp32 of any width; fp32 arithmetic, in which the sum alone is rounded before the result."""

    def supports(self, arguments: LayerNormArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        x, x_bias, residual, weight, bias, *_ = arguments
        return rowwise.unsupported(x, weight, bias, residual, x_bias)

    def forward(self, arguments: LayerNormArguments, return_sum: bool) -> tuple[Tensor, Tensor | None]:
        """Return the norm and, with `return_sum`, the sum; contiguous, shape and dtype of x."""
        total = empty(arguments.x.shape, arguments.x.dtype) if return_sum else None
        return self._norm(arguments, 0 if total is None else total.data_ptr(), (0, 0)), total

    def forward_rows(self, arguments: LayerNormArguments, save: bool) -> tuple[Tensor, ...]:
        """Return norm, sum, and mean and rstd fp32 (rows,), which are empty without `save`, and so is the sum.

        RMSNorm's mean is empty. The sum is rounded once, before it is normed; where nothing is added to x or dropped,
        it is x itself.
        """
        x = arguments.x
        total = empty(x.shape if save else (0,), x.dtype) if arguments.is_sum else x
        mean, rstd = rowwise.empty_statistics(x.shape[0], save)
        if arguments.rms:
            mean = caching_allocator.empty((0,), torch.float32)
        addresses = (0 if arguments.rms else mean.data_ptr(), rstd.data_ptr())
        return self._norm(arguments, total.data_ptr(), addresses), total, mean, rstd

    def _norm(self, arguments: LayerNormArguments, total: int, statistics: tuple[int, int]) -> Tensor:
        """Return the norm; the sum, mean and rstd are written to addresses that are not 0."""
        x, x_bias, residual, weight, bias, eps, token_dropout, rms = arguments
        y = empty(x.shape, x.dtype)
        x, rows, stride = rowwise.as_rows(x)
        weight, bias, x_bias, vector_dtype = rowwise.as_vectors(weight, bias, x_bias)
        x_values = (rows, x.shape[-1], buffers.DTYPES[x.dtype], x.data_ptr(), stride)
        vectors = (weight.data_ptr(), 0 if bias is None else bias.data_ptr(), vector_dtype, eps, rms)
        if not arguments.is_sum:
            _C.layer_norm(*x_values, *vectors, y.data_ptr(), *statistics)
            return y
        residual_stride = 0
        if residual is not None:
            residual, _, residual_stride = rowwise.as_rows(residual.to(x.dtype))
        dropout, _tensors = rowwise.dropout_arguments(token_dropout, rows)
        _C.dropout_add_layer_norm(
            *x_values, buffers.address("residual", residual), residual_stride, buffers.address("x_bias", x_bias),
            *vectors, dropout, total, y.data_ptr(), *statistics,
        )  # fmt: skip
        return y

    def backward(
        self,
        grad: Tensor,
        grad_total: Tensor | None,
        total: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor,
        token_dropout: TokenDropout | None,
        *,
        x_bias: bool,
        residual: bool,
        bias: bool = True,
        rms: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return dx, dresidual, and the rows dweight, dbias with a bias, dx_bias with x_bias of one fp32 tensor.

        grad, grad_total and total (rows, width), of any strides; mean and rstd fp32 (rows,). dx and dresidual have the
        dtype of `total`; dresidual is None without a residual, and where it equals dx.
        """
        total, rows, total_stride = rowwise.as_rows(total)
        grad, _, grad_stride = rowwise.as_rows(grad.to(total.dtype))
        grad_total_stride = 0
        if grad_total is not None:
            grad_total, _, grad_total_stride = rowwise.as_rows(grad_total.to(total.dtype))
        dx = empty(total.shape, total.dtype)
        dresidual = empty(total.shape, total.dtype) if residual and token_dropout is not None else None
        sums = empty((1 + bias + x_bias, total.shape[1]), torch.float32)
        buffers.address("weight", weight)
        mean, rstd, weight = mean.contiguous(), rstd.contiguous(), weight.contiguous()
        dropout, _tensors = rowwise.dropout_arguments(token_dropout, rows)
        _C.layer_norm_backward(
            rows, total.shape[1], buffers.DTYPES[total.dtype], grad.data_ptr(), grad_stride,
            buffers.address("grad_total", grad_total), grad_total_stride, total.data_ptr(), total_stride,
            0 if rms else mean.data_ptr(), rstd.data_ptr(), weight.data_ptr(), buffers.DTYPES[weight.dtype], dropout,
            dx.data_ptr(), 0 if dresidual is None else dresidual.data_ptr(), bias, x_bias, rms, sums.data_ptr(),
        )  # fmt: skip
        return dx, dresidual, sums


class GeluLayerNorm(NativeBackend[GeluLayerNormArguments]):
    """bf16 and fp32 of any width; fp32 arithmetic, nothing rounded before the result."""

    def supports(self, arguments: GeluLayerNormArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        return rowwise.unsupported(arguments.x, arguments.weight, arguments.bias, arguments.x_bias)

    def forward(self, arguments: GeluLayerNormArguments, statistics: tuple[int, int] = (0, 0)) -> Tensor:
        """Return the norm, contiguous, shape and dtype of x; mean and rstd are written to addresses that are not 0."""
        x, x_bias, weight, bias, eps, tanh = arguments
        y = empty(x.shape, x.dtype)
        x, rows, stride = rowwise.as_rows(x)
        weight, bias, x_bias, vector_dtype = rowwise.as_vectors(weight, bias, x_bias)
        _C.gelu_layer_norm(
            rows, x.shape[-1], buffers.DTYPES[x.dtype], x.data_ptr(), stride, buffers.address("bias", x_bias),
            weight.data_ptr(), 0 if bias is None else bias.data_ptr(), vector_dtype, eps, tanh, y.data_ptr(),
            *statistics,
        )  # fmt: skip
        return y

    def forward_rows(self, arguments: GeluLayerNormArguments, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the norm, and mean and rstd of the GELU, fp32 (rows,), which are empty without `save`."""
        mean, rstd = rowwise.empty_statistics(arguments.x.shape[0], save)
        return self.forward(arguments, (mean.data_ptr(), rstd.data_ptr())), mean, rstd

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
        """Return dx, shape and dtype of x, and dweight, dbias with a bias, dx_bias with x_bias as rows of fp32."""
        x, rows, x_stride = rowwise.as_rows(x)
        grad, _, grad_stride = rowwise.as_rows(grad.to(x.dtype))
        dx, sums = empty(x.shape, x.dtype), empty((1 + bias + (x_bias is not None), x.shape[1]), torch.float32)
        buffers.address("weight", weight)
        mean, rstd, weight = mean.contiguous(), rstd.contiguous(), weight.contiguous()
        if x_bias is not None:
            weight, _, x_bias, _ = rowwise.as_vectors(weight, None, x_bias)
        _C.gelu_layer_norm_backward(
            rows, x.shape[1], buffers.DTYPES[x.dtype], grad.data_ptr(), grad_stride, x.data_ptr(), x_stride,
            buffers.address("bias", x_bias), weight.data_ptr(), buffers.DTYPES[weight.dtype], tanh,
            mean.data_ptr(), rstd.data_ptr(), dx.data_ptr(), bias, sums.data_ptr(),
        )  # fmt: skip
        return dx, sums
