"""Sums over rows that are added to the gradients of a layer's biases and LayerNorms.

The kernels of a layer's backward pass leave partial sums, a few hundred rows of fp32; one launch adds those of the
whole layer to the gradients. No atomics: the same bits on every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables

# Programs of `sum_rows` per multiprocessor.
PROGRAMS = 4
# Vectors of one launch of `add_partial_sums`.
VECTORS = 4


class PartialSums(NamedTuple):
    """Partial sums (rows, ...) fp32, contiguous, and the fp32 gradient of a row's size to which they are added."""

    partial: Tensor
    gradient: Tensor


@triton.jit(do_not_specialize=["rows", "rows_per_part"])
def sum_rows(
    x_ptr, partial_ptr, stride_row, rows, rows_per_part, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Sum x (rows, columns) over each part's rows: partial (parts, columns) fp32. Grid: column blocks, parts."""
    part = tl.program_id(1)
    begin = part * rows_per_part
    end = tl.minimum(begin + rows_per_part, rows)
    row = tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    x_ptr += begin.to(tl.int64) * stride_row
    for now in range(begin, end, BLOCK_M):
        inside = (row < end - now) & (column < columns)
        total += tl.load(x_ptr + (row * stride_row + column), mask=inside, other=0.0).to(tl.float32)
        x_ptr += tl.cast(stride_row, tl.int64) * BLOCK_M
    partial_ptr += part.to(tl.int64) * columns
    tl.store(partial_ptr + column, tl.sum(total, 0, keep_dims=True), mask=column < columns)


@triton.jit
def _add(partial_ptr, out_ptr, rows, columns, block, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Add the sums over the rows of partial (rows, columns) to out (columns,), in one block of columns."""
    column = block * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    row = tl.arange(0, BLOCK_M)[:, None]
    inside = column < columns
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, rows, BLOCK_M):
        offset = (first + row).to(tl.int64) * columns + column
        total += tl.load(partial_ptr + offset, mask=(first + row < rows) & inside, other=0.0)
    total = tl.sum(total, 0, keep_dims=True) + tl.load(out_ptr + column, mask=inside, other=0.0)
    tl.store(out_ptr + column, total, mask=inside)


@triton.jit(do_not_specialize=["rows_0", "rows_1", "rows_2", "rows_3"])
def add_partial_sums(
    partial_0_ptr, partial_1_ptr, partial_2_ptr, partial_3_ptr, out_0_ptr, out_1_ptr, out_2_ptr, out_3_ptr,
    rows_0, rows_1, rows_2, rows_3, columns_0, columns_1, columns_2, columns_3,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add four partial sums to four vectors. Grid: the blocks of BLOCK_N columns of the first, the second and so on."""
    first = tl.cdiv(columns_0, BLOCK_N)
    second = first + tl.cdiv(columns_1, BLOCK_N)
    third = second + tl.cdiv(columns_2, BLOCK_N)
    block = tl.program_id(0)
    if block < first:
        _add(partial_0_ptr, out_0_ptr, rows_0, columns_0, block, BLOCK_M, BLOCK_N)
    elif block < second:
        _add(partial_1_ptr, out_1_ptr, rows_1, columns_1, block - first, BLOCK_M, BLOCK_N)
    elif block < third:
        _add(partial_2_ptr, out_2_ptr, rows_2, columns_2, block - second, BLOCK_M, BLOCK_N)
    else:
        _add(partial_3_ptr, out_3_ptr, rows_3, columns_3, block - third, BLOCK_M, BLOCK_N)


def partial_row_sums(x: Tensor) -> Tensor:
    """Return partial sums (parts, columns) fp32 over the rows of x (rows, columns), which has contiguous columns."""
    rows, columns = x.shape
    config = tables.lookup("sum_rows", "any", architecture(x.device))
    blocks = triton.cdiv(columns, config.constants["BLOCK_N"])
    parts = triton.cdiv(PROGRAMS * multiprocessors(x.device), blocks)
    parts = max(1, min(parts, triton.cdiv(rows, config.constants["BLOCK_M"])))
    partial = torch.empty(parts, columns, dtype=torch.float32, device=x.device)
    launch(
        sum_rows, (blocks, parts), x, partial, x.stride(0), rows, triton.cdiv(rows, parts), columns, config=config
    )  # fmt: skip
    return partial


def add_all(sums: Sequence[PartialSums]) -> None:
    """Add VECTORS partial sums to their gradients in one launch."""
    assert len(sums) == VECTORS
    partials, outs = zip(*sums, strict=True)
    config = tables.lookup("add_partial_sums", "any", architecture(outs[0].device))
    columns = [out.numel() for out in outs]
    launch(
        add_partial_sums,
        (sum(triton.cdiv(count, config.constants["BLOCK_N"]) for count in columns),),
        *(*partials, *outs, *[len(partial) for partial in partials], *columns),
        config=config,
    )
