"""RMSNorm of rows, or of residual + dropout(x + x_bias), and the gradients of all of them.

Shapes, rounding and programs are those of `layer_norm.py`; there is neither a mean nor a bias. Backward reads total and
rstd.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import column_sums, programs_for
from fastbert.kernels.common import narrow
from fastbert.kernels.dropout.inputs import DropoutInputs, kernel_arguments
from fastbert.kernels.launch import launch
from fastbert.kernels.norm.layer_norm import RUNTIME, addressable_rows, load_columns, lookup_config, store_sums
from fastbert.kernels.token_dropout import keep_mask, load_key_and_offset


@triton.jit(do_not_specialize=RUNTIME)
def rms_norm_forward(
    x_ptr, x_bias_ptr, residual_ptr, weight_ptr, key_ptr, sequence_ptr, offset_ptr, y_ptr, total_ptr, rstd_ptr,
    stride_x_row, stride_residual_row, rows, width, sequences, eps, keep_scale, threshold, site,
    SUMMED: tl.constexpr, DROPOUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_M rows. total and rstd are written where their pointers are not None."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    exists, in_row = row < rows - first, column < width
    inside = exists & in_row
    x = tl.load(x_ptr + first * stride_x_row + (row * stride_x_row + column), mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        offset = row * stride_residual_row + column
        residual = tl.load(residual_ptr + first * stride_residual_row + offset, mask=inside, other=0.0)
    # Before any store: the compiler must not move a load over a store.
    weight = load_columns(weight_ptr, column, in_row, BLOCK_M)
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
    # Beyond the width x is zero, sums of nothing included.
    rstd = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / width + eps)
    y = x * rstd * weight
    tl.store(y_ptr + first * width + (row * width + column), narrow(y, y_ptr.dtype.element_ty), mask=inside)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + first + row, rstd, mask=exists)


@triton.jit(do_not_specialize=RUNTIME)
def rms_norm_backward(
    grad_ptr, grad_total_ptr, total_ptr, rstd_ptr, weight_ptr, key_ptr, sequence_ptr, offset_ptr,
    dx_ptr, dresidual_ptr, partial_ptr,
    stride_grad_row, stride_grad_total_row, stride_total_row, rows, width, sequences, keep_scale, threshold, site,
    X_BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. partial (programs, 1 or 2, width): dweight and, with X_BIAS, dx_bias.

    dresidual is written where its pointer is not None: where it differs from dx.
    """
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    in_row = column < width
    if STAGES > 1:
        weight = load_columns(weight_ptr, column, in_row, BLOCK_M)
    dweight, dx_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32), tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
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
        hat = total * rstd
        dweight += grad * hat
        if STAGES == 1:  # registers do not hold the weights of such wide rows
            weight = load_columns(weight_ptr, column, in_row, BLOCK_M)
        grad *= weight
        dx = rstd * (grad - hat * (tl.sum(grad * hat, 1, keep_dims=True) / width))
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
    index = tl.program_id(0) * (2 if X_BIAS else 1)
    store_sums(partial_ptr, index, dweight, column, width, in_row)
    if X_BIAS:
        store_sums(partial_ptr, index + 1, dx_bias, column, width, in_row)


def forward(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    dropout: DropoutInputs | None,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y and total in the dtype of x, and rstd fp32 (rows,); all but y are empty without `save`.

    Where nothing is added or dropped, total is `x` itself.
    """
    rows, width = x.shape
    summed = x_bias is not None or residual is not None or dropout is not None
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    total = torch.empty((rows, width) if save else (0,), dtype=x.dtype, device=x.device) if summed else x
    rstd = torch.empty(rows if save else 0, dtype=torch.float32, device=x.device)
    x_rows = addressable_rows(x)
    summand = None if residual is None else addressable_rows(residual)
    tensors, sequences, numbers = kernel_arguments(dropout)
    config = lookup_config(rms_norm_forward, x)
    launch(
        rms_norm_forward,
        (triton.cdiv(rows, config.constants["BLOCK_M"]),),
        *(x_rows, None if x_bias is None else x_bias.contiguous(), summand, weight.contiguous()),
        *tensors,
        *(y, total if save and summed else None, rstd if save else None),
        *(x_rows.stride(0), 0 if summand is None else summand.stride(0)),
        *(rows, width, sequences, eps, *numbers),
        SUMMED=summed,
        DROPOUT=dropout is not None,
        config=config,
    )
    return y, total, rstd


def backward(
    grad: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    rstd: Tensor,
    weight: Tensor,
    dropout: DropoutInputs | None,
    *,
    x_bias: bool,
    residual: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return dx, dresidual, and the rows dweight and, with x_bias, dx_bias of one fp32 (1 or 2, width).

    dx and dresidual have the dtype of `total`; dresidual is None without a residual, and where it equals dx.
    """
    rows, width = total.shape
    total, grad = addressable_rows(total), addressable_rows(grad)
    grad_total = None if grad_total is None else addressable_rows(grad_total)
    dx = torch.empty((rows, width), dtype=total.dtype, device=total.device)
    dresidual = torch.empty_like(dx) if residual and dropout is not None else None
    tensors, sequences, numbers = kernel_arguments(dropout)
    config = lookup_config(rms_norm_backward, total)
    programs = programs_for(total.device, triton.cdiv(rows, config.constants["BLOCK_M"]))
    partial = torch.empty((programs, 2 if x_bias else 1, width), dtype=torch.float32, device=total.device)
    launch(
        rms_norm_backward,
        (programs,),
        *(grad, grad_total, total, rstd, weight.contiguous(), *tensors, dx, dresidual, partial),
        *(grad.stride(0), 0 if grad_total is None else grad_total.stride(0), total.stride(0)),
        *(rows, width, sequences, *numbers),
        X_BIAS=x_bias,
        DROPOUT=dropout is not None,
        config=config,
    )
    return dx, dresidual, column_sums(partial)
