"""LayerNorm(GELU(x + x_bias)), the transform of the masked-language-model head, and its gradients.

x, y and their gradients (rows, width), of any row stride where they are read; x_bias, weight, bias (width,). Backward
reads x, mean and rstd, and recomputes the GELU. Programs share the work as in `layer_norm.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import column_sums, programs_for
from fastbert.kernels.common import narrow
from fastbert.kernels.gelu.activation import gelu, gelu_and_derivative
from fastbert.kernels.launch import launch
from fastbert.kernels.norm.layer_norm import (
    addressable_rows,
    load_columns,
    lookup_config,
    normalised,
    row_gradient,
    store_sums,
)


@triton.jit(do_not_specialize=["rows"])
def gelu_norm_forward(
    x_ptr, x_bias_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, stride_x_row, rows, width, eps,
    TANH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_M rows. mean and rstd, of the GELU, are written where their pointers are not None."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    exists, in_row = row < rows - first, column < width
    inside = exists & in_row
    x = tl.load(x_ptr + first * stride_x_row + (row * stride_x_row + column), mask=inside, other=0.0).to(tl.float32)
    weight, bias = load_columns(weight_ptr, column, in_row, BLOCK_M), load_columns(bias_ptr, column, in_row, BLOCK_M)
    if x_bias_ptr is not None:
        x += load_columns(x_bias_ptr, column, in_row, BLOCK_M)
    y, mean, rstd = normalised(gelu(x, TANH), weight, bias, width, eps, in_row)
    tl.store(y_ptr + first * width + (row * width + column), narrow(y, y_ptr.dtype.element_ty), mask=inside)
    if mean_ptr is not None:
        tl.store(mean_ptr + first + row, mean, mask=exists)
        tl.store(rstd_ptr + first + row, rstd, mask=exists)


@triton.jit(do_not_specialize=["rows"])
def gelu_norm_backward(
    grad_ptr, x_ptr, x_bias_ptr, mean_ptr, rstd_ptr, weight_ptr, dx_ptr, partial_ptr,
    stride_grad_row, stride_x_row, rows, width,
    TANH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. partial (programs, 2 or 3, width): dweight, dbias and, with x_bias, dx_bias."""
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    in_row = column < width
    if STAGES > 1:
        weight = load_columns(weight_ptr, column, in_row, BLOCK_M)
        if x_bias_ptr is not None:
            x_bias = load_columns(x_bias_ptr, column, in_row, BLOCK_M)
    dweight, dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32), tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    dx_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.num_programs(0), num_stages=STAGES):
        first = tl.cast(block, tl.int64) * BLOCK_M
        exists = row < rows - first
        inside = exists & in_row
        x = tl.load(x_ptr + first * stride_x_row + (row * stride_x_row + column), mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(
            grad_ptr + first * stride_grad_row + (row * stride_grad_row + column), mask=inside, other=0.0
        ).to(tl.float32)
        rstd = tl.load(rstd_ptr + first + row, mask=exists, other=0.0)
        mean = tl.load(mean_ptr + first + row, mask=exists, other=0.0)
        if STAGES == 1:  # registers do not hold the vectors of such wide rows
            weight = load_columns(weight_ptr, column, in_row, BLOCK_M)
            if x_bias_ptr is not None:
                x_bias = load_columns(x_bias_ptr, column, in_row, BLOCK_M)
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
    index = tl.program_id(0) * (2 if x_bias_ptr is None else 3)
    store_sums(partial_ptr, index, dweight, column, width, in_row)
    store_sums(partial_ptr, index + 1, dbias, column, width, in_row)
    if x_bias_ptr is not None:
        store_sums(partial_ptr, index + 2, dx_bias, column, width, in_row)


def forward(
    x: Tensor, x_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float, tanh: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y in the dtype of x; mean and rstd of the GELU, fp32 (rows,), empty without `save`."""
    rows, width = x.shape
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty(rows if save else 0, dtype=torch.float32, device=x.device) for _ in range(2))
    x_rows = addressable_rows(x)
    config = lookup_config(gelu_norm_forward, x)
    launch(
        gelu_norm_forward,
        (triton.cdiv(rows, config.constants["BLOCK_M"]),),
        *(x_rows, None if x_bias is None else x_bias.contiguous(), weight.contiguous(), bias.contiguous()),
        *(y, mean if save else None, rstd if save else None, x_rows.stride(0), rows, width, eps),
        TANH=tanh,
        config=config,
    )
    return y, mean, rstd


def backward(
    grad: Tensor, x: Tensor, x_bias: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, tanh: bool
) -> tuple[Tensor, Tensor]:
    """Return dx in the dtype of x, and the rows dweight, dbias and, with x_bias, dx_bias of an fp32 (2 or 3, width)."""
    rows, width = x.shape
    x, grad = addressable_rows(x), addressable_rows(grad)
    dx = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    config = lookup_config(gelu_norm_backward, x)
    programs = programs_for(x.device, triton.cdiv(rows, config.constants["BLOCK_M"]))
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
