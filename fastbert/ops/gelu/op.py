"""GELU with the bias of the product before it, and the transform of the masked-language-model head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.custom_op import operator
from fastbert.ops.native import rowwise
from fastbert.ops.native.rowwise_tensors import recorded, takes
from fastbert.ops.norm.op import check, choose, layer_norm_eager, statistics


def bias_gelu(x: Tensor, bias: Tensor | None, approximate: str = "none") -> Tensor:
    """GELU(x + bias): x (..., width), any floating dtype; bias (width,) or None; `approximate` is `"none"` (by erf) or
    `"tanh"` (Hendrycks and Gimpel 2016).

    Returns the dtype of x. The `triton` backend serves bf16, fp16 and fp32 with a bias in fp32 or in the dtype of x,
    the `native` one bf16 and fp32 with a bias in either; both add and compute in fp32, keep nothing but x, and sum the
    bias' gradient in fp32 and the same order on every run. Raises UserError, a ValueError, that names the wrong
    argument.
    """
    _check(x, bias, approximate)
    chosen = dispatch.choose("bias_gelu", x.device)
    if chosen == "triton":
        chosen = _check_triton(x, bias)
    if chosen == "native" and rowwise.serves("bias_gelu", x, bias):
        if not recorded(x, bias):
            return rowwise.bias_gelu(x, bias, approximate)
    elif chosen != "triton":
        return _bias_gelu(x, bias, approximate)
    dispatch.refuse_forward_mode("bias_gelu")
    return _forward(x, bias, approximate == "tanh")


def _check(x: Tensor, bias: Tensor | None, approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        raise UserError(f"approximate={approximate!r} must be 'none' or 'tanh'")
    if x.dim() == 0 or not x.dtype.is_floating_point:
        raise UserError(f"x must be floating of shape (..., width), not {x.dtype} {tuple(x.shape)}")
    if bias is not None:
        if bias.dim() != 1 or bias.shape[0] != x.shape[-1] or not bias.dtype.is_floating_point:
            raise UserError(
                f"bias must be floating of shape ({x.shape[-1]},), as wide as x, not {bias.dtype} {tuple(bias.shape)}"
            )
        if bias.device != x.device:
            raise UserError(f"bias is on {bias.device}, x on {x.device}: move them to one device")


def _check_triton(x: Tensor, bias: Tensor | None) -> dispatch.BackendName:
    """The backend of a call for which the Triton kernels were chosen: eager where they do not serve its kind."""
    dispatch.require_triton(x.device, "x")
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        reason = f"x has dtype {x.dtype}: the triton backend serves bfloat16, float16 and float32"
        return dispatch.without_triton("bias_gelu", reason)
    if bias is not None and bias.dtype not in (x.dtype, torch.float32):
        reason = f"bias has dtype {bias.dtype}, x {x.dtype}: the triton backend serves a bias in float32 or x's dtype"
        return dispatch.without_triton("bias_gelu", reason)
    return "triton"


def gelu_layer_norm(
    x: Tensor, bias: Tensor | None, weight: Tensor, norm_bias: Tensor, eps: float = 1e-12, approximate: str = "none"
) -> Tensor:
    """LayerNorm(GELU(x + bias)), what the masked-language-model head does before its vocabulary product.

    x (..., width); bias, weight, norm_bias (width,); `approximate` is `"none"` (by erf) or `"tanh"`. The `triton`
    backend serves bf16, fp16 and fp32 up to 8192 columns, the `native` one bf16 and fp32 of any width; both compute in
    fp32 throughout, and save `x` and two fp32 numbers a row. Raises UserError, a ValueError, that names the wrong
    argument.
    """
    check(x, {"bias": bias, "weight": weight, "norm_bias": norm_bias}, eps, "bias")
    if approximate not in ("none", "tanh"):
        raise UserError(f"approximate={approximate!r} must be 'none' or 'tanh'")
    chosen = choose("gelu_layer_norm", x, weight, norm_bias, bias)
    if chosen == "native" and recorded(x, bias, weight, norm_bias):
        return _gelu_layer_norm(x, bias, weight, norm_bias, eps, approximate)
    return dispatch.implementation("gelu_layer_norm", chosen)(x, bias, weight, norm_bias, eps, approximate)


def _bias_gelu(x: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    with dispatch.without_autocast(x.device):
        return F.gelu(x if bias is None else x + bias.to(x.dtype), approximate=approximate)


def _gelu_layer_norm_eager(
    x: Tensor, bias: Tensor | None, weight: Tensor, norm_bias: Tensor, eps: float, approximate: str
) -> Tensor:
    return layer_norm_eager(_bias_gelu(x, bias, approximate), weight, norm_bias, eps)


def _gelu_layer_norm(
    x: Tensor, bias: Tensor | None, weight: Tensor, norm_bias: Tensor, eps: float, approximate: str
) -> Tensor:
    rows, save = x.reshape(-1, x.shape[-1]), recorded(x, bias, weight, norm_bias)
    return _gelu_norm(rows, bias, weight, norm_bias, eps, approximate == "tanh", save)[0].view(x.shape)


@operator("fastbert::gelu_layer_norm")
def _gelu_norm(
    x: Tensor, x_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float, tanh: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y (rows, width), mean and rstd of the GELU, fp32 (rows,), both empty without `save`."""
    if takes(x, x_bias, weight, bias):
        return rowwise.gelu_norm_forward(x, x_bias, weight, bias, eps, tanh, save)
    from fastbert.kernels.norm import gelu_layer_norm as kernels

    return kernels.forward_gelu(x, x_bias, weight, bias, eps, tanh, save)


