"""The gradients of the row-wise operations of the `native` backend, by the C++ kernels of csrc/cpu/rowwise.

The gradients of vectors are fp32, summed in blocks of a fixed number of rows and then in the order of the blocks: the
same bits on every run and with any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.native import buffers
from fastbert.ops.native.buffers import DTYPES
from fastbert.ops.native.caching_allocator import empty
from fastbert.ops.native.rowwise_tensors import (
    as_rows,
    as_vectors,
    dropout_arguments,
    scores_arguments,
    table_arguments,
)
from fastbert.ops.softmax.arguments import SoftmaxArguments


def norm_gradients(
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
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return dx, dresidual, and the rows dweight, dbias and, with x_bias, dx_bias of one fp32 (2 or 3, width).

    grad, grad_total and total (rows, width), of any strides; mean and rstd fp32 (rows,). dx and dresidual have the
    dtype of `total`; dresidual is None without a residual, and where it equals dx.
    """
    width = total.shape[1]
    total, rows, total_stride = as_rows(total)
    grad, _, grad_stride = as_rows(grad.to(total.dtype))
    grad_total_stride = 0
    if grad_total is not None:
        grad_total, _, grad_total_stride = as_rows(grad_total.to(total.dtype))
    dx = empty(total.shape, total.dtype)
    dresidual = empty(total.shape, total.dtype) if residual and token_dropout is not None else None
    sums = empty((3 if x_bias else 2, width), torch.float32)
    buffers.address("weight", weight)
    mean, rstd, weight = mean.contiguous(), rstd.contiguous(), weight.contiguous()
    dropout, _tensors = dropout_arguments(token_dropout, rows)
    _C.layer_norm_backward(
        rows, width, DTYPES[total.dtype], grad.data_ptr(), grad_stride,
        buffers.address("grad_total", grad_total), grad_total_stride, total.data_ptr(), total_stride,
        mean.data_ptr(), rstd.data_ptr(), weight.data_ptr(), DTYPES[weight.dtype], dropout,
        dx.data_ptr(), 0 if dresidual is None else dresidual.data_ptr(), x_bias, sums.data_ptr(),
    )  # fmt: skip
    return dx, dresidual, sums


def gelu_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool, sums: bool, recompute: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradient of x, with `sums` its fp32 sums over all but the last axis, with `recompute` GELU(x + bias).

    grad and x (..., width) of any strides; results are contiguous, in the dtype of x but for the sums.
    """
    width, shape = x.shape[-1], x.shape
    x, rows, x_stride = as_rows(x)
    grad, grad_rows, grad_stride = as_rows(grad.to(x.dtype))
    assert grad_rows == rows
    dx, y = empty(shape, x.dtype), empty(shape, x.dtype) if recompute else None
    total = empty((width,), torch.float32) if sums else None
    bias = None if bias is None else bias.contiguous()
    _C.bias_gelu_backward(
        rows, width, DTYPES[x.dtype], grad.data_ptr(), grad_stride, x.data_ptr(), x_stride,
        buffers.address("bias", bias), "fp32" if bias is None else DTYPES[bias.dtype], tanh,
        dx.data_ptr(), 0 if y is None else y.data_ptr(), 0 if total is None else total.data_ptr(),
    )  # fmt: skip
    return dx, total, y


def gelu_norm_gradients(
    grad: Tensor, x: Tensor, x_bias: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, tanh: bool
) -> tuple[Tensor, Tensor]:
    """Return dx, shape and dtype of x, and the rows dweight, dbias and, with x_bias, dx_bias of one fp32 tensor."""
    width = x.shape[1]
    x, rows, x_stride = as_rows(x)
    grad, _, grad_stride = as_rows(grad.to(x.dtype))
    dx, sums = empty(x.shape, x.dtype), empty((2 if x_bias is None else 3, width), torch.float32)
    buffers.address("weight", weight)
    mean, rstd, weight = mean.contiguous(), rstd.contiguous(), weight.contiguous()
    if x_bias is not None:
        weight, x_bias, _, _ = as_vectors(weight, x_bias)
    _C.gelu_layer_norm_backward(
        rows, width, DTYPES[x.dtype], grad.data_ptr(), grad_stride, x.data_ptr(), x_stride,
        buffers.address("bias", x_bias), weight.data_ptr(), DTYPES[weight.dtype], tanh,
        mean.data_ptr(), rstd.data_ptr(), dx.data_ptr(), sums.data_ptr(),
    )  # fmt: skip
    return dx, sums


def embedding_gradients(
    grad: Tensor,
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    token_dropout: TokenDropout | None,
    needs_gradient: Sequence[bool],
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return the gradients of the tables, dense and in their dtype, of weight and of bias, in that of weight.

    grad (tokens, width), fp32 or bf16. The gradient of a token's sum of embeddings is fp32, and every row of a table is
    written once. Gradients that are not needed have no elements.
    """
    width, tokens = tables[0].shape[1], ids[0].shape[0]
    grad, _, grad_stride = as_rows(grad)
    dsum, sums = empty((tokens, width), torch.float32), empty((2, width), torch.float32)
    buffers.address("weight", weight)
    mean, rstd, weight = mean.contiguous(), rstd.contiguous(), weight.contiguous()
    dropout, _tensors = dropout_arguments(token_dropout, tokens)
    _C.embedding_layer_norm_backward(
        tokens, width, DTYPES[tables[0].dtype], DTYPES[grad.dtype],
        table_arguments(ids, tables), grad.data_ptr(), grad_stride, mean.data_ptr(), rstd.data_ptr(),
        weight.data_ptr(), DTYPES[weight.dtype], dropout, dsum.data_ptr(), sums.data_ptr(),
    )  # fmt: skip
    gradients = []
    for index, table, needed in zip(ids, tables, needs_gradient, strict=True):
        gradient = empty(table.shape if needed else (0,), table.dtype)
        gradients.append(gradient)
        if not needed:
            continue
        _C.embedding_backward(
            tokens, width, DTYPES[table.dtype], dsum.data_ptr(),
            index.data_ptr(), index.stride(0), index.dtype == torch.int64, table.shape[0], gradient.data_ptr(),
        )  # fmt: skip
    # Copies, because the results of an operator must not share memory.
    return gradients, *(row.to(weight.dtype, copy=True) for row in sums)


def softmax_gradient(arguments: SoftmaxArguments, grad: Tensor) -> Tensor:
    """Return the gradient of scores, contiguous; the probabilities are recomputed."""
    values, _tensors = scores_arguments(arguments)
    grad = grad.to(arguments.scores.dtype).contiguous()
    dscores = empty(arguments.scores.shape, arguments.scores.dtype)
    _C.softmax_backward(*values, grad.data_ptr(), dscores.data_ptr())
    return dscores
