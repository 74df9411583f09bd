"""Matmuls with GELU in their epilogue: the up-projection of a feed-forward layer, forward and backward.

Forward: x (rows, depth), weight (columns, depth): u = x weight^T + bias in the operands' dtype, y = gelu(u) of the
rounded u. Backward, with the next layer's weight (depth, columns) and the gradient (rows, depth) of its result:
dh = grad weight, du = dh gelu'(u), h = gelu(u) recomputed, and the sums of du over the rows. So h is not saved for the
gradient of the next layer's weight, and no pass over (rows, columns) separates the two matmuls.

A program computes BLOCK_M x BLOCK_N tiles in turn, tiles of the same rows one after the other: the encoder's weights
stay in the L2 cache, and rows are read from memory once. The epilogue computes EPILOGUE_N columns at a time, for which
there are enough registers; two programs per multiprocessor hide each other's epilogue. With TMA, tiles of the operands
are loaded through tensor descriptors (sm_90 and later), which takes neither registers nor instructions of a thread.
"""

from __future__ import annotations

import contextvars
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import Reduction, column_sums
from fastbert.kernels.common import INTERPRETED, add_dot, narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.configs.linear import DEEPEST, SHALLOWEST, row_class
from fastbert.kernels.gelu.activation import gelu, gelu_and_derivative
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables

# Per multiprocessor: the most for which registers and shared memory suffice, with tiles for many and for few rows.
PROGRAMS, FEW_ROWS_PROGRAMS = 2, 4


@triton.jit
def _load_rows(
    x,
    first_row,
    first,
    rows,
    depth,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TMA: tl.constexpr,
):
    """Load (BLOCK_M, BLOCK_K) of x (rows, depth), a pointer or a descriptor; zeros beyond `depth`."""
    if TMA:
        return x.load([first_row, first])
    else:
        row = tl.minimum(tl.arange(0, BLOCK_M), rows - 1 - first_row)[:, None]
        column = first + tl.arange(0, BLOCK_K)[None, :]
        x += first_row.to(tl.int64) * depth
        if EVEN:
            return tl.load(x + (row * depth + column))
        else:
            return tl.load(x + (row * depth + column), mask=column < depth, other=0.0)


