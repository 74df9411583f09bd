"""Matrix products with GELU in their epilogue: the widening product of a feed-forward layer, forward and backward.

Forward: x (rows, depth), weight (columns, depth): u = x weight^T + bias in the operands' dtype, y = gelu(u) of the
rounded u. Backward, with the next layer's weight (depth, columns) and the gradient (rows, depth) of its result:
dh = grad weight, du = dh gelu'(u), h = gelu(u) once more, and the sums of du over the rows. So h is not kept for the
gradient of the next layer's weight, and no pass over (rows, columns) stands between the two products.

A program takes ROWS x COLUMNS tiles in turn, those of the same rows next to each other: an encoder's weights stay in
the second-level cache whole, so that rows come from memory once. The epilogue works on WIDTH columns at a time, for
which registers suffice; two programs on a multiprocessor hide each other's. With TMA, tiles of the operands are fetched
through tensor descriptors (sm_90 and later), which costs a thread neither registers nor instructions.
"""

from __future__ import annotations

import contextvars
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import column_sums
from fastbert.kernels.common import add_dot, narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.configs.linear import DEEPEST, SHALLOWEST
from fastbert.kernels.gelu.activation import gelu, gelu_and_derivative
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables

# A multiprocessor's, which is what registers and shared memory have room for.
PROGRAMS = 2


@triton.jit
def _rows_of(
    x, first_row, first, rows, depth, EVEN: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, TMA: tl.constexpr
):
    """(ROWS, DEPTH) of x (rows, depth), a pointer or a descriptor; behind `depth` zeros, behind `rows` anything."""
    if TMA:
        return x.load([first_row, first])
    else:
        row = tl.minimum(tl.arange(0, ROWS), rows - 1 - first_row)[:, None]
        column = first + tl.arange(0, DEPTH)[None, :]
        x += first_row.to(tl.int64) * depth
        if EVEN:
            return tl.load(x + (row * depth + column))
        else:
            return tl.load(x + (row * depth + column), mask=column < depth, other=0.0)


@triton.jit
def _columns_of(
    x, first, first_column, depth, columns,
    EVEN: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """(DEPTH, COLUMNS) of x (depth, columns); behind `depth` zeros, behind `columns` anything."""
    if TMA:
        return x.load([first, first_column])
    else:
        row = tl.arange(0, DEPTH)[:, None]
        # Both numbers are multiples of 16, so that 16 neighbours stay neighbours.
        column = tl.max_contiguous(tl.multiple_of((first_column + tl.arange(0, COLUMNS)) % columns, 16), 16)[None, :]
        x += columns.to(tl.int64) * first
        if EVEN:
            return tl.load(x + (row * columns + column))
        else:
            return tl.load(x + (row * columns + column), mask=first + row < depth, other=0.0)


@triton.jit
def _slices(x, WIDTH: tl.constexpr):
    """A tuple of the neighbouring slices of x, WIDTH columns each."""
    if x.shape[1] <= WIDTH:
        return (x,)
    else:
        left, right = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))
        return _slices(left, WIDTH) + _slices(right, WIDTH)


