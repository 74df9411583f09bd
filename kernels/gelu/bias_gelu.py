"""GELU of rows with a bias, and its gradient: x, y, grad and dx (rows, width), bias (width,) or none.

Forward reads x and writes y; backward reads x and the gradient, recomputes GELU and writes dx. The sums of dx over the
rows, the gradient of the bias, come from the same pass: a program accumulates those of its columns in registers.
Without a bias and without sums, all elements are one long row.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import Reduction, column_sums
from fastbert.kernels.common import narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.gelu.activation import gelu, gelu_and_derivative
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables

# Per multiprocessor, sharing the rows where sums are computed: enough loads in flight to saturate the memory.
PROGRAMS = 4


@triton.jit
def _tile(
    first_row, column, rows, width, units,
    FLAT: tl.constexpr, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return a tile's first element, int64, the offsets in it (BLOCK_M, BLOCK_N), and the mask of its elements.

    FLAT: rows of BLOCK_N elements, the last row possibly shorter; `units` x UNIT elements in all, so that the compiler
    knows how many neighbours share a mask.
    """
    row = tl.arange(0, BLOCK_M)[:, None]
    if FLAT:
        offset = row * BLOCK_N + column
        remaining = tl.minimum(units - first_row.to(tl.int64) * (BLOCK_N // UNIT), BLOCK_M * BLOCK_N // UNIT)
        return first_row.to(tl.int64) * BLOCK_N, offset, offset < remaining.to(tl.int32) * UNIT
    else:
        return first_row.to(tl.int64) * width, row * width + column, (first_row + row < rows) & (column < width)


@triton.jit(do_not_specialize=["rows", "units"])
def bias_gelu_forward(
    x_ptr, bias_ptr, y_ptr, rows, width, units,
    TANH: tl.constexpr, FLAT: tl.constexpr, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_M rows, blocks of BLOCK_N columns."""
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    start, offset, inside = _tile(tl.program_id(0) * BLOCK_M, column, rows, width, units, FLAT, UNIT, BLOCK_M, BLOCK_N)
    x = tl.load(x_ptr + start + offset, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(y_ptr + start + offset, narrow(gelu(x, TANH), y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "units"])
def bias_gelu_backward(
    grad_ptr, x_ptr, bias_ptr, dx_ptr, y_ptr, partial_ptr, rows, width, units,
    TANH: tl.constexpr, FLAT: tl.constexpr, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: programs that share the rows, blocks of BLOCK_N columns. partial (programs, width) fp32: sums of dx.

    The result of forward is written to y again unless its pointer is None.
    """
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    begin = tl.program_id(0) * BLOCK_M
    for step in range(0, rows - begin, tl.num_programs(0) * BLOCK_M):
        first_row = begin + step
        start, offset, inside = _tile(first_row, column, rows, width, units, FLAT, UNIT, BLOCK_M, BLOCK_N)
        x = tl.load(x_ptr + start + offset, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + start + offset, mask=inside, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            x += bias
        value, slope = gelu_and_derivative(x, TANH)
        dx = grad * slope
        if y_ptr is not None:
            tl.store(y_ptr + start + offset, narrow(value, y_ptr.dtype.element_ty), mask=inside)
        tl.store(dx_ptr + start + offset, narrow(dx, dx_ptr.dtype.element_ty), mask=inside)
        if partial_ptr is not None:
            total += dx
    if partial_ptr is not None:
        partial_ptr += tl.program_id(0).to(tl.int64) * width
        tl.store(partial_ptr + column, tl.sum(total, 0, keep_dims=True), mask=column < width)


def _config(kernel: Any, x: Tensor) -> Config:
    shape = "ieee" if x.dtype == torch.float32 else "half"
    return tables.lookup(kernel.__name__, shape, architecture(x.device))


def _launch(
    kernel: Any,
    x: Tensor,
    tensors: tuple[Tensor | None, ...],
    flat: bool,
    row_programs: int,
    config: Config,
    tanh: bool,
) -> None:
    """Launch `row_programs` programs per block of columns, on tensors of the shape of x (..., width)."""
    columns = config.constants["BLOCK_N"]
    width = columns if flat else x.shape[-1]
    unit = math.gcd(x.numel(), 16) if flat else 1
    launch(
        kernel,
        (row_programs, triton.cdiv(width, columns)),
        *(*tensors, triton.cdiv(x.numel(), width), width, x.numel() // unit),
        TANH=tanh,
        FLAT=flat,
        UNIT=unit,
        config=config,
    )


def _row_blocks(x: Tensor, flat: bool, config: Config) -> int:
    """Return the number of blocks of rows."""
    width = config.constants["BLOCK_N"] if flat else x.shape[-1]
    return triton.cdiv(triton.cdiv(x.numel(), width), config.constants["BLOCK_M"])


def forward(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    """Return GELU(x + bias), contiguous, shape and dtype of x (..., width); bias (width,) of any floating dtype."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        config = _config(bias_gelu_forward, x)
        flat = bias is None
        tensors = (x.contiguous(), None if bias is None else bias.contiguous(), y)
        _launch(bias_gelu_forward, x, tensors, flat, _row_blocks(x, flat, config), config, tanh)
    return y


def backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool, sums: bool | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of x, contiguous, and with `sums` its fp32 sums over all but the last axis.

    `sums` defaults to whether there is a bias.
    """
    return _backward(grad, x, bias, tanh, None, bias is not None if sums is None else sums)


def backward_with_output(
    grad: Tensor, x: Tensor, tanh: bool, reduction: Reduction = column_sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for a call without a bias, the gradient of x, the result of forward, and the gradient's sums."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dx, sums = _backward(grad, x, None, tanh, y, True, reduction)
    assert sums is not None
    return dx, y, sums


def _backward(
    grad: Tensor,
    x: Tensor,
    bias: Tensor | None,
    tanh: bool,
    y: Tensor | None,
    sums: bool,
    reduction: Reduction = column_sums,
) -> tuple[Tensor, Tensor | None]:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not dx.numel():
        return dx, reduction(torch.empty(0, x.shape[-1], dtype=torch.float32, device=x.device)) if sums else None
    config = _config(bias_gelu_backward, x)
    flat = bias is None and not sums
    row_programs, partial = _row_blocks(x, flat, config), None
    if sums:
        column_blocks = triton.cdiv(x.shape[-1], config.constants["BLOCK_N"])
        row_programs = max(1, min(row_programs, PROGRAMS * multiprocessors(x.device) // column_blocks))
        partial = torch.empty(row_programs, x.shape[-1], dtype=torch.float32, device=x.device)
    bias = None if bias is None else bias.contiguous()
    tensors = (grad.contiguous(), x.contiguous(), bias, dx, y, partial)
    _launch(bias_gelu_backward, x, tensors, flat, row_programs, config, tanh)
    return dx, None if partial is None else reduction(partial)
