"""LayerNorm of rows, or of residual + dropout(x + x_bias), and the gradients of all of them.

x, residual, y, total and their gradients (rows, width), of any row stride where they are read; weight, bias, x_bias
(width,). Forward rounds the sum to the dtype of x, `total`, and norms what it rounded; backward reads total, mean and
rstd, and computes the dropout mask again. A program has ROWS rows of up to COLUMNS columns in registers. Backward runs
as few programs as fill the device: each walks over blocks of rows, the loads of STAGES - 1 blocks ahead in flight, and
leaves one partial row of each weight's gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import column_sums, parts
from fastbert.kernels.common import INTERPRETED, narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.configs.norm import NARROWEST
from fastbert.kernels.launch import architecture, launch
from fastbert.kernels.token_dropout import kept_columns, token_place
from fastbert.kernels.tuning import tables
from fastbert.ops.dropout.op import TokenDropout, quantized

RUNTIME = ["rows", "sequences", "threshold", "site"]
FARTHEST = 2**24  # elements between two rows: offsets inside a tile have 32 bits


@triton.jit
def load_columns(x_ptr, column, in_row, ROWS: tl.constexpr):
    """A vector of the width for each row, fp32 (ROWS, COLUMNS), zero behind its end.

    As one row, fp32 weights would be laid out for their own 16 bytes a thread, half of what 16 bytes of bf16 rows are,
    and the compiler would then compute everything that meets both in both layouts.
    """
    column += tl.zeros((ROWS, 1), tl.int32)
    return tl.load(x_ptr + column, mask=in_row, other=0.0).to(tl.float32)


@triton.jit
def normalised(x, weight, bias, width, eps, in_row):
    """LayerNorm of the rows x, fp32 (ROWS, COLUMNS) and zero behind their width; mean and rstd (ROWS, 1)."""
    mean = tl.div_rn(tl.sum(x, 1, keep_dims=True), tl.cast(width, tl.float32))
    centred = tl.where(in_row, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / width + eps)
    return centred * rstd * weight + bias, mean, rstd


@triton.jit
def _add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def row_gradient(grad, hat, rstd, weight, width):
    """The gradient of rows from that of their norm and the normalised rows `hat`; all fp32 (ROWS, COLUMNS)."""
    grad *= weight
    if INTERPRETED:
        mean, slope = tl.sum(grad, 1, keep_dims=True), tl.sum(grad * hat, 1, keep_dims=True)
    else:
        # Both at once: the warps of a row wait for each other once.
        mean, slope = tl.reduce((grad, grad * hat), 1, _add_both, keep_dims=True)
    return rstd * (grad - mean / width - hat * (slope / width))


@triton.jit
def store_sums(partial_ptr, place, sums, column, width, in_row):
    """One partial row: `sums` (ROWS, COLUMNS) added up over its rows, as row `place` of partial (places, width)."""
    offset = place.to(tl.int64) * width + column
    tl.store(partial_ptr + offset, tl.sum(sums, 0, keep_dims=True), mask=in_row)


@triton.jit(do_not_specialize=RUNTIME)
def norm_forward(
    x_ptr, x_bias_ptr, residual_ptr, weight_ptr, bias_ptr, key_ptr, sequence_ptr, offset_ptr,
    y_ptr, total_ptr, mean_ptr, rstd_ptr,
    stride_x_row, stride_residual_row, rows, width, sequences, eps, keep_scale, threshold, site,
    SUMMED: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of ROWS rows. total, mean and rstd are written where their pointers are not None."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    exists, in_row = row < rows - first, column < width
    inside = exists & in_row
    x = tl.load(x_ptr + first * stride_x_row + (row * stride_x_row + column), mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        offset = row * stride_residual_row + column
        residual = tl.load(residual_ptr + first * stride_residual_row + offset, mask=inside, other=0.0)
    # Before anything is stored: the compiler must not move a load over a store.
    weight, bias = load_columns(weight_ptr, column, in_row, ROWS), load_columns(bias_ptr, column, in_row, ROWS)
    if x_bias_ptr is not None:
        x += load_columns(x_bias_ptr, column, in_row, ROWS)
    if DROPOUT:
        key, position = token_place(key_ptr, sequence_ptr, offset_ptr, first + row, exists, sequences)
        x = tl.where(kept_columns(key, position, 0, site, threshold, ROWS, COLUMNS), x * keep_scale, 0.0)
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
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. partial (programs, 2 or 3, width): dweight, dbias and, with X_BIAS, dx_bias.

    dresidual is written where its pointer is not None: where it differs from dx.
    """
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    in_row = column < width
    if STAGES > 1:
        weight = load_columns(weight_ptr, column, in_row, ROWS)
    dweight, dbias = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    dx_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        first = tl.cast(block, tl.int64) * ROWS
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
        if STAGES == 1:  # rows so wide that their weights do not fit into registers too
            weight = load_columns(weight_ptr, column, in_row, ROWS)
        dx = row_gradient(grad, hat, rstd, weight, width)
        if grad_total_ptr is not None:
            offset = row * stride_grad_total_row + column
            dx += tl.load(grad_total_ptr + first * stride_grad_total_row + offset, mask=inside, other=0.0)
        if dresidual_ptr is not None:
            dresidual = narrow(dx, dresidual_ptr.dtype.element_ty)
            tl.store(dresidual_ptr + first * width + (row * width + column), dresidual, mask=inside)
        if DROPOUT:
            key, position = token_place(key_ptr, sequence_ptr, offset_ptr, first + row, exists, sequences)
            dx = tl.where(kept_columns(key, position, 0, site, threshold, ROWS, COLUMNS), dx * keep_scale, 0.0)
        if X_BIAS:
            dx_bias += dx
        tl.store(dx_ptr + first * width + (row * width + column), narrow(dx, dx_ptr.dtype.element_ty), mask=inside)
    place = tl.program_id(0) * (3 if X_BIAS else 2)
    store_sums(partial_ptr, place, dweight, column, width, in_row)
    store_sums(partial_ptr, place + 1, dbias, column, width, in_row)
    if X_BIAS:
        store_sums(partial_ptr, place + 2, dx_bias, column, width, in_row)


