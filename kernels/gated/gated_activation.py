"""Gated activations of rows with a bias, and their gradients.

x and dx (rows, 2 x width): the gates, then the values; y and grad (rows, width), bias (2 x width,) or none. Backward
reads x and the gradient, and recomputes the activation. The sums of dx over the rows, the gradient of the bias, come
from the same pass: a program accumulates those of its columns in registers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.columns import Reduction, column_sums
from fastbert.kernels.common import narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.gated.activation import activate, activate_with_derivative
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables

# Per multiprocessor, sharing the rows where sums are computed: enough loads in flight to saturate the memory.
PROGRAMS = 4


@triton.jit(do_not_specialize=["rows"])
def gated_forward(
    x_ptr, bias_ptr, y_ptr, rows, width, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Grid: blocks of BLOCK_M rows, blocks of BLOCK_N columns of y."""
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    first, row = tl.program_id(0).to(tl.int64) * BLOCK_M, tl.arange(0, BLOCK_M)[:, None]
    in_row = column < width
    inside = (row < rows - first) & in_row
    gates = x_ptr + first * (2 * width) + (row * (2 * width) + column)
    gate = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(gates + width, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        gate += tl.load(bias_ptr + column, mask=in_row, other=0.0).to(tl.float32)
        value += tl.load(bias_ptr + width + column, mask=in_row, other=0.0).to(tl.float32)
    y = narrow(activate(gate, ACTIVATION) * value, y_ptr.dtype.element_ty)
    tl.store(y_ptr + first * width + (row * width + column), y, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def gated_backward(
    grad_ptr, x_ptr, bias_ptr, dx_ptr, y_ptr, partial_ptr, rows, width,
    ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: programs that share the rows, blocks of BLOCK_N columns of grad. partial (programs, 2 x width) fp32: the
    sums of dx, unless its pointer is None. The result of forward is written to y again unless its pointer is None.
    """
    column, row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :], tl.arange(0, BLOCK_M)[:, None]
    in_row = column < width
    dgates, dvalues = tl.zeros((BLOCK_M, BLOCK_N), tl.float32), tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if bias_ptr is not None:
        gate_bias = tl.load(bias_ptr + column, mask=in_row, other=0.0).to(tl.float32)
        value_bias = tl.load(bias_ptr + width + column, mask=in_row, other=0.0).to(tl.float32)
    begin = tl.program_id(0) * BLOCK_M
    for step in range(0, rows - begin, tl.num_programs(0) * BLOCK_M):
        first = (begin + step).to(tl.int64)
        inside = (row < rows - first) & in_row
        at = first * (2 * width) + (row * (2 * width) + column)
        gate = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x_ptr + at + width, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + first * width + (row * width + column), mask=inside, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            gate += gate_bias
            value += value_bias
        activated, slope = activate_with_derivative(gate, ACTIVATION)
        dgate, dvalue = grad * value * slope, grad * activated
        if y_ptr is not None:
            y = narrow(activated * value, y_ptr.dtype.element_ty)
            tl.store(y_ptr + first * width + (row * width + column), y, mask=inside)
        tl.store(dx_ptr + at, narrow(dgate, dx_ptr.dtype.element_ty), mask=inside)
        tl.store(dx_ptr + at + width, narrow(dvalue, dx_ptr.dtype.element_ty), mask=inside)
        if partial_ptr is not None:
            dgates += dgate
            dvalues += dvalue
    if partial_ptr is not None:
        partial_ptr += tl.program_id(0).to(tl.int64) * (2 * width)
        tl.store(partial_ptr + column, tl.sum(dgates, 0, keep_dims=True), mask=in_row)
        tl.store(partial_ptr + width + column, tl.sum(dvalues, 0, keep_dims=True), mask=in_row)


def _config(kernel: Any, x: Tensor) -> Config:
    shape = "ieee" if x.dtype == torch.float32 else "half"
    return tables.lookup(kernel.__name__, shape, architecture(x.device))


def forward(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Return activation(gates) * values of x + bias, contiguous (..., width); bias of any floating dtype."""
    width = x.shape[-1] // 2
    y = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    if y.numel():
        config, rows = _config(gated_forward, x), y.numel() // width
        grid = (triton.cdiv(rows, config.constants["BLOCK_M"]), triton.cdiv(width, config.constants["BLOCK_N"]))
        bias = None if bias is None else bias.contiguous()
        launch(gated_forward, grid, x.contiguous(), bias, y, rows, width, ACTIVATION=activation, config=config)
    return y


def backward(grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, sums: bool) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of x, contiguous, and with `sums` its fp32 sums over all but the last axis."""
    return _backward(grad, x, bias, activation, None, sums, column_sums)


def backward_with_output(
    grad: Tensor, x: Tensor, activation: str, reduction: Reduction = column_sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for a call without a bias, the gradient of x, the result of forward, and the gradient's sums."""
    y = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
    dx, sums = _backward(grad, x, None, activation, y, True, reduction)
    assert sums is not None
    return dx, y, sums


def _backward(
    grad: Tensor,
    x: Tensor,
    bias: Tensor | None,
    activation: str,
    y: Tensor | None,
    sums: bool,
    reduction: Reduction,
) -> tuple[Tensor, Tensor | None]:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = x.shape[-1] // 2
    if not dx.numel():
        return dx, reduction(torch.empty(0, x.shape[-1], dtype=torch.float32, device=x.device)) if sums else None
    config, rows, partial = _config(gated_backward, x), x.numel() // (2 * width), None
    programs, columns = triton.cdiv(rows, config.constants["BLOCK_M"]), triton.cdiv(width, config.constants["BLOCK_N"])
    if sums:
        programs = max(1, min(programs, PROGRAMS * multiprocessors(x.device) // columns))
        partial = torch.empty(programs, 2 * width, dtype=torch.float32, device=x.device)
    bias = None if bias is None else bias.contiguous()
    launch(
        gated_backward,
        (programs, columns),
        *(grad.contiguous(), x.contiguous(), bias, dx, y, partial, rows, width),
        ACTIVATION=activation,
        config=config,
    )
    return dx, None if partial is None else reduction(partial)
