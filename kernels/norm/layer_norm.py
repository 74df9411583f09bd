"""LayerNorm of rows, or of residual + dropout(x + x_bias), and the gradients of all of them.

x, residual, y, total and their gradients (rows, width), of any row stride where they are read; weight, bias, x_bias
(width,). Forward rounds the sum to the dtype of x, `total`, and norms what it rounded; backward reads total, mean and
rstd, and recomputes the dropout mask. A program holds BLOCK_M rows of up to BLOCK_N columns in registers. Backward
runs as few programs as fill the device: each walks over blocks of rows, the loads of STAGES - 1 blocks ahead in flight,
and writes one partial row of each vector's gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import Reduction, column_sums, programs_for
from fastbert.kernels.common import INTERPRETED, narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.configs.norm import NARROWEST
from fastbert.kernels.dropout.inputs import DropoutInputs, kernel_arguments
from fastbert.kernels.launch import architecture, launch
from fastbert.kernels.token_dropout import keep_mask, load_key_and_offset
from fastbert.kernels.tuning import tables

RUNTIME = ["rows", "sequences", "threshold", "site"]
# Elements between two rows: offsets inside a tile have 32 bits.
MAX_ROW_STRIDE = 2**24


@triton.jit
def load_columns(x_ptr, column, in_row, BLOCK_M: tl.constexpr):
    """Return a vector of `width` elements repeated per row, fp32 (BLOCK_M, BLOCK_N), zero beyond its end.

    As one row, fp32 weights would have a layout of 16 bytes per thread, half as many elements as 16 bytes of bf16 rows,
    and the compiler would then compute every mixed expression in both layouts.
    """
    column += tl.zeros((BLOCK_M, 1), tl.int32)
    return tl.load(x_ptr + column, mask=in_row, other=0.0).to(tl.float32)


@triton.jit
def normalised(x, weight, bias, width, eps, in_row):
    """Return LayerNorm of rows x, fp32 (BLOCK_M, BLOCK_N) and zero beyond their width; mean and rstd (BLOCK_M, 1)."""
    mean = tl.div_rn(tl.sum(x, 1, keep_dims=True), tl.cast(width, tl.float32))
    centred = tl.where(in_row, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / width + eps)
    return centred * rstd * weight + bias, mean, rstd


@triton.jit
def _add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def row_gradient(grad, hat, rstd, weight, width):
    """Return the gradient of rows from that of their norm and the normalised rows `hat`, fp32 (BLOCK_M, BLOCK_N)."""
    grad *= weight
    if INTERPRETED:
        mean, slope = tl.sum(grad, 1, keep_dims=True), tl.sum(grad * hat, 1, keep_dims=True)
    else:
        # In one reduction: the warps of a row synchronise once.
        mean, slope = tl.reduce((grad, grad * hat), 1, _add_both, keep_dims=True)
    return rstd * (grad - mean / width - hat * (slope / width))


@triton.jit
def store_sums(partial_ptr, index, sums, column, width, in_row):
    """Store the column sums of `sums` (BLOCK_M, BLOCK_N) as row `index` of partial (rows, width)."""
    offset = index.to(tl.int64) * width + column
    tl.store(partial_ptr + offset, tl.sum(sums, 0, keep_dims=True), mask=in_row)


@triton.jit(do_not_specialize=RUNTIME)
def norm_forward(
    x_ptr, x_bias_ptr, residual_ptr, weight_ptr, bias_ptr, key_ptr, sequence_ptr, offset_ptr,
    y_ptr, total_ptr, mean_ptr, rstd_ptr,
    stride_x_row, stride_residual_row, rows, width, sequences, eps, keep_scale, threshold, site,
    SUMMED: tl.constexpr, DROPOUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_M rows. total, mean and rstd are written where their pointers are not None."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    exists, in_row = row < rows - first, column < width
    inside = exists & in_row
    x = tl.load(x_ptr + first * stride_x_row + (row * stride_x_row + column), mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        offset = row * stride_residual_row + column
        residual = tl.load(residual_ptr + first * stride_residual_row + offset, mask=inside, other=0.0)
    # Before any store: the compiler must not move a load over a store.
    weight, bias = load_columns(weight_ptr, column, in_row, BLOCK_M), load_columns(bias_ptr, column, in_row, BLOCK_M)
    if x_bias_ptr is not None:
        x += load_columns(x_bias_ptr, column, in_row, BLOCK_M)
    if DROPOUT:
        key, position = load_key_and_offset(key_ptr, sequence_ptr, offset_ptr, first + row, exists, sequences)
        x = tl.where(keep_mask(key, position, 0, site, threshold, BLOCK_M, BLOCK_N), x * keep_scale, 0.0)
    if residual_ptr is not None:
        x += residual.to(tl.float32)
    if SUMMED:
        total = narrow(x, x_ptr.dtype.element_ty)
        if total_ptr is not None:
            tl.store(total_ptr + first * width + (row * width + column), total, mask=inside)
        x = total.to(tl.float32)
    y, mean, rstd = normalised(x, weight, bias, width, eps, in_row)
    tl.store(y_ptr + first * width + (row * width + column), narrow(y, y_ptr.dtype.element_ty), mask=inside)
    if mean_ptr is not None:
        tl.store(mean_ptr + first + row, mean, mask=exists)
        tl.store(rstd_ptr + first + row, rstd, mask=exists)


@triton.jit(do_not_specialize=RUNTIME)
def norm_backward(
    grad_ptr, grad_total_ptr, total_ptr, mean_ptr, rstd_ptr, weight_ptr, key_ptr, sequence_ptr, offset_ptr,
    dx_ptr, dresidual_ptr, partial_ptr,
    stride_grad_row, stride_grad_total_row, stride_total_row, rows, width, sequences, keep_scale, threshold, site,
    X_BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. partial (programs, 2 or 3, width): dweight, dbias and, with X_BIAS, dx_bias.

    dresidual is written where its pointer is not None: where it differs from dx.
    """
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    in_row = column < width
    if STAGES > 1:
        weight = load_columns(weight_ptr, column, in_row, BLOCK_M)
    dweight, dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32), tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    dx_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.num_programs(0), num_stages=STAGES):
        first = tl.cast(block, tl.int64) * BLOCK_M
        exists = row < rows - first
        inside = exists & in_row
        total = tl.load(
            total_ptr + first * stride_total_row + (row * stride_total_row + column), mask=inside, other=0.0
        ).to(tl.float32)
        grad = tl.load(
            grad_ptr + first * stride_grad_row + (row * stride_grad_row + column), mask=inside, other=0.0
        ).to(tl.float32)
        rstd = tl.load(rstd_ptr + first + row, mask=exists, other=0.0)
        hat = (total - tl.load(mean_ptr + first + row, mask=exists, other=0.0)) * rstd
        dweight += grad * hat
        dbias += grad
        if STAGES == 1:  # registers do not hold the weights of such wide rows
            weight = load_columns(weight_ptr, column, in_row, BLOCK_M)
        dx = row_gradient(grad, hat, rstd, weight, width)
        if grad_total_ptr is not None:
            offset = row * stride_grad_total_row + column
            dx += tl.load(grad_total_ptr + first * stride_grad_total_row + offset, mask=inside, other=0.0)
        if dresidual_ptr is not None:
            dresidual = narrow(dx, dresidual_ptr.dtype.element_ty)
            tl.store(dresidual_ptr + first * width + (row * width + column), dresidual, mask=inside)
        if DROPOUT:
            key, position = load_key_and_offset(key_ptr, sequence_ptr, offset_ptr, first + row, exists, sequences)
            dx = tl.where(keep_mask(key, position, 0, site, threshold, BLOCK_M, BLOCK_N), dx * keep_scale, 0.0)
        if X_BIAS:
            dx_bias += dx
        tl.store(dx_ptr + first * width + (row * width + column), narrow(dx, dx_ptr.dtype.element_ty), mask=inside)
    index = tl.program_id(0) * (3 if X_BIAS else 2)
    store_sums(partial_ptr, index, dweight, column, width, in_row)
    store_sums(partial_ptr, index + 1, dbias, column, width, in_row)
    if X_BIAS:
        store_sums(partial_ptr, index + 2, dx_bias, column, width, in_row)


