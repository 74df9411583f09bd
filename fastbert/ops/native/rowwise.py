"""The row-wise operations of the `native` backend, by the kernels of csrc/cpu/rows.h.

`serves` says which calls come here. Where a gradient is wanted they run inside operators of torch, whose backward is in
native_row_gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops.dropout.op import TokenDropout
from fastbert.ops.embedding.ids import refuse_id
from fastbert.ops.native import buffers
from fastbert.ops.native.buffers import DTYPES
from fastbert.ops.native.caching_allocator import empty
from fastbert.ops.native.rowwise_gradients import (
    embedding_gradients,
    gelu_backward,
    gelu_norm_gradients,
    norm_gradients,
    softmax_gradient,
)
from fastbert.ops.native.rowwise_tensors import (
    dropped,
    pair,
    recorded,
    rows_of,
    scores_arguments,
    serves,
    table_arguments,
    takes,
    triple,
)

__all__ = [
    "bias_gelu",
    "drop",
    "dropout_add_layer_norm",
    "embedding_forward",
    "embedding_gradients",
    "embedding_layer_norm",
    "gelu_backward",
    "gelu_layer_norm",
    "gelu_norm_forward",
    "gelu_norm_gradients",
    "layer_norm",
    "norm_forward",
    "norm_gradients",
    "recorded",
    "serves",
    "serves_tables",
    "softmax",
    "softmax_gradient",
    "takes",
]


# Mean and 1 / deviation of the rows that were normed, fp32 (rows,).
_Statistics: TypeAlias = tuple[Tensor, Tensor]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _norm(x, weight, bias, eps, None)


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
    x_bias: Tensor | None,
    return_sum: bool,
) -> tuple[Tensor, Tensor]:
    """The norm of dropout(x + x_bias) + residual (rows, width) and, with `return_sum`, the sum; else the norm twice."""
    total = empty(x.shape, x.dtype) if return_sum else None
    y = _sum_norm(x, x_bias, residual, weight, bias, eps, token_dropout, total, None)
    return y, y if total is None else total


def _sum_norm(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
    total: Tensor | None,
    statistics: _Statistics | None,
) -> Tensor:
    """y; total and the statistics are written where they are not None."""
    y = empty(x.shape, x.dtype)
    x, rows, stride = rows_of(x)
    residual_stride = 0
    if residual is not None:
        residual, _, residual_stride = rows_of(residual.to(x.dtype))
    weight, bias, x_bias, dtype = triple(weight, bias, x_bias)
    dropout, _held = dropped(token_dropout, rows)
    _C.sum_layer_norm(
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
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm of total = dropout(x + x_bias) + residual: y and total (rows, width) in the dtype of x, mean and rstd
    fp32 (rows,); all but y are empty without `keep`.

    The sum is rounded to the dtype of x once, and what is normed is the rounded sum. Where nothing is added or dropped,
    total is `x` itself.
    """
    statistics = _statistics(x.shape[0], keep)
    kept = statistics if keep else None
    if x_bias is None and residual is None and token_dropout is None:
        return _norm(x, weight, bias, eps, kept), x, *statistics
    total = empty(x.shape, x.dtype) if keep else x.new_empty(0)
    y = _sum_norm(x, x_bias, residual, weight, bias, eps, token_dropout, total if keep else None, kept)
    return y, total, *statistics


def _statistics(rows: int, keep: bool) -> _Statistics:
    """Room for mean and rstd, fp32 (rows,); without elements unless they are kept."""
    count = rows if keep else 0
    return empty((count,), torch.float32), empty((count,), torch.float32)


def _addresses(statistics: _Statistics | None) -> tuple[int, int]:
    return (0, 0) if statistics is None else (statistics[0].data_ptr(), statistics[1].data_ptr())


def _norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, statistics: _Statistics | None) -> Tensor:
    y = empty(x.shape, x.dtype)
    x, rows, stride = rows_of(x)
    weight, bias, dtype = pair(weight, bias)
    _C.layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, weight.data_ptr(), bias.data_ptr(), dtype, eps,
        y.data_ptr(), *_addresses(statistics),
    )  # fmt: skip
    return y


