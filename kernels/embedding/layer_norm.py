"""The input of the encoder: rows of up to four tables, their sum, LayerNorm and dropout in one pass, and its gradient.

ids (tokens,), tables (rows, width), y and grad (tokens, width); sum and statistics fp32. Forward reads the rows and
writes y and, for backward, each token's mean and rstd (1 / deviation). The sum is not saved: that would write it once
and read it once, 8 bytes per element in fp32, where gathering again reads at most 4, the rows of the largest table; the
rows of small ones, and those of frequent tokens, are cached. Backward is a persistent grid: it writes the gradient of
the sum, partial rows of the gradients of weight and bias, and the keys by which `gradient.table_gradients` groups the
gradients of equal ids.

For a token with an id outside its table nothing is read: its row is NaN, and it adds nothing to any table.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import column_sums, programs_for
from fastbert.kernels.common import narrow
from fastbert.kernels.configs.embedding import NARROWEST
from fastbert.kernels.dropout.inputs import DropoutInputs, kernel_arguments
from fastbert.kernels.embedding.gradient import table_gradients
from fastbert.kernels.launch import architecture, launch
from fastbert.kernels.token_dropout import keep_mask, load_key_and_offset
from fastbert.kernels.tuning import tables as tuning

MOST_TABLES = 4
RUNTIME = ["rows0", "rows1", "rows2", "rows3", "tokens", "sequences", "site", "threshold"]


@triton.jit
def _row(ids_ptr, table_ptr, rows, token, exists, column, in_row, width):
    """Return the ids of one table (BLOCK_M,), which of them are valid, and their rows, fp32 (BLOCK_M, BLOCK_N)."""
    index = tl.load(ids_ptr + token, mask=exists, other=0).to(tl.int64)
    valid = (index >= 0) & (index < rows)
    pointers = table_ptr + (index * width)[:, None] + column
    x = tl.load(pointers, mask=(exists & valid)[:, None] & in_row, other=0.0).to(tl.float32)
    return index, valid, x


@triton.jit
def _sum(
    ids, tables, rows, token, exists, column, in_row, width,
    TABLES: tl.constexpr,
):  # fmt: skip
    """Return the ids of all tables, which tokens have only valid ids, and their sums of rows, NaN for other tokens."""
    i0, valid, x = _row(ids[0], tables[0], rows[0], token, exists, column, in_row, width)
    i1, i2, i3 = i0, i0, i0
    if TABLES > 1:
        i1, valid_here, table_row = _row(ids[1], tables[1], rows[1], token, exists, column, in_row, width)
        valid, x = valid & valid_here, x + table_row
    if TABLES > 2:
        i2, valid_here, table_row = _row(ids[2], tables[2], rows[2], token, exists, column, in_row, width)
        valid, x = valid & valid_here, x + table_row
    if TABLES > 3:
        i3, valid_here, table_row = _row(ids[3], tables[3], rows[3], token, exists, column, in_row, width)
        valid, x = valid & valid_here, x + table_row
    return (i0, i1, i2, i3), valid, tl.where((exists & ~valid)[:, None], float("nan"), x)


@triton.jit
def _dropout_factors(dropout, token, exists, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the factors of dropout, 0 or 1 / (1 - p), fp32 (BLOCK_M, BLOCK_N)."""
    key_ptr, sequence_ptr, offset_ptr, sequences, keep_scale, threshold, site = dropout
    key, offset = load_key_and_offset(key_ptr, sequence_ptr, offset_ptr, token, exists, sequences)
    return tl.where(keep_mask(key[:, None], offset[:, None], 0, site, threshold, BLOCK_M, BLOCK_N), keep_scale, 0.0)


