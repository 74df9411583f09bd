"""The row-wise operations of the `native` backend, by the C++ kernels of csrc/cpu/rowwise.

Calls come from the operations' backends and from the fused encoder layer; `rowwise_tensors.unsupported_rows` tells
which are supported. Gradients are in `rowwise_gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.embedding.ids import refuse_id
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

# Mean and rstd (1 / deviation) of the rows that are normed, fp32 (rows,).
Statistics: TypeAlias = tuple[Tensor, Tensor]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, statistics: Statistics | None = None) -> Tensor:
    """Return LayerNorm of x (..., width), contiguous; `statistics` are written where they are given."""
    y = empty(x.shape, x.dtype)
    x, rows, stride = as_rows(x)
    weight, bias, _, dtype = as_vectors(weight, bias)
    _C.layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, weight.data_ptr(), bias.data_ptr(), dtype, eps,
        y.data_ptr(), *_addresses(statistics),
    )  # fmt: skip
    return y


def sum_layer_norm(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
    total: Tensor | None,
    statistics: Statistics | None = None,
) -> Tensor:
    """Return LayerNorm of dropout(x + x_bias) + residual, x and residual (..., width), contiguous.

    The sum is written to `total`, and mean and rstd to `statistics`, where they are given.
    """
    y = empty(x.shape, x.dtype)
    x, rows, stride = as_rows(x)
    residual_stride = 0
    if residual is not None:
        residual, _, residual_stride = as_rows(residual.to(x.dtype))
    weight, bias, x_bias, dtype = as_vectors(weight, bias, x_bias)
    dropout, _tensors = dropout_arguments(token_dropout, rows)
    _C.dropout_add_layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride,
        buffers.address("residual", residual), residual_stride, buffers.address("x_bias", x_bias),
        weight.data_ptr(), bias.data_ptr(), dtype, eps, dropout, 0 if total is None else total.data_ptr(),
        y.data_ptr(), *_addresses(statistics),
    )  # fmt: skip
    return y


def norm_forward(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return LayerNorm of total = dropout(x + x_bias) + residual, total, mean and rstd.

    x and residual are (rows, width); y and total have their shape and the dtype of x, mean and rstd are fp32 (rows,);
    all but y are empty without `save`. The sum is rounded to the dtype of x once, before it is normed. Where nothing is
    added or dropped, total is `x` itself.
    """
    statistics = _empty_statistics(x.shape[0], save)
    saved = statistics if save else None
    if x_bias is None and residual is None and token_dropout is None:
        return layer_norm(x, weight, bias, eps, saved), x, *statistics
    total = empty(x.shape, x.dtype) if save else x.new_empty(0)
    y = sum_layer_norm(x, x_bias, residual, weight, bias, eps, token_dropout, total if save else None, saved)
    return y, total, *statistics


def _empty_statistics(rows: int, save: bool) -> Statistics:
    """Return memory for mean and rstd, fp32 (rows,), without elements unless they are saved."""
    count = rows if save else 0
    return empty((count,), torch.float32), empty((count,), torch.float32)


def _addresses(statistics: Statistics | None) -> tuple[int, int]:
    return (0, 0) if statistics is None else (statistics[0].data_ptr(), statistics[1].data_ptr())


def bias_gelu(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    """Return GELU(x + bias), contiguous: x (..., width) of any strides, bias (width,)."""
    x, rows, stride = as_rows(x)
    y = empty(x.shape, x.dtype)
    bias = None if bias is None else bias.contiguous()
    _C.bias_gelu(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, buffers.address("bias", bias),
        "fp32" if bias is None else DTYPES[bias.dtype], tanh, y.data_ptr(),
    )  # fmt: skip
    return y


def gelu_norm_forward(
    x: Tensor, x_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float, tanh: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return LayerNorm(GELU(x + x_bias)) of x (rows, width), and mean and rstd of the GELU, fp32 (rows,).

    The statistics are empty without `save`.
    """
    statistics = _empty_statistics(x.shape[0], save)
    return gelu_layer_norm(x, x_bias, weight, bias, eps, tanh, statistics if save else None), *statistics


def gelu_layer_norm(
    x: Tensor,
    x_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    tanh: bool,
    statistics: Statistics | None = None,
) -> Tensor:
    """Return LayerNorm(GELU(x + x_bias)) of x (..., width), contiguous; `statistics` are written where given."""
    y = empty(x.shape, x.dtype)
    x, rows, stride = as_rows(x)
    weight, bias, x_bias, dtype = as_vectors(weight, bias, x_bias)
    _C.gelu_layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, buffers.address("bias", x_bias),
        weight.data_ptr(), bias.data_ptr(), dtype, eps, tanh, y.data_ptr(), *_addresses(statistics),
    )  # fmt: skip
    return y


def embedding_forward(
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dtype: torch.dtype,
    token_dropout: TokenDropout | None,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dropout(LayerNorm(sum of table rows)) (tokens, width) in `dtype`, and mean and rstd fp32 (tokens,).

    The statistics are empty without `save`. Raises UserError for an id outside its table.
    """
    tokens, width = ids[0].shape[0], tables[0].shape[1]
    y, statistics = empty((tokens, width), dtype), _empty_statistics(tokens, save)
    weight, bias, _, vector_dtype = as_vectors(weight, bias)
    dropout, _tensors = dropout_arguments(token_dropout, tokens)
    invalid = _C.embedding_layer_norm(
        tokens, width, DTYPES[tables[0].dtype], DTYPES[dtype], table_arguments(ids, tables),
        weight.data_ptr(), bias.data_ptr(), vector_dtype, eps, dropout, y.data_ptr(),
        *_addresses(statistics if save else None),
    )  # fmt: skip
    if invalid is not None:
        table, position, index = invalid
        refuse_id(index, position, table, tables)
    return y, *statistics


def softmax(arguments: SoftmaxArguments) -> Tensor:
    """Return dropout(softmax(scale * scores)), contiguous; scores and mask may have any strides."""
    values, _tensors = scores_arguments(arguments)
    out = empty(arguments.scores.shape, arguments.scores.dtype)
    _C.softmax(*values, out.data_ptr())
    return out


def drop(x: Tensor, token_dropout: TokenDropout) -> Tensor:
    """Return x (tokens, width) with elements dropped and the others scaled, contiguous; this is its own gradient."""
    x, rows, stride = as_rows(x)
    y = empty(x.shape, x.dtype)
    dropout, _tensors = dropout_arguments(token_dropout, rows)
    if dropout is not None:
        _C.dropout(rows, x.shape[1], DTYPES[x.dtype], x.data_ptr(), stride, dropout, y.data_ptr())
    return y