@triton.jit
def _load_columns(
    x, first, first_column, depth, columns,
    EVEN: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Load (BLOCK_K, BLOCK_N) of x (depth, columns); zeros beyond `depth`, arbitrary values beyond `columns`."""
    if TMA:
        return x.load([first, first_column])
    else:
        row = tl.arange(0, BLOCK_K)[:, None]
        # Both are multiples of 16, so that 16 neighbours stay contiguous.
        column = tl.max_contiguous(tl.multiple_of((first_column + tl.arange(0, BLOCK_N)) % columns, 16), 16)[None, :]
        x += columns.to(tl.int64) * first
        if EVEN:
            return tl.load(x + (row * columns + column))
        else:
            return tl.load(x + (row * columns + column), mask=first + row < depth, other=0.0)


@triton.jit
def _slices(x, EPILOGUE_N: tl.constexpr):
    """Return a tuple of the contiguous slices of x, EPILOGUE_N columns each."""
    if x.shape[1] <= EPILOGUE_N:
        return (x,)
    else:
        left, right = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))
        return _slices(left, EPILOGUE_N) + _slices(right, EPILOGUE_N)


@triton.jit
def _prefetch(x_ptr, first_row, first_column, rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Fetch a tile of x (rows, columns), in half precision, into the L2 cache of an NVIDIA GPU: 128 bytes at a time."""
    LINES: tl.constexpr = BLOCK_N // 64 if BLOCK_N >= 64 else 1
    row = tl.minimum(first_row + tl.arange(0, BLOCK_M), rows - 1)[:, None].to(tl.int64)
    column = tl.minimum(first_column + 64 * tl.arange(0, LINES), columns - 1)[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [x_ptr + row * columns + column],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def matmul_gelu(
    x_ptr, weight_ptr, bias_ptr, y_ptr, u_ptr, rows, columns, depth,
    TANH: tl.constexpr, KEEP: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EPILOGUE_N: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. EVEN: depth is a multiple of BLOCK_K."""
    across = tl.cdiv(columns, BLOCK_N)
    x, weight = x_ptr, weight_ptr
    if TMA:
        x = tl.make_tensor_descriptor(x_ptr, [rows, depth], [depth, 1], [BLOCK_M, BLOCK_K])
        weight = tl.make_tensor_descriptor(weight_ptr, [columns, depth], [depth, 1], [BLOCK_N, BLOCK_K])
    for step in range(0, across * tl.cdiv(rows, BLOCK_M) - tl.program_id(0), tl.num_programs(0)):
        tile = tl.program_id(0) + step
        first_row, first_column = tile // across * BLOCK_M, tile % across * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for first in range(0, depth, BLOCK_K):
            a = _load_rows(x, first_row, first, rows, depth, EVEN, BLOCK_M, BLOCK_K, TMA)
            b = _load_rows(weight, first_column, first, columns, depth, EVEN, BLOCK_N, BLOCK_K, TMA)
            total = add_dot(a, tl.trans(b), total, "tf32")
        row, start = tl.arange(0, BLOCK_M)[:, None], first_row.to(tl.int64) * columns
        slices = _slices(total, EPILOGUE_N)
        for i in tl.static_range(len(slices)):
            column = first_column + i * EPILOGUE_N + tl.arange(0, EPILOGUE_N)[None, :]
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
def matmul_gelu_backward(
    grad_ptr, weight_ptr, u_ptr, du_ptr, h_ptr, partial_ptr, rows, columns, depth,
    TANH: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EPILOGUE_N: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. partial (tiles of rows, columns) fp32: the sums of du over each tile's rows."""
    across = tl.cdiv(columns, BLOCK_N)
    grad, weight = grad_ptr, weight_ptr
    if TMA:
        grad = tl.make_tensor_descriptor(grad_ptr, [rows, depth], [depth, 1], [BLOCK_M, BLOCK_K])
        weight = tl.make_tensor_descriptor(weight_ptr, [depth, columns], [columns, 1], [BLOCK_K, BLOCK_N])
    for step in range(0, across * tl.cdiv(rows, BLOCK_M) - tl.program_id(0), tl.num_programs(0)):
        tile = tl.program_id(0) + step
        first_row, first_column = tile // across * BLOCK_M, tile % across * BLOCK_N
        if TMA and not INTERPRETED:
            # Read after the matmul, which lasts longer than the latency of the memory.
            _prefetch(u_ptr, first_row, first_column, rows, columns, BLOCK_M, BLOCK_N)
        dh = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for first in range(0, depth, BLOCK_K):
            a = _load_rows(grad, first_row, first, rows, depth, EVEN, BLOCK_M, BLOCK_K, TMA)
            b = _load_columns(weight, first, first_column, depth, columns, EVEN, BLOCK_K, BLOCK_N, TMA)
            dh = add_dot(a, b, dh, "tf32")
        row, column = tl.arange(0, BLOCK_M)[:, None], first_column + tl.arange(0, EPILOGUE_N)[None, :]
        exists, start = first_row + row < rows, first_row.to(tl.int64) * columns
        partial = partial_ptr + (tile // across).to(tl.int64) * columns
        # Prefetch the next slice of u while the current one is computed.
        prefetched = tl.load(u_ptr + start + (row * columns + column), mask=exists & (column < columns), other=0.0)
        slices = _slices(dh, EPILOGUE_N)
        for i in tl.static_range(len(slices)):
            u = prefetched.to(tl.float32)
            column = first_column + i * EPILOGUE_N + tl.arange(0, EPILOGUE_N)[None, :]
            if i + 1 < len(slices):
                following = column + EPILOGUE_N
                inside = exists & (following < columns)
                prefetched = tl.load(u_ptr + start + (row * columns + following), mask=inside, other=0.0)
            offset, inside = row * columns + column, column < columns
            value, slope = gelu_and_derivative(u, TANH)
            # Rows beyond the last repeat another row and do not belong to the sum.
            du = tl.where(exists, slices[i] * slope, 0.0)
            tl.store(du_ptr + start + offset, narrow(du, du_ptr.dtype.element_ty), mask=exists & inside)
            tl.store(h_ptr + start + offset, narrow(value, h_ptr.dtype.element_ty), mask=exists & inside)
            tl.store(partial + column, tl.sum(du, 0, keep_dims=True), mask=inside)


def _config(kernel: Any, x: Tensor, rows: str = "") -> Config:
    """Return the configuration for x (rows, depth), of the row class `rows`."""
    depth = min(max(x.shape[1], SHALLOWEST), DEEPEST)
    return tables.lookup(kernel.__name__, tables.shape_class(x.dtype, False, depth) + rows, architecture(x.device))


def prefers_fused(x: Tensor, *, backward: bool = False) -> bool:
    """Return whether the configurations prefer `linear_gelu` for x (rows, depth) to a pass after PyTorch's matmul, or
    `linear_gelu_backward`, which has no configurations for few rows."""
    return bool(_config(matmul_gelu, x, "" if backward else row_class(len(x))).constants["FUSED"])


def _workspace(size: int, alignment: int, stream: int | None) -> Tensor:
    """Allocate the memory for the programs' tensor descriptors."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _launch(
    kernel: Any,
    config: Config,
    x: Tensor,
    columns: int,
    *tensors: Tensor | None,
    programs: int = PROGRAMS,
    **constants: Any,
) -> None:
    """Launch on x (rows, depth) and `tensors`, with as many programs as run concurrently: `programs` per
    multiprocessor."""
    rows, depth = x.shape
    sizes = {name: size for name, size in config.constants.items() if name != "FUSED"}
    tiles = triton.cdiv(rows, sizes["BLOCK_M"]) * triton.cdiv(columns, sizes["BLOCK_N"])
    # The allocator is set in this context alone, so that other kernels keep theirs.
    context = contextvars.copy_context()
    context.run(triton.set_allocator, _workspace)
    context.run(
        launch,
        kernel,
        (min(tiles, programs * multiprocessors(x.device)),),
        *(x, *tensors, rows, columns, depth),
        EVEN=depth % sizes["BLOCK_K"] == 0,
        config=replace(config, constants=sizes),
        **constants,
    )


def _aligned(x: Tensor) -> Tensor:
    """Return x, copied unless it is contiguous and aligned to 16 bytes."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, keep: bool) -> tuple[Tensor, Tensor]:
    """Return y = gelu(u) and u = x weight^T + bias; without `keep`, u is empty.

    x (rows, depth) and weight (columns, depth) have one half-precision dtype, with depth and columns multiples of 16;
    bias (columns,) is fp32 or of that dtype, and added in fp32. y is computed from the rounded u, and has the bits of h
    in `linear_gelu_backward`.
    """
    rows, columns = len(x), len(weight)
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    u = torch.empty(rows if keep else 0, columns, dtype=x.dtype, device=x.device)
    if y.numel():
        tensors = (_aligned(weight), None if bias is None else bias.contiguous(), y, u if keep else None)
        few = row_class(rows)
        config, programs = _config(matmul_gelu, x, few), FEW_ROWS_PROGRAMS if few else PROGRAMS
        _launch(matmul_gelu, config, _aligned(x), columns, *tensors, programs=programs, TANH=tanh, KEEP=keep)
    return y, u


def linear_gelu_backward(
    grad: Tensor, weight: Tensor, u: Tensor, tanh: bool, reduction: Reduction = column_sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Return du = (grad weight) gelu'(u), h = gelu(u) and the fp32 sums of du over the rows, by `reduction`.

    grad (rows, depth), weight (depth, columns) and u (rows, columns) have one half-precision dtype, with depth and
    columns multiples of 16. The sums are those of the unrounded du, in an order that depends on the number of rows
    alone.
    """
    rows, columns = u.shape
    du, h = (torch.empty(rows, columns, dtype=u.dtype, device=u.device) for _ in range(2))
    config = _config(matmul_gelu_backward, grad)
    tiles = triton.cdiv(rows, config.constants["BLOCK_M"])
    partial = torch.empty(tiles, columns, dtype=torch.float32, device=u.device)
    if u.numel():
        tensors = (_aligned(weight), _aligned(u), du, h, partial)
        _launch(matmul_gelu_backward, config, _aligned(grad), columns, *tensors, TANH=tanh)
    return du, h, reduction(partial)