@triton.jit(do_not_specialize=["rows"])
def product_gelu(
    x_ptr, weight_ptr, bias_ptr, y_ptr, u_ptr, rows, columns, depth,
    TANH: tl.constexpr, KEEP: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. EVEN: depth is a multiple of DEPTH."""
    across = tl.cdiv(columns, COLUMNS)
    x, weight = x_ptr, weight_ptr
    if TMA:
        x = tl.make_tensor_descriptor(x_ptr, [rows, depth], [depth, 1], [ROWS, DEPTH])
        weight = tl.make_tensor_descriptor(weight_ptr, [columns, depth], [depth, 1], [COLUMNS, DEPTH])
    for step in range(0, across * tl.cdiv(rows, ROWS) - tl.program_id(0), tl.num_programs(0)):
        tile = tl.program_id(0) + step
        first_row, first_column = tile // across * ROWS, tile % across * COLUMNS
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(0, depth, DEPTH):
            left = _rows_of(x, first_row, first, rows, depth, EVEN, ROWS, DEPTH, TMA)
            right = _rows_of(weight, first_column, first, columns, depth, EVEN, COLUMNS, DEPTH, TMA)
            total = add_dot(left, tl.trans(right), total, "tf32")
        row, start = tl.arange(0, ROWS)[:, None], first_row.to(tl.int64) * columns
        slices = _slices(total, WIDTH)
        for i in tl.static_range(len(slices)):
            column = first_column + i * WIDTH + tl.arange(0, WIDTH)[None, :]
            inside = (first_row + row < rows) & (column < columns)
            sums = slices[i]
            if bias_ptr is not None:
                sums += tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
            rounded = narrow(sums, y_ptr.dtype.element_ty)
            value = gelu(rounded.to(tl.float32), TANH)
            if KEEP:
                tl.store(u_ptr + start + (row * columns + column), rounded, mask=inside)
            tl.store(y_ptr + start + (row * columns + column), narrow(value, y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def product_gelu_gradient(
    grad_ptr, weight_ptr, u_ptr, du_ptr, h_ptr, partial_ptr, rows, columns, depth,
    TANH: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. partial (tiles of rows, columns) fp32 gets the sums of du over each tile's rows."""
    across = tl.cdiv(columns, COLUMNS)
    grad, weight = grad_ptr, weight_ptr
    if TMA:
        grad = tl.make_tensor_descriptor(grad_ptr, [rows, depth], [depth, 1], [ROWS, DEPTH])
        weight = tl.make_tensor_descriptor(weight_ptr, [depth, columns], [columns, 1], [DEPTH, COLUMNS])
    for step in range(0, across * tl.cdiv(rows, ROWS) - tl.program_id(0), tl.num_programs(0)):
        tile = tl.program_id(0) + step
        first_row, first_column = tile // across * ROWS, tile % across * COLUMNS
        dh = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(0, depth, DEPTH):
            left = _rows_of(grad, first_row, first, rows, depth, EVEN, ROWS, DEPTH, TMA)
            right = _columns_of(weight, first, first_column, depth, columns, EVEN, DEPTH, COLUMNS, TMA)
            dh = add_dot(left, right, dh, "tf32")
        row, column = tl.arange(0, ROWS)[:, None], first_column + tl.arange(0, WIDTH)[None, :]
        exists, start = first_row + row < rows, first_row.to(tl.int64) * columns
        partial = partial_ptr + (tile // across).to(tl.int64) * columns
        # A slice of u is on its way while the one before it is worked on.
        ahead = tl.load(u_ptr + start + (row * columns + column), mask=exists & (column < columns), other=0.0)
        slices = _slices(dh, WIDTH)
        for i in tl.static_range(len(slices)):
            u = ahead.to(tl.float32)
            column = first_column + i * WIDTH + tl.arange(0, WIDTH)[None, :]
            if i + 1 < len(slices):
                following = column + WIDTH
                inside = exists & (following < columns)
                ahead = tl.load(u_ptr + start + (row * columns + following), mask=inside, other=0.0)
            offset, inside = row * columns + column, column < columns
            value, slope = gelu_and_derivative(u, TANH)
            # Rows that do not exist may repeat another, and are no part of the sum.
            du = tl.where(exists, slices[i] * slope, 0.0)
            tl.store(du_ptr + start + offset, narrow(du, du_ptr.dtype.element_ty), mask=exists & inside)
            tl.store(h_ptr + start + offset, narrow(value, h_ptr.dtype.element_ty), mask=exists & inside)
            tl.store(partial + column, tl.sum(du, 0, keep_dims=True), mask=inside)


def _config(kernel: Any, x: Tensor) -> Config:
    """For x (rows, depth)."""
    width = min(max(x.shape[1], SHALLOWEST), DEEPEST)
    return tables.lookup(kernel.__name__, tables.shape_class(x.dtype, False, width), architecture(x.device))


def prefers_own(x: Tensor) -> bool:
    """Whether the table wants `linear_gelu` for x (rows, depth) here, not the library's product with GELU behind it."""
    return bool(_config(product_gelu, x).constants["OWN"])


def _workspace(size: int, alignment: int, stream: int | None) -> Tensor:
    """Where a program writes its tensor descriptors."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _start(kernel: Any, config: Config, x: Tensor, columns: int, *tensors: Tensor | None, **constants: Any) -> None:
    """Launch on x (rows, depth) and `tensors`, with as many programs as run side by side."""
    rows, depth = x.shape
    sizes = {name: size for name, size in config.constants.items() if name != "OWN"}
    tiles = triton.cdiv(rows, sizes["ROWS"]) * triton.cdiv(columns, sizes["COLUMNS"])
    # The allocator holds in this context alone: whatever else runs here keeps its own.
    context = contextvars.copy_context()
    context.run(triton.set_allocator, _workspace)
    context.run(
        launch,
        kernel,
        (min(tiles, PROGRAMS * multiprocessors(x.device)),),
        *(x, *tensors, rows, columns, depth),
        EVEN=depth % sizes["DEPTH"] == 0,
        config=replace(config, constants=sizes),
        **constants,
    )


def _together(x: Tensor) -> Tensor:
    """A copy where elements do not lie side by side from an address on at which 16 bytes can be fetched at once."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, keep: bool) -> tuple[Tensor, Tensor]:
    """y = gelu(u) and u = x weight^T + bias: x (rows, depth) and weight (columns, depth) of one half-precision dtype,
    both numbers of columns multiples of 16; bias (columns,) fp32 or of that dtype, added in fp32.

    y is computed from the rounded u, and has the bits of h in `gelu_gradient_product`. Without `keep`, u is empty.
    """
    rows, columns = len(x), len(weight)
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    u = torch.empty(rows if keep else 0, columns, dtype=x.dtype, device=x.device)
    if y.numel():
        tensors = (_together(weight), None if bias is None else bias.contiguous(), y, u if keep else None)
        config = _config(product_gelu, x)
        _start(product_gelu, config, _together(x), columns, *tensors, TANH=tanh, KEEP=keep)
    return y, u


def gelu_gradient_product(grad: Tensor, weight: Tensor, u: Tensor, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """du = (grad weight) gelu'(u), h = gelu(u) and the sums of du over the rows, fp32: grad (rows, depth), weight
    (depth, columns) and u (rows, columns) of one half-precision dtype, both numbers of columns multiples of 16.

    The sums are those of du before it is rounded, added up in an order that depends on the number of rows alone.
    """
    rows, columns = u.shape
    du, h = (torch.empty(rows, columns, dtype=u.dtype, device=u.device) for _ in range(2))
    config = _config(product_gelu_gradient, grad)
    tiles = triton.cdiv(rows, config.constants["ROWS"])
    partial = torch.empty(tiles, columns, dtype=torch.float32, device=u.device)
    if u.numel():
        tensors = (_together(weight), _together(u), du, h, partial)
        _start(product_gelu_gradient, config, _together(grad), columns, *tensors, TANH=tanh)
    return du, h, column_sums(partial)
