"""Matmuls with a gated activation in their epilogue: the up-projection of a gated feed-forward layer and its gradient.

Forward: x (rows, depth), weight (2 x width, depth), the rows of the gates and then those of the values:
u = x weight^T + bias in the operands' dtype, y = act(gates of u) * values of u (rows, width). A tile of y multiplies
one tile of x by a tile of gates and one of values. Backward, with the next layer's weight (depth, width) and the
gradient (rows, depth) of its result: dh = grad weight, du = (dh value act'(gate), dh act(gate)), h = y recomputed, and
the sums of du over the rows. Programs, tiles and loads are those of `fastbert.kernels.linear.linear`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from fastbert.kernels.columns import Reduction, column_sums
from fastbert.kernels.common import add_dot, narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.configs.linear import DEEPEST, FEW_ROWS, SHALLOWEST
from fastbert.kernels.gated import gated_activation
from fastbert.kernels.gated.activation import activate, activate_with_derivative
from fastbert.kernels.launch import architecture
from fastbert.kernels.linear.linear import _aligned, _launch, _load_columns, _load_rows, _slices
from fastbert.kernels.tuning import tables


@triton.jit(do_not_specialize=["rows"])
def matmul_gated(
    x_ptr, weight_ptr, bias_ptr, y_ptr, u_ptr, rows, columns, depth,
    ACTIVATION: tl.constexpr, KEEP: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EPILOGUE_N: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. columns: the width of y. EVEN: depth is a multiple of BLOCK_K."""
    across = tl.cdiv(columns, BLOCK_N)
    x, gates, values = x_ptr, weight_ptr, weight_ptr + columns.to(tl.int64) * depth
    if TMA:
        x = tl.make_tensor_descriptor(x_ptr, [rows, depth], [depth, 1], [BLOCK_M, BLOCK_K])
        gates = tl.make_tensor_descriptor(gates, [columns, depth], [depth, 1], [BLOCK_N, BLOCK_K])
        values = tl.make_tensor_descriptor(values, [columns, depth], [depth, 1], [BLOCK_N, BLOCK_K])
    for step in range(0, across * tl.cdiv(rows, BLOCK_M) - tl.program_id(0), tl.num_programs(0)):
        tile = tl.program_id(0) + step
        first_row, first_column = tile // across * BLOCK_M, tile % across * BLOCK_N
        gate, value = tl.zeros((BLOCK_M, BLOCK_N), tl.float32), tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for first in range(0, depth, BLOCK_K):
            a = _load_rows(x, first_row, first, rows, depth, EVEN, BLOCK_M, BLOCK_K, TMA)
            b = _load_rows(gates, first_column, first, columns, depth, EVEN, BLOCK_N, BLOCK_K, TMA)
            gate = add_dot(a, tl.trans(b), gate, "tf32")
            b = _load_rows(values, first_column, first, columns, depth, EVEN, BLOCK_N, BLOCK_K, TMA)
            value = add_dot(a, tl.trans(b), value, "tf32")
        row, start = tl.arange(0, BLOCK_M)[:, None], first_row.to(tl.int64) * columns
        gate_slices, value_slices = _slices(gate, EPILOGUE_N), _slices(value, EPILOGUE_N)
        for i in tl.static_range(len(gate_slices)):
            column = first_column + i * EPILOGUE_N + tl.arange(0, EPILOGUE_N)[None, :]
            in_row = column < columns
            inside = (first_row + row < rows) & in_row
            gate_sums, value_sums = gate_slices[i], value_slices[i]
            if bias_ptr is not None:
                gate_sums += tl.load(bias_ptr + column, mask=in_row, other=0.0).to(tl.float32)
                value_sums += tl.load(bias_ptr + columns + column, mask=in_row, other=0.0).to(tl.float32)
            rounded_gate = narrow(gate_sums, y_ptr.dtype.element_ty)
            rounded_value = narrow(value_sums, y_ptr.dtype.element_ty)
            if KEEP:
                at = u_ptr + 2 * start + (row * (2 * columns) + column)
                tl.store(at, rounded_gate, mask=inside)
                tl.store(at + columns, rounded_value, mask=inside)
            y = activate(rounded_gate.to(tl.float32), ACTIVATION) * rounded_value.to(tl.float32)
            tl.store(y_ptr + start + (row * columns + column), narrow(y, y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def matmul_gated_backward(
    grad_ptr, weight_ptr, u_ptr, du_ptr, h_ptr, partial_ptr, rows, columns, depth,
    ACTIVATION: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EPILOGUE_N: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Grid: any number of programs. partial (tiles of rows, 2 x columns) fp32: the sums of du over each tile's rows."""
    across = tl.cdiv(columns, BLOCK_N)
    grad, weight = grad_ptr, weight_ptr
    if TMA:
        grad = tl.make_tensor_descriptor(grad_ptr, [rows, depth], [depth, 1], [BLOCK_M, BLOCK_K])
        weight = tl.make_tensor_descriptor(weight_ptr, [depth, columns], [columns, 1], [BLOCK_K, BLOCK_N])
    for step in range(0, across * tl.cdiv(rows, BLOCK_M) - tl.program_id(0), tl.num_programs(0)):
        tile = tl.program_id(0) + step
        first_row, first_column = tile // across * BLOCK_M, tile % across * BLOCK_N
        dh = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for first in range(0, depth, BLOCK_K):
            a = _load_rows(grad, first_row, first, rows, depth, EVEN, BLOCK_M, BLOCK_K, TMA)
            b = _load_columns(weight, first, first_column, depth, columns, EVEN, BLOCK_K, BLOCK_N, TMA)
            dh = add_dot(a, b, dh, "tf32")
        row, start = tl.arange(0, BLOCK_M)[:, None], first_row.to(tl.int64) * columns
        exists = first_row + row < rows
        partial = partial_ptr + (tile // across).to(tl.int64) * (2 * columns)
        slices = _slices(dh, EPILOGUE_N)
        for i in tl.static_range(len(slices)):
            column = first_column + i * EPILOGUE_N + tl.arange(0, EPILOGUE_N)[None, :]
            in_row = column < columns
            inside = exists & in_row
            at = 2 * start + (row * (2 * columns) + column)
            gate = tl.load(u_ptr + at, mask=inside, other=0.0).to(tl.float32)
            value = tl.load(u_ptr + at + columns, mask=inside, other=0.0).to(tl.float32)
            activated, slope = activate_with_derivative(gate, ACTIVATION)
            # Rows beyond the last repeat another row and do not belong to the sum.
            gradient = tl.where(exists, slices[i], 0.0)
            dgate, dvalue = gradient * value * slope, gradient * activated
            tl.store(du_ptr + at, narrow(dgate, du_ptr.dtype.element_ty), mask=inside)
            tl.store(du_ptr + at + columns, narrow(dvalue, du_ptr.dtype.element_ty), mask=inside)
            h = narrow(activated * value, h_ptr.dtype.element_ty)
            tl.store(h_ptr + start + (row * columns + column), h, mask=inside)
            tl.store(partial + column, tl.sum(dgate, 0, keep_dims=True), mask=in_row)
            tl.store(partial + columns + column, tl.sum(dvalue, 0, keep_dims=True), mask=in_row)


def _config(kernel: Any, x: Tensor) -> Config:
    depth = min(max(x.shape[1], SHALLOWEST), DEEPEST)
    return tables.lookup(kernel.__name__, tables.shape_class(x.dtype, False, depth), architecture(x.device))


def fuses(kernel: Any, x: Tensor, weight: Tensor, width: int) -> bool:
    """Return whether a kernel above supports half-precision x (rows, depth) and a weight, and the configurations prefer
    it to a pass beside PyTorch's matmul; few rows leave most multiprocessors without a tile."""
    half = x.dtype in (torch.bfloat16, torch.float16) and weight.dtype == x.dtype
    aligned = x.shape[1] % 16 == 0 and width % 16 == 0
    return half and aligned and len(x) > FEW_ROWS[-1] and bool(_config(kernel, x).constants["FUSED"])


def linear_gated(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, keep: bool) -> tuple[Tensor, Tensor]:
    """Return y = activation(gates of u) * values of u, and u = x weight^T + bias; without `keep`, u is empty.

    x (rows, depth) and weight (2 x width, depth) have one half-precision dtype, with depth and width multiples of 16;
    bias (2 x width,) is fp32 or of that dtype, and added in fp32. y is computed from the rounded u, and has the bits of
    h in `linear_gated_backward`.
    """
    rows, width = len(x), len(weight) // 2
    y = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    u = torch.empty(rows if keep else 0, 2 * width, dtype=x.dtype, device=x.device)
    if y.numel():
        tensors = (_aligned(weight), None if bias is None else bias.contiguous(), y, u if keep else None)
        _launch(matmul_gated, _config(matmul_gated, x), _aligned(x), width, *tensors, ACTIVATION=activation, KEEP=keep)
    return y, u


def linear_gated_backward(
    grad: Tensor, weight: Tensor, u: Tensor, activation: str, reduction: Reduction = column_sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of u, h recomputed, and the fp32 sums of the former over the rows, by `reduction`.

    grad (rows, depth), weight (depth, width) and u (rows, 2 x width) have one half-precision dtype, with depth and
    width multiples of 16. The sums are those of the unrounded du, in an order that depends on the number of rows alone.
    """
    rows, width = len(u), u.shape[1] // 2
    du, h = torch.empty_like(u), torch.empty(rows, width, dtype=u.dtype, device=u.device)
    config = _config(matmul_gated_backward, grad)
    tiles = triton.cdiv(rows, config.constants["BLOCK_M"])
    partial = torch.empty(tiles, 2 * width, dtype=torch.float32, device=u.device)
    if u.numel():
        tensors = (_aligned(weight), _aligned(u), du, h, partial)
        _launch(matmul_gated_backward, config, _aligned(grad), width, *tensors, ACTIVATION=activation)
    return du, h, reduction(partial)


def up_projection(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, keep_u: bool
) -> tuple[Tensor, Tensor]:
    """Return h = activation(gates of u) * values of u, and u = x weight^T + bias, which may be empty without `keep_u`.

    x (rows, depth) and weight (2 x width, depth) have one dtype, bias (2 x width,) that or fp32.
    """
    if fuses(matmul_gated, x, weight, len(weight) // 2):
        return linear_gated(x, weight, bias, activation, keep_u)
    u = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    return gated_activation.forward(u, None, activation), u


def down_projection_backward(
    grad: Tensor, weight: Tensor, u: Tensor, activation: str, reduction: Reduction = column_sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of u, h recomputed, and the fp32 sums of the former over the rows, by `reduction`.

    grad (rows, depth) is the gradient of the down-projection h weight^T, with weight (depth, width) in its dtype.
    """
    if fuses(matmul_gated_backward, grad, weight, weight.shape[1]):
        return linear_gated_backward(grad, weight, u, activation, reduction)
    return gated_activation.backward_with_output(grad @ weight, u, activation, reduction)
