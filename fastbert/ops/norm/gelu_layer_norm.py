"""The transform of the masked-language-model head: GELU of a biased matmul, then LayerNorm."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastbert.ops import dispatch
from fastbert.ops.custom_op import operator
from fastbert.ops.gelu.arguments import BiasGeluArguments, check_approximation
from fastbert.ops.gelu.eager import Eager
from fastbert.ops.native import rowwise
from fastbert.ops.native.rowwise_tensors import recorded, takes
from fastbert.ops.norm.op import check, choose, layer_norm_eager, statistics


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
    check_approximation(approximate)
    chosen = choose("gelu_layer_norm", x, weight, norm_bias, bias)
    if chosen == "native" and recorded(x, bias, weight, norm_bias):
        return _gelu_layer_norm(x, bias, weight, norm_bias, eps, approximate)
    return dispatch.implementation("gelu_layer_norm", chosen)(x, bias, weight, norm_bias, eps, approximate)


def _gelu_layer_norm_eager(
    x: Tensor, bias: Tensor | None, weight: Tensor, norm_bias: Tensor, eps: float, approximate: str
) -> Tensor:
    return layer_norm_eager(Eager().forward(BiasGeluArguments(x, bias, approximate == "tanh")), weight, norm_bias, eps)


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


dispatch.register("gelu_layer_norm", "eager", _gelu_layer_norm_eager)
dispatch.register("gelu_layer_norm", "triton", _gelu_layer_norm)
dispatch.register("gelu_layer_norm", "native", rowwise.gelu_layer_norm)