@triton.jit(do_not_specialize=RUNTIME)
def embedding_forward(
    ids0_ptr, ids1_ptr, ids2_ptr, ids3_ptr, table0_ptr, table1_ptr, table2_ptr, table3_ptr,
    weight_ptr, bias_ptr, key_ptr, sequence_ptr, offset_ptr, y_ptr, mean_ptr, rstd_ptr,
    rows0, rows1, rows2, rows3, tokens, width, sequences, eps, keep_scale, threshold, site,
    TABLES: tl.constexpr, DROPOUT: tl.constexpr, SAVE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_M tokens."""
    first = tl.program_id(0) * BLOCK_M
    row, column = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)[None, :]
    token = first + row
    exists, in_row = token < tokens, column < width
    _, _, x = _sum(
        (ids0_ptr, ids1_ptr, ids2_ptr, ids3_ptr), (table0_ptr, table1_ptr, table2_ptr, table3_ptr),
        (rows0, rows1, rows2, rows3), token, exists, column, in_row, width, TABLES,
    )  # fmt: skip
    mean = tl.sum(x, 1, keep_dims=True) / width
    x = tl.where(in_row, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / width + eps)
    weight = tl.load(weight_ptr + column, mask=in_row, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=in_row, other=0.0).to(tl.float32)
    y = narrow(x * rstd * weight + bias, y_ptr.dtype.element_ty)
    if DROPOUT:
        # A product, as in eager PyTorch: a dropped NaN stays NaN.
        dropout = (key_ptr, sequence_ptr, offset_ptr, sequences, keep_scale, threshold, site)
        y = y.to(tl.float32) * _dropout_factors(dropout, token, exists, BLOCK_M, BLOCK_N)
        y = narrow(y, y_ptr.dtype.element_ty)
    tl.store(y_ptr + first.to(tl.int64) * width + ((row * width)[:, None] + column), y, mask=exists[:, None] & in_row)
    if SAVE:
        tl.store(mean_ptr + token[:, None], mean, mask=exists[:, None])
        tl.store(rstd_ptr + token[:, None], rstd, mask=exists[:, None])


@triton.jit(do_not_specialize=RUNTIME)
def embedding_backward(
    ids0_ptr, ids1_ptr, ids2_ptr, ids3_ptr, table0_ptr, table1_ptr, table2_ptr, table3_ptr,
    weight_ptr, key_ptr, sequence_ptr, offset_ptr, grad_ptr, mean_ptr, rstd_ptr, dsum_ptr, keys_ptr, partial_ptr,
    rows0, rows1, rows2, rows3, tokens, width, sequences, keep_scale, threshold, site,
    TABLES: tl.constexpr, DROPOUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: programs that share blocks of BLOCK_M tokens in turn.

    Each writes its sums over tokens to a row of `partial` (2, programs, width), of weight and bias. keys (TABLES,
    tokens): the row that a token adds to, counted over all tables, each with an extra row for tokens with invalid ids.
    """
    row, column = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)[None, :]
    in_row = column < width
    weight = tl.load(weight_ptr + column, mask=in_row, other=0.0).to(tl.float32)
    dweight, dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32), tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(tokens, BLOCK_M), tl.num_programs(0)):
        first = block * BLOCK_M
        token = first + row
        exists = token < tokens
        base, inside = first.to(tl.int64) * width, exists[:, None] & in_row
        offset = (row * width)[:, None] + column
        dy = tl.load(grad_ptr + base + offset, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + token, mask=exists, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + token, mask=exists, other=0.0)[:, None]
        ids, valid, x = _sum(
            (ids0_ptr, ids1_ptr, ids2_ptr, ids3_ptr), (table0_ptr, table1_ptr, table2_ptr, table3_ptr),
            (rows0, rows1, rows2, rows3), token, exists, column, in_row, width, TABLES,
        )  # fmt: skip
        if DROPOUT:
            dropout = (key_ptr, sequence_ptr, offset_ptr, sequences, keep_scale, threshold, site)
            dy *= _dropout_factors(dropout, token, exists, BLOCK_M, BLOCK_N)
        x = tl.where(in_row, (x - mean) * rstd, 0.0)
        dweight += dy * x
        dbias += dy
        dy *= weight
        slope = tl.sum(dy * x, 1, keep_dims=True) / width
        mean_gradient = tl.sum(dy, 1, keep_dims=True) / width
        dsum = narrow((dy - x * slope - mean_gradient) * rstd, dsum_ptr.dtype.element_ty)
        tl.store(dsum_ptr + base + offset, dsum, mask=inside)
        tl.store(keys_ptr + token, tl.where(valid, ids[0], rows0).to(tl.int32), mask=exists)
        if TABLES > 1:
            start = rows0 + 1
            keys_1 = keys_ptr + tokens.to(tl.int64)
            tl.store(keys_1 + token, (start + tl.where(valid, ids[1], rows1)).to(tl.int32), mask=exists)
        if TABLES > 2:
            start = rows0 + rows1 + 2
            keys_2 = keys_ptr + tokens.to(tl.int64) * 2
            tl.store(keys_2 + token, (start + tl.where(valid, ids[2], rows2)).to(tl.int32), mask=exists)
        if TABLES > 3:
            start = rows0 + rows1 + rows2 + 3
            keys_3 = keys_ptr + tokens.to(tl.int64) * 3
            tl.store(keys_3 + token, (start + tl.where(valid, ids[3], rows3)).to(tl.int32), mask=exists)
    partial_ptr += tl.program_id(0) * width
    tl.store(partial_ptr + column, tl.sum(dweight, 0, keep_dims=True), mask=in_row)
    tl.store(partial_ptr + tl.num_programs(0) * width + column, tl.sum(dbias, 0, keep_dims=True), mask=in_row)