def bias_gelu(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    """Return GELU(x + bias), contiguous: x (..., width) of any strides, bias (width,)."""
    x, rows, stride = rows_of(x)
    y = empty(x.shape, x.dtype)
    bias = None if bias is None else bias.contiguous()
    _C.bias_gelu(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, buffers.address("bias", bias),
        "fp32" if bias is None else DTYPES[bias.dtype], tanh, y.data_ptr(),
    )  # fmt: skip
    return y


def gelu_layer_norm(
    x: Tensor, bias: Tensor | None, weight: Tensor, norm_bias: Tensor, eps: float, approximate: str
) -> Tensor:
    return _gelu_norm(x, bias, weight, norm_bias, eps, approximate == "tanh", None)


def gelu_norm_forward(
    x: Tensor, x_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float, tanh: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm(GELU(x + x_bias)) (rows, width) in the dtype of x; mean and rstd of the GELU, fp32 (rows,), empty
    without `keep`."""
    statistics = _statistics(x.shape[0], keep)
    return _gelu_norm(x, x_bias, weight, bias, eps, tanh, statistics if keep else None), *statistics


def _gelu_norm(
    x: Tensor,
    x_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    tanh: bool,
    statistics: _Statistics | None,
) -> Tensor:
    y = empty(x.shape, x.dtype)
    x, rows, stride = rows_of(x)
    weight, bias, x_bias, dtype = triple(weight, bias, x_bias)
    _C.gelu_layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, buffers.address("bias", x_bias),
        weight.data_ptr(), bias.data_ptr(), dtype, eps, tanh, y.data_ptr(), *_addresses(statistics),
    )  # fmt: skip
    return y


def serves_tables(tables: Sequence[Tensor], weight: Tensor, bias: Tensor) -> bool:
    """As `serves`, for embedding_layer_norm."""
    operation = "embedding_layer_norm"
    if any(table.dtype != tables[0].dtype for table in tables):
        return buffers.declines(operation, "the tables differ in dtype")
    if any(table.stride(1) != 1 and table.shape[1] > 1 for table in tables):
        return buffers.declines(operation, "the elements of a table's row do not lie side by side")
    if result_dtype(tables[0]) not in DTYPES:
        return buffers.declines(operation, f"autocast asks for {result_dtype(tables[0])}")
    return serves(operation, *tables, weight, bias)


def result_dtype(table: Tensor) -> torch.dtype:
    """Of what becomes of embeddings: autocast's where it is on."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else table.dtype


def embedding_layer_norm(
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
) -> Tensor:
    return embedding_forward(ids, tables, weight, bias, eps, result_dtype(tables[0]), token_dropout, False)[0]


def embedding_forward(
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dtype: torch.dtype,
    token_dropout: TokenDropout | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result (tokens, width) in `dtype`; mean and rstd fp32 (tokens,), empty without `keep`."""
    tokens, width = ids[0].shape[0], tables[0].shape[1]
    y, statistics = empty((tokens, width), dtype), _statistics(tokens, keep)
    weight, bias, vectors = pair(weight, bias)
    dropout, _held = dropped(token_dropout, tokens)
    bad = _C.embedding_layer_norm(
        tokens, width, DTYPES[tables[0].dtype], DTYPES[dtype], table_arguments(ids, tables),
        weight.data_ptr(), bias.data_ptr(), vectors, eps, dropout, y.data_ptr(),
        *_addresses(statistics if keep else None),
    )  # fmt: skip
    if bad is not None:
        table, place, wrong = bad
        refuse_id(wrong, place, table, tables)
    return y, *statistics


def softmax(
    scores: Tensor, mask: Tensor | None, scale: float, dropout_p: float, dropout_key: Tensor | None, dropout_site: int
) -> Tensor:
    """scores (sequences, heads, queries, keys) of any strides; mask bool, broadcastable to them; without a key nothing
    is dropped."""
    arguments, _held = scores_arguments(scores, mask, scale, dropout_p, dropout_key, dropout_site)
    out = empty(scores.shape, scores.dtype)
    _C.softmax(*arguments, out.data_ptr())
    return out


def drop(x: Tensor, token_dropout: TokenDropout) -> Tensor:
    """Dropout of x (tokens, width), which is its own gradient; contiguous."""
    x, rows, stride = rows_of(x)
    y = empty(x.shape, x.dtype)
    dropout, _held = dropped(token_dropout, rows)
    if dropout is not None:
        _C.drop(rows, x.shape[1], DTYPES[x.dtype], x.data_ptr(), stride, dropout, y.data_ptr())
    return y
