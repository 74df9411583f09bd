"""int8 matrix products on CPUs: each token becomes integers with a scale of its own.

The integers' sums are exact, so that a row's result depends neither on its batch nor on the processor's instruction
set, up to the fp32 arithmetic that follows them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert._C import PackedWeight
from fastbert._C import product as _native_product
from fastbert._C import quantize_rows as _native_quantize_rows
from fastbert.errors import UserError
from fastbert.ops.native_product import _ACTIVATIONS, _NAMES, _check_matrix, _matrix, _vector


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (rows, width), bf16 or fp32, as integers (rows, width) in int8 and scales (rows,) in fp32: x ~ integer * scale.

    scale = max |x| / 127 of the row; integer = x * (127 / max |x|), rounded to nearest, ties to even. A row of zeros
    has scale 0, as have rows below 2^-100 throughout; a row with a NaN or an infinity has scale NaN and zeros.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    x = x.detach()
    _check_matrix("x", x, None)
    rows, width = x.shape
    integers = torch.empty((rows, width), dtype=torch.int8)
    scales = torch.empty(rows, dtype=torch.float32)
    _native_quantize_rows(_matrix(x), rows, width, integers.data_ptr(), scales.data_ptr())
    return integers, scales


def product_int8(
    x: Tensor,
    packed: PackedWeight,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    norm: tuple[Tensor, Tensor | None, float] | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """norm(activation(q(x) q(weight)^T + bias) + residual), where q rounds each row to 255 steps.

    x (rows, in) and residual (rows, out) are bf16 or fp32, `packed` holds the weight (out, in) in int8, bias (out,);
    `activation` is None, `"gelu"` (by erf) or `"gelu_tanh"`; `norm` is LayerNorm's (weight, bias or None, eps). The
    result (rows, out) has `out_dtype`, by default x's; everything before the one rounding to it is fp32. A row of x
    with a NaN or an infinity gives a row of NaN.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    if packed.element != "int8":
        raise UserError(f"packed holds {packed.element}: pack the weight as 'int8', or multiply by product()")
    if activation is not None and activation not in _ACTIVATIONS:
        raise UserError(f"activation={activation!r} must be None, {' or '.join(map(repr, _ACTIVATIONS))}")
    dtype = x.dtype if out_dtype is None else out_dtype
    rows, columns = x.shape[0] if x.dim() else 0, packed.columns
    _check_matrix("x", x, (rows, packed.depth))
    if dtype not in _NAMES:
        raise UserError(f"out_dtype={dtype} must be torch.bfloat16 or torch.float32")
    if residual is not None:
        residual = residual.detach()
        _check_matrix("residual", residual, (rows, columns))
    bias = None if bias is None else _vector("bias", bias, columns)
    scale = None
    if norm is not None:
        weight, shift, eps = norm
        weight = _vector("norm's weight", weight, columns)
        shift = None if shift is None else _vector("norm's bias", shift, columns)
        scale = (weight.data_ptr(), 0 if shift is None else shift.data_ptr(), eps)
    out = torch.empty((rows, columns), dtype=dtype)
    if out.numel() == 0:
        return out
    integers, scales = quantize_rows(x)
    _native_product(
        (integers.data_ptr(), "int8", packed.depth),
        rows,
        packed,
        _matrix(out),
        bias=0 if bias is None else bias.data_ptr(),
        activation=activation,
        residual=None if residual is None else _matrix(residual),
        norm=scale,
        row_scales=scales.data_ptr(),
    )
    return out
