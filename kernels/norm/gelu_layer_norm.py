"""LayerNorm(GELU(x + x_bias)), the transform of the masked-language-model head, and its gradients.

x, y and their gradients (rows, width), of any row stride where they are read; x_bias, weight, bias (width,). What is
kept for backward is x, mean and rstd: the GELU and its derivative are computed again. Programs work as those of
`layer_norm.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import column_sums, parts
from fastbert.kernels.common import narrow
from fastbert.kernels.gelu.activation import gelu, gelu_and_derivative
from fastbert.kernels.launch import launch
from fastbert.kernels.norm.layer_norm import (
    config_for,
    load_columns,
    normalised,
    row_gradient,
    store_sums,
    with_near_rows,
)


@triton.jit(do_not_specialize=["rows"])
def gelu_norm_forward(
    x_ptr, x_bias_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, stride_x_row, rows, width, eps,
    TANH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of ROWS rows. mean and rstd, of the GELU, are written where their pointers are not None."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    exists, in_row = row < rows - first, column < width
    inside = exists & in_row
    x = tl.load(x_ptr + first * stride_x_row + (row * stride_x_row + column), mask=inside, other=0.0).to(tl.float32)
    weight, bias = load_columns(weight_ptr, column, in_row, ROWS), load_columns(bias_ptr, column, in_row, ROWS)
    if x_bias_ptr is not None:
        x += load_columns(x_bias_ptr, column, in_row, ROWS)
    y, mean, rstd = normalised(gelu(x, TANH), weight, bias, width, eps, in_row)
    tl.store(y_ptr + first * width + (row * width + column), narrow(y, y_ptr.dtype.element_ty), mask=inside)
    if mean_ptr is not None:
        tl.store(mean_ptr + first + row, mean, mask=exists)
        tl.store(rstd_ptr + first + row, rstd, mask=exists)


@triton.jit(do_not_specialize=["rows"])
def gelu_norm_backward(
    grad_ptr, x_ptr, x_bias_ptr, mean_ptr, rstd_ptr, weight_ptr, dx_ptr, partial_ptr,
    stride_grad_row, stride_x_row, rows, width,
    TANH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. partial (programs, 2 or 3, width): dweight, dbias and, with x_bias, dx_bias."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    in_row = column < width
    if STAGES > 1:
        weight = load_columns(weight_ptr, column, in_row, ROWS)
        if x_bias_ptr is not None:
            x_bias = load_columns(x_bias_ptr, column, in_row, ROWS)
    dweight, dbias = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    dx_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        first = tl.cast(block, tl.int64) * ROWS
        exists = row < rows - first
        inside = exists & in_row
        x = tl.load(x_ptr + first * stride_x_row + (row * stride_x_row + column), mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(
            grad_ptr + first * stride_grad_row + (row * stride_grad_row + column), mask=inside, other=0.0
        ).to(tl.float32)
        rstd = tl.load(rstd_ptr + first + row, mask=exists, other=0.0)
        mean = tl.load(mean_ptr + first + row, mask=exists, other=0.0)
        if STAGES == 1:  # rows so wide that the vectors do not fit into registers too
            weight = load_columns(weight_ptr, column, in_row, ROWS)
            if x_bias_ptr is not None:
                x_bias = load_columns(x_bias_ptr, column, in_row, ROWS)
        if x_bias_ptr is not None:
            x += x_bias
        x, derivative = gelu_and_derivative(x, TANH)
        hat = (x - mean) * rstd
        dweight += grad * hat
        dbias += grad
        dx = row_gradient(grad, hat, rstd, weight, width) * derivative
        if x_bias_ptr is not None:
            dx_bias += dx
        tl.store(dx_ptr + first * width + (row * width + column), narrow(dx, dx_ptr.dtype.element_ty), mask=inside)
    place = tl.program_id(0) * (2 if x_bias_ptr is None else 3)
    store_sums(partial_ptr, place, dweight, column, width, in_row)
    store_sums(partial_ptr, place + 1, dbias, column, width, in_row)
    if x_bias_ptr is not None:
        store_sums(partial_ptr, place + 2, dx_bias, column, width, in_row)


def forward_gelu(
    x: Tensor, x_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float, tanh: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y in the dtype of x; mean and rstd of the GELU, fp32 (rows,), empty without `save`."""
    rows, width = x.shape
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty(rows if save else 0, dtype=torch.float32, device=x.device) for _ in range(2))
    near = with_near_rows(x)
    config = config_for(gelu_norm_forward, x)
    launch(
        gelu_norm_forward,
        (triton.cdiv(rows, config.constants["ROWS"]),),
        *(near, None if x_bias is None else x_bias.contiguous(), weight.contiguous(), bias.contiguous()),
        *(y, mean if save else None, rstd if save else None, near.stride(0), rows, width, eps),
        TANH=tanh,
        config=config,
    )
    return y, mean, rstd


def gradients_gelu(
    grad: Tensor, x: Tensor, x_bias: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, tanh: bool
) -> tuple[Tensor, Tensor]:
    """dx in the dtype of x; dweight, dbias and, with x_bias, its gradient: fp32 (2 or 3, width)."""
    rows, width = x.shape
    x, grad = with_near_rows(x), with_near_rows(grad)
    dx = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    config = config_for(gelu_norm_backward, x)
    programs = parts(x.device, triton.cdiv(rows, config.constants["ROWS"]))
    partial = torch.empty((programs, 2 if x_bias is None else 3, width), dtype=torch.float32, device=x.device)
    launch(
        gelu_norm_backward,
        (programs,),
        *(grad, x, None if x_bias is None else x_bias.contiguous(), mean, rstd, weight.contiguous(), dx, partial),
        *(grad.stride(0), x.stride(0), rows, width),
        TANH=tanh,
        config=config,
    )
    return dx, column_sums(partial)


def backward_gelu(
    grad: Tensor, x: Tensor, x_bias: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, tanh: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """dx, dx_bias, dweight, dbias; those of weights are fp32, and rows of one tensor."""
    dx, sums = gradients_gelu(grad, x, x_bias, mean, rstd, weight, tanh)
    return dx, None if x_bias is None else sums[2], sums[0], sums[1]