def _padded(values: list[Any], fill: Any) -> list[Any]:
    return values + [fill] * (MOST_TABLES - len(values))


def _sources(ids: list[Tensor], tables: list[Tensor]) -> tuple[list[Any], list[int]]:
    """Return ids and tables as kernel arguments, and the number of rows of each table."""
    sources = _padded([x.contiguous() for x in ids], None) + _padded([x.contiguous() for x in tables], None)
    return sources, _padded([table.shape[0] for table in tables], 0)


def _config(kernel: Any, table: Tensor) -> tuning.Config:
    shape = tuning.shape_class(table.dtype, False, max(table.shape[1], NARROWEST))
    return tuning.lookup(kernel.__name__, shape, architecture(table.device))


def forward(
    ids: list[Tensor],
    tables: list[Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    out_dtype: torch.dtype,
    dropout: DropoutInputs | None,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (tokens, width) in `out_dtype`, mean and rstd fp32 (tokens,), which are empty without `save`."""
    device, tokens, width = tables[0].device, ids[0].shape[0], tables[0].shape[1]
    y = torch.empty(tokens, width, dtype=out_dtype, device=device)
    mean, rstd = (torch.empty(tokens if save else 0, dtype=torch.float32, device=device) for _ in range(2))
    sources, rows = _sources(ids, tables)
    tensors, sequences, numbers = kernel_arguments(dropout)
    config = _config(embedding_forward, tables[0])
    launch(
        embedding_forward,
        (triton.cdiv(tokens, config.constants["BLOCK_M"]),),
        *(*sources, weight.contiguous(), bias.contiguous(), *tensors, y, *((mean, rstd) if save else (None, None))),
        *(*rows, tokens, width, sequences, eps, *numbers),
        TABLES=len(tables),
        DROPOUT=dropout is not None,
        SAVE=save,
        config=config,
    )
    return y, mean, rstd


def backward(
    grad: Tensor,
    ids: list[Tensor],
    tables: list[Tensor],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    dropout: DropoutInputs | None,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return the gradients of the tables in their dtype, and of weight and bias in that of `weight`.

    The gradient of the sum has the tables' dtype; everything is summed in fp32 and in the same order on every run.
    """
    device, dtype, tokens, width = grad.device, tables[0].dtype, grad.shape[0], grad.shape[1]
    dsum = torch.empty(tokens, width, dtype=dtype, device=device)
    keys = torch.empty(len(tables), tokens, dtype=torch.int32, device=device)
    sources, rows = _sources(ids, tables)
    tensors, sequences, numbers = kernel_arguments(dropout)
    config = _config(embedding_backward, tables[0])
    programs = programs_for(device, triton.cdiv(tokens, config.constants["BLOCK_M"]))
    partial = torch.empty(2, programs, width, dtype=torch.float32, device=device)
    launch(
        embedding_backward,
        (programs,),
        *(*sources, weight.contiguous(), *tensors, grad.contiguous(), mean, rstd, dsum, keys, partial),
        *(*rows, tokens, width, sequences, *numbers),
        TABLES=len(tables),
        DROPOUT=dropout is not None,
        config=config,
    )
    dweight, dbias = (column_sums(rows).to(weight.dtype) for rows in partial)
    gradients = table_gradients(dsum, keys, [table.shape[0] for table in tables])
    return gradients, dweight, dbias
