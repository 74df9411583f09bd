"""GELU of rows with a bias, and its gradient: x, y, grad and dx (rows, width), bias (width,) or none.

Forward reads x and writes y; backward reads x and the gradient and writes dx: GELU is computed again. The sums of dx
over the rows, which are the bias' gradient, come from the same pass: a program keeps those of its columns in registers.
Without a bias and without sums, all elements are one long row.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import column_sums
from fastbert.kernels.common import narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.gelu.activation import gelu, gelu_and_derivative
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables

# That share the rows on a multiprocessor where sums are wanted: enough loads in flight to fill the memory's pipe.
PROGRAMS = 4


@triton.jit
def _place(
    first_row, column, rows, width, units,
    FLAT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of a tile: its first element, int64, the offsets in it (ROWS, COLUMNS), and which elements there are.

    FLAT: the rows have COLUMNS elements, the last one may have fewer; `units` x UNIT in all, so that the compiler knows
    how many neighbours there are together or not at all.
    """
    row = tl.arange(0, ROWS)[:, None]
    if FLAT:
        offset = row * COLUMNS + column
        left = tl.minimum(units - first_row.to(tl.int64) * (COLUMNS // UNIT), ROWS * COLUMNS // UNIT)
        return first_row.to(tl.int64) * COLUMNS, offset, offset < left.to(tl.int32) * UNIT
    else:
        return first_row.to(tl.int64) * width, row * width + column, (first_row + row < rows) & (column < width)


@triton.jit(do_not_specialize=["rows", "units"])
def bias_gelu_forward(
    x_ptr, bias_ptr, y_ptr, rows, width, units,
    TANH: tl.constexpr, FLAT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of ROWS rows, blocks of COLUMNS columns."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    start, offset, inside = _place(tl.program_id(0) * ROWS, column, rows, width, units, FLAT, UNIT, ROWS, COLUMNS)
    x = tl.load(x_ptr + start + offset, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(y_ptr + start + offset, narrow(gelu(x, TANH), y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "units"])
def bias_gelu_backward(
    grad_ptr, x_ptr, bias_ptr, dx_ptr, y_ptr, partial_ptr, rows, width, units,
    TANH: tl.constexpr, FLAT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: programs that share the rows, blocks of COLUMNS columns. partial (programs, width) fp32: sums of dx.

    y, what forward wrote, is written again where its pointer is not None.
    """
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    begin = tl.program_id(0) * ROWS
    for step in range(0, rows - begin, tl.num_programs(0) * ROWS):
        first_row = begin + step
        start, offset, inside = _place(first_row, column, rows, width, units, FLAT, UNIT, ROWS, COLUMNS)
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
    kernel: Any, x: Tensor, tensors: tuple[Tensor | None, ...], flat: bool, down: int, config: Config, tanh: bool
) -> None:
    """Start `down` programs for each block of columns, on tensors that lie like x (..., width)."""
    columns = config.constants["COLUMNS"]
    width = columns if flat else x.shape[-1]
    unit = math.gcd(x.numel(), 16) if flat else 1
    launch(
        kernel,
        (down, triton.cdiv(width, columns)),
        *(*tensors, triton.cdiv(x.numel(), width), width, x.numel() // unit),
        TANH=tanh,
        FLAT=flat,
        UNIT=unit,
        config=config,
    )


def _down(x: Tensor, flat: bool, config: Config) -> int:
    """How many blocks of rows there are."""
    width = config.constants["COLUMNS"] if flat else x.shape[-1]
    return triton.cdiv(triton.cdiv(x.numel(), width), config.constants["ROWS"])


def forward(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    """GELU(x + bias), contiguous, in the shape and dtype of x (..., width); bias (width,) of any floating dtype."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        config = _config(bias_gelu_forward, x)
        flat = bias is None
        tensors = (x.contiguous(), None if bias is None else bias.contiguous(), y)
        _launch(bias_gelu_forward, x, tensors, flat, _down(x, flat, config), config, tanh)
    return y


def backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool, sums: bool | None = None
) -> tuple[Tensor, Tensor | None]:
    """The gradient of x, contiguous, and its sums over all but the last axis, fp32, with `sums`, which by default is
    whether there is a bias.
    """
    return _backward(grad, x, bias, tanh, None, bias is not None if sums is None else sums)


def backward_again(grad: Tensor, x: Tensor, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Without a bias: the gradient of x, what forward returned, and the gradient's sums, from one pass."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dx, sums = _backward(grad, x, None, tanh, y, True)
    assert sums is not None
    return dx, y, sums


def _backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool, y: Tensor | None, sums: bool
) -> tuple[Tensor, Tensor | None]:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not dx.numel():
        return dx, torch.zeros(x.shape[-1:], dtype=torch.float32, device=x.device) if sums else None
    config = _config(bias_gelu_backward, x)
    flat = bias is None and not sums
    down, partial = _down(x, flat, config), None
    if sums:
        across = triton.cdiv(x.shape[-1], config.constants["COLUMNS"])
        down = max(1, min(down, PROGRAMS * multiprocessors(x.device) // across))
        partial = torch.empty(down, x.shape[-1], dtype=torch.float32, device=x.device)
    bias = None if bias is None else bias.contiguous()
    tensors = (grad.contiguous(), x.contiguous(), bias, dx, y, partial)
    _launch(bias_gelu_backward, x, tensors, flat, down, config, tanh)
    return dx, None if partial is None else column_sums(partial)