def addressable_rows(x: Tensor) -> Tensor:
    """Return x (rows, width), copied if its columns are not contiguous or its rows too far apart for 32-bit offsets."""
    return x if x.stride(1) == 1 and x.stride(0) < MAX_ROW_STRIDE else x.contiguous()


def lookup_config(kernel: Any, x: Tensor) -> Config:
    """Return the configuration of a kernel for rows x (rows, width)."""
    shape = tables.shape_class(x.dtype, False, max(x.shape[1], NARROWEST))
    return tables.lookup(kernel.__name__, shape, architecture(x.device))


def forward(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dropout: DropoutInputs | None,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y and total in the dtype of x, mean and rstd fp32 (rows,); all but y are empty without `save`.

    Where nothing is added or dropped, total is `x` itself.
    """
    rows, width = x.shape
    summed = x_bias is not None or residual is not None or dropout is not None
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    total = torch.empty((rows, width) if save else (0,), dtype=x.dtype, device=x.device) if summed else x
    mean, rstd = (torch.empty(rows if save else 0, dtype=torch.float32, device=x.device) for _ in range(2))
    x_rows = addressable_rows(x)
    summand = None if residual is None else addressable_rows(residual)
    tensors, sequences, numbers = kernel_arguments(dropout)
    config = lookup_config(norm_forward, x)
    launch(
        norm_forward,
        (triton.cdiv(rows, config.constants["BLOCK_M"]),),
        *(x_rows, None if x_bias is None else x_bias.contiguous(), summand, weight.contiguous(), bias.contiguous()),
        *tensors,
        *(y, total if save and summed else None, mean if save else None, rstd if save else None),
        *(x_rows.stride(0), 0 if summand is None else summand.stride(0)),
        *(rows, width, sequences, eps, *numbers),
        SUMMED=summed,
        DROPOUT=dropout is not None,
        config=config,
    )
    return y, total, mean, rstd


def backward(
    grad: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    dropout: DropoutInputs | None,
    *,
    x_bias: bool,
    residual: bool,
    reduction: Reduction = column_sums,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return dx, dresidual, and the rows dweight, dbias and, with x_bias, dx_bias of one fp32 (2 or 3, width).

    dx and dresidual have the dtype of `total`; dresidual is None without a residual, and where it equals dx.
    `reduction` sums the rows of partial results.
    """
    rows, width = total.shape
    total, grad = addressable_rows(total), addressable_rows(grad)
    grad_total = None if grad_total is None else addressable_rows(grad_total)
    dx = torch.empty((rows, width), dtype=total.dtype, device=total.device)
    dresidual = torch.empty_like(dx) if residual and dropout is not None else None
    tensors, sequences, numbers = kernel_arguments(dropout)
    config = lookup_config(norm_backward, total)
    programs = programs_for(total.device, triton.cdiv(rows, config.constants["BLOCK_M"]))
    partial = torch.empty((programs, 3 if x_bias else 2, width), dtype=torch.float32, device=total.device)
    launch(
        norm_backward,
        (programs,),
        *(grad, grad_total, total, mean, rstd, weight.contiguous(), *tensors, dx, dresidual, partial),
        *(grad.stride(0), 0 if grad_total is None else grad_total.stride(0), total.stride(0)),
        *(rows, width, sequences, *numbers),
        X_BIAS=x_bias,
        DROPOUT=dropout is not None,
        config=config,
    )
    return dx, dresidual, reduction(partial)