def with_near_rows(x: Tensor) -> Tensor:
    """A copy where a row's columns are not side by side, or where rows lie too far apart for 32 bits."""
    return x if x.stride(1) == 1 and x.stride(0) < FARTHEST else x.contiguous()


def config_for(kernel: Any, x: Tensor) -> Config:
    shape = tables.shape_class(x.dtype, False, max(x.shape[1], NARROWEST))
    return tables.lookup(kernel.__name__, shape, architecture(x.device))


def _dropped(dropout: TokenDropout | None) -> tuple[tuple[Tensor | None, ...], int, tuple[float, int, int]]:
    """Tensors, how many sequences, and numbers of a dropout as the kernels take them."""
    if dropout is None:
        return (None, None, None), 0, (1.0, 0, 0)
    threshold, keep_scale = quantized(dropout.p)
    tensors = tuple(x.contiguous() for x in (dropout.key, dropout.sequence_ids, dropout.offsets))
    return tensors, dropout.key.shape[0], (keep_scale, threshold, dropout.site)


def forward(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dropout: TokenDropout | None,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y and total in the dtype of x, mean and rstd fp32 (rows,); all but y are empty without `save`.

    Where nothing is added or dropped, total is `x` itself.
    """
    rows, width = x.shape
    summed = x_bias is not None or residual is not None or dropout is not None
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    total = torch.empty((rows, width) if save else (0,), dtype=x.dtype, device=x.device) if summed else x
    mean, rstd = (torch.empty(rows if save else 0, dtype=torch.float32, device=x.device) for _ in range(2))
    near = with_near_rows(x)
    other = None if residual is None else with_near_rows(residual)
    tensors, sequences, numbers = _dropped(dropout)
    config = config_for(norm_forward, x)
    launch(
        norm_forward,
        (triton.cdiv(rows, config.constants["ROWS"]),),
        *(near, None if x_bias is None else x_bias.contiguous(), other, weight.contiguous(), bias.contiguous()),
        *tensors,
        *(y, total if save and summed else None, mean if save else None, rstd if save else None),
        *(near.stride(0), 0 if other is None else other.stride(0)),
        *(rows, width, sequences, eps, *numbers),
        SUMMED=summed,
        DROPOUT=dropout is not None,
        config=config,
    )
    return y, total, mean, rstd


def gradients(
    grad: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    dropout: TokenDropout | None,
    *,
    x_bias: bool,
    residual: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """dx, dresidual (None where it is dx or there is none), and dweight, dbias, with x_bias dx_bias: fp32 (2|3, width).

    dx and dresidual have the dtype of `total`.
    """
    rows, width = total.shape
    total, grad = with_near_rows(total), with_near_rows(grad)
    grad_total = None if grad_total is None else with_near_rows(grad_total)
    dx = torch.empty((rows, width), dtype=total.dtype, device=total.device)
    dresidual = torch.empty_like(dx) if residual and dropout is not None else None
    tensors, sequences, numbers = _dropped(dropout)
    config = config_for(norm_backward, total)
    programs = parts(total.device, triton.cdiv(rows, config.constants["ROWS"]))
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
    return dx, dresidual, column_sums(partial)


def backward(
    grad: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    dropout: TokenDropout | None,
    *,
    x_bias: bool,
    residual: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
    """dx, dresidual, dx_bias, dweight, dbias; those of weights are fp32, and rows of one tensor.

    Without dropout dresidual is dx itself.
    """
    dx, dresidual, sums = gradients(
        grad, grad_total, total, mean, rstd, weight, dropout, x_bias=x_bias, residual=residual
    )
    if residual and dropout is None:
        dresidual = dx
    return dx, dresidual, sums[2] if x_bias else None, sums[0], sums[1]
