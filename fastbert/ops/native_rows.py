"""The row-wise operations of the `native` backend, by the kernels of csrc/cpu/rows.h.

`serves` says which calls come here. Where a gradient is wanted they run inside operators of torch, whose backward is in
native_row_gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops import native
from fastbert.ops.dropout import TokenDropout
from fastbert.ops.embedding_ids import refuse_id
from fastbert.ops.memory import empty
from fastbert.ops.native import DTYPES
from fastbert.ops.native_row_gradients import (
    embedding_gradients,
    gelu_backward,
    gelu_norm_gradients,
    norm_gradients,
    softmax_gradient,
)
from fastbert.ops.native_row_tensors import (
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


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    y = empty(x.shape, x.dtype)
    _norm(x, weight, bias, eps, y, None, None)
    return y


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
    """The norm and, with `return_sum`, the sum; else the norm twice."""
    y = empty(x.shape, x.dtype)
    total = empty(x.shape, x.dtype) if return_sum else None
    _sum_norm(x, x_bias, residual, weight, bias, eps, token_dropout, y, total, None, None)
    return y, y if total is None else total


def _sum_norm(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
    y: Tensor,
    total: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
) -> None:
    """Writes y, total and the statistics, where they are not None."""
    x, rows, stride = rows_of(x)
    residual_stride = 0
    if residual is not None:
        residual, _, residual_stride = rows_of(residual.to(x.dtype))
    weight, bias, x_bias, dtype = triple(weight, bias, x_bias)
    dropout, _held = dropped(token_dropout, rows)
    _C.sum_layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride,
        native.address("residual", residual), residual_stride, native.address("x_bias", x_bias),
        weight.data_ptr(), bias.data_ptr(), dtype, eps, dropout, 0 if total is None else total.data_ptr(),
        y.data_ptr(), 0 if mean is None else mean.data_ptr(), 0 if rstd is None else rstd.data_ptr(),
    )  # fmt: skip


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
    y = empty(x.shape, x.dtype)
    count = x.shape[0] if keep else 0
    mean, rstd = empty((count,), torch.float32), empty((count,), torch.float32)
    kept = (mean, rstd) if keep else (None, None)
    if x_bias is None and residual is None and token_dropout is None:
        _norm(x, weight, bias, eps, y, *kept)
        return y, x, mean, rstd
    total = empty(x.shape, x.dtype) if keep else x.new_empty(0)
    _sum_norm(x, x_bias, residual, weight, bias, eps, token_dropout, y, total if keep else None, *kept)
    return y, total, mean, rstd


def _norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, y: Tensor, mean: Tensor | None, rstd: Tensor | None
) -> None:
    x, rows, stride = rows_of(x)
    weight, bias, dtype = pair(weight, bias)
    _C.layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, weight.data_ptr(), bias.data_ptr(), dtype, eps,
        y.data_ptr(), 0 if mean is None else mean.data_ptr(), 0 if rstd is None else rstd.data_ptr(),
    )  # fmt: skip


def bias_gelu(x: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    x, rows, stride = rows_of(x)
    y = empty(x.shape, x.dtype)
    bias = None if bias is None else bias.contiguous()
    _C.bias_gelu(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, native.address("bias", bias),
        "fp32" if bias is None else DTYPES[bias.dtype], approximate == "tanh", y.data_ptr(),
    )  # fmt: skip
    return y


def gelu_layer_norm(
    x: Tensor, bias: Tensor | None, weight: Tensor, norm_bias: Tensor, eps: float, approximate: str
) -> Tensor:
    y = empty(x.shape, x.dtype)
    _gelu_norm(x, bias, weight, norm_bias, eps, approximate == "tanh", y, 0, 0)
    return y


def gelu_norm_forward(
    x: Tensor, x_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float, tanh: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm(GELU(x + x_bias)) (rows, width) in the dtype of x; mean and rstd of the GELU, fp32 (rows,), empty
    without `keep`."""
    y, count = empty(x.shape, x.dtype), x.shape[0] if keep else 0
    mean, rstd = empty((count,), torch.float32), empty((count,), torch.float32)
    kept = (mean.data_ptr(), rstd.data_ptr()) if keep else (0, 0)
    _gelu_norm(x, x_bias, weight, bias, eps, tanh, y, *kept)
    return y, mean, rstd


def _gelu_norm(
    x: Tensor, x_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float, tanh: bool, y: Tensor, *kept: int
) -> None:
    x, rows, stride = rows_of(x)
    weight, bias, x_bias, dtype = triple(weight, bias, x_bias)
    _C.gelu_layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, native.address("bias", x_bias),
        weight.data_ptr(), bias.data_ptr(), dtype, eps, tanh, y.data_ptr(), *kept,
    )  # fmt: skip


def serves_tables(tables: Sequence[Tensor], weight: Tensor, bias: Tensor) -> bool:
    """As `serves`, for embedding_layer_norm."""
    operation = "embedding_layer_norm"
    if any(table.dtype != tables[0].dtype for table in tables):
        return native.declines(operation, "the tables differ in dtype")
    if any(table.stride(1) != 1 and table.shape[1] > 1 for table in tables):
        return native.declines(operation, "the elements of a table's row do not lie side by side")
    if result_dtype(tables[0]) not in DTYPES:
        return native.declines(operation, f"autocast asks for {result_dtype(tables[0])}")
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
    y, count = empty((tokens, width), dtype), tokens if keep else 0
    mean, rstd = empty((count,), torch.float32), empty((count,), torch.float32)
    weight, bias, vectors = pair(weight, bias)
    dropout, _held = dropped(token_dropout, tokens)
    bad = _C.embedding_layer_norm(
        tokens, width, DTYPES[tables[0].dtype], DTYPES[dtype], table_arguments(ids, tables),
        weight.data_ptr(), bias.data_ptr(), vectors, eps, dropout, y.data_ptr(),
        mean.data_ptr() if keep else 0, rstd.data_ptr() if keep else 0,
    )  # fmt: skip
    if bad is not None:
        table, place, wrong = bad
        refuse_id(wrong, place, table, tables)
    return y, mean, rstd


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