@_gelu_norm.register_fake
def _(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), *statistics(x, arguments[-1])


@operator("fastbert::gelu_layer_norm_backward")
def _gelu_norm_backward(
    grad: Tensor, x: Tensor, x_bias: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, tanh: bool
) -> tuple[Tensor, Tensor]:
    """dx; dweight, dbias and, with x_bias, its gradient as rows of one fp32 tensor."""
    if takes(x, x_bias, weight):
        return rowwise.gelu_norm_gradients(grad, x, x_bias, mean, rstd, weight, tanh)
    from fastbert.kernels.norm import gelu_layer_norm as kernels

    return kernels.gradients_gelu(grad, x, x_bias, mean, rstd, weight, tanh)


@_gelu_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, x_bias: Tensor | None, mean: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), mean.new_empty(2 if x_bias is None else 3, x.shape[1])


def _gelu_norm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, x_bias, weight, bias, _, tanh, _ = inputs
    _, mean, rstd = output
    ctx.save_for_backward(x, x_bias, mean, rstd, weight)
    ctx.tanh, ctx.bias_dtype = tanh, bias.dtype


def _gelu_norm_gradients(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, x_bias, mean, rstd, weight = ctx.saved_tensors
    dx, sums = _gelu_norm_backward(grad, x, x_bias, mean, rstd, weight, ctx.tanh)
    dx_bias = None if x_bias is None else sums[2].to(x_bias.dtype)
    return dx, dx_bias, sums[0].to(weight.dtype), sums[1].to(ctx.bias_dtype), None, None, None


_gelu_norm.register_autograd(_gelu_norm_gradients, setup_context=_gelu_norm_context)


@operator("fastbert::bias_gelu")
def _forward(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    if takes(x, bias):
        return rowwise.bias_gelu(x, bias, "tanh" if tanh else "none")
    return dispatch.implementation("bias_gelu", "triton").forward(x, bias, tanh)


@_forward.register_fake
def _(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@operator("fastbert::bias_gelu_backward")
def gelu_backward(grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool, sums: bool) -> tuple[Tensor, Tensor]:
    """The gradient of x, and its sums over all but the last axis, fp32; without `sums` that is empty."""
    if takes(x, bias):
        dx, total, _ = rowwise.gelu_backward(grad, x, bias, tanh, sums)
    else:
        dx, total = dispatch.implementation("bias_gelu", "triton").backward(grad, x, bias, tanh, sums)
    return dx, x.new_empty(0, dtype=torch.float32) if total is None else total


@gelu_backward.register_fake
def _(grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool, sums: bool) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, x.new_empty(x.shape[-1] if sums else 0, dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, tanh = inputs
    ctx.save_for_backward(x, bias)
    ctx.tanh = tanh


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, bias = ctx.saved_tensors
    dx, total = gelu_backward(grad, x, bias, ctx.tanh, bool(ctx.needs_input_grad[1]))
    return dx, total.to(bias.dtype) if ctx.needs_input_grad[1] else None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)


class _Triton:
    """The kernels of `fastbert.kernels.gelu.bias_gelu`, imported when they first run."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        from fastbert.kernels.gelu import bias_gelu as kernels

        return kernels.forward(*arguments)

    @staticmethod
    def backward(*arguments: Any) -> tuple[Tensor, Tensor | None]:
        from fastbert.kernels.gelu import bias_gelu as kernels

        return kernels.backward(*arguments)


dispatch.register("bias_gelu", "triton", _Triton)
dispatch.register("bias_gelu", "native", rowwise.bias_gelu)
dispatch.register("bias_gelu", "eager", _bias_gelu)
dispatch.register("gelu_layer_norm", "eager", _gelu_layer_norm_eager)
dispatch.register("gelu_layer_norm", "triton", _gelu_layer_norm)
dispatch.register("gelu_layer_norm", "native", rowwise.gelu_layer_norm)
