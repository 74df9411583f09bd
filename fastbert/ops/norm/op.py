"""LayerNorm, alone and behind dropout and a residual connection."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.kernels.configs.norm import WIDEST
from fastbert.ops import dispatch
from fastbert.ops.autocast import without_autocast
from fastbert.ops.custom_op import operator
from fastbert.ops.dropout.op import TokenDropout, check_token_dropout, dropout
from fastbert.ops.native import rowwise
from fastbert.ops.native.rowwise_tensors import recorded, takes

SERVED = (torch.bfloat16, torch.float16, torch.float32)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-12) -> Tensor:
    """LayerNorm over the last axis (Ba et al. 2016): x (..., width), weight and bias (width,), any floating dtypes.

    Mean, variance, weight and bias are used in fp32 whatever the dtype of `x`, which the result keeps. The `triton`
    backend serves bf16, fp16 and fp32 up to 8192 columns, the `native` one bf16 and fp32 of any width; both save `x`
    and two fp32 numbers a row for backward, and sum the gradients of weight and bias in fp32 and the same order on
    every run. Raises UserError, a ValueError, that names the wrong argument.
    """
    check(x, {"weight": weight, "bias": bias}, eps)
    chosen = choose("layer_norm", x, weight, bias)
    if chosen == "native" and recorded(x, weight, bias):
        return _layer_norm(x, weight, bias, eps)
    return dispatch.implementation("layer_norm", chosen)(x, weight, bias, eps)


@overload
def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float = ...,
    token_dropout: TokenDropout | None = ...,
    *,
    x_bias: Tensor | None = ...,
    return_sum: Literal[False] = ...,
) -> Tensor: ...


@overload
def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float = ...,
    token_dropout: TokenDropout | None = ...,
    *,
    x_bias: Tensor | None = ...,
    return_sum: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-12,
    token_dropout: TokenDropout | None = None,
    *,
    x_bias: Tensor | None = None,
    return_sum: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """LayerNorm(residual + dropout(x + x_bias)), the end of both halves of an encoder layer (Vaswani et al. 2017, 3.1).

    x and residual (..., width), with `token_dropout` (tokens, width); x_bias, weight, bias (width,). The sum is rounded
    to the dtype of `x`, and what is normed is the rounded sum, with fp32 statistics. With `return_sum` returns the norm
    and the sum, through which gradients flow too. The `triton` backend serves bf16, fp16 and fp32 up to 8192 columns,
    the `native` one bf16 and fp32 of any width; both round nothing before the sum, save the sum and two fp32 numbers a
    row for backward, compute the dropout mask again, and sum the gradients of vectors in fp32 and the same order on
    every run. Raises UserError, a ValueError, that names the wrong argument.
    """
    if token_dropout is not None and token_dropout.p == 0.0:
        token_dropout = None
    check(x, {"weight": weight, "bias": bias, "x_bias": x_bias}, eps, "x_bias")
    _check_rows(x, residual, token_dropout)
    chosen = choose("dropout_add_layer_norm", x, weight, bias, residual, x_bias)
    arguments = (x, residual, weight, bias, eps, token_dropout, x_bias, return_sum)
    if chosen == "native" and recorded(x, residual, weight, bias, x_bias):
        y, total = _dropout_add_layer_norm(*arguments)
    else:
        y, total = dispatch.implementation("dropout_add_layer_norm", chosen)(*arguments)
    return (y, total) if return_sum else y


def check(x: Tensor, vectors: dict[str, Tensor | None], eps: float, optional: str = "") -> None:
    """Refuse what no backend can compute, by what the host knows: shapes, dtypes, devices, numbers. The vector that
    `optional` names may be None."""
    if x.dim() == 0 or not x.dtype.is_floating_point:
        raise UserError(f"x must be floating of shape (..., width), not {x.dtype} {tuple(x.shape)}")
    width, device = x.shape[-1], x.device
    for name, vector in vectors.items():
        if vector is None:
            if name == optional:
                continue
            raise UserError(f"{name} is None: it must be floating of shape ({width},), the last axis of x")
        if vector.dim() != 1 or vector.shape[0] != width or not vector.dtype.is_floating_point:
            raise UserError(
                f"{name} must be floating of shape ({width},), the last axis of x, not"
                f" {vector.dtype} {tuple(vector.shape)}"
            )
        if vector.device != device:
            _check_device(name, vector, x)
    if not 0.0 <= eps < math.inf:
        raise UserError(f"eps={eps} must be a finite number, at least 0")


def _check_device(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise UserError(f"{name} is on {tensor.device}, x on {x.device}: move them to one device")


def _check_rows(x: Tensor, residual: Tensor, token_dropout: TokenDropout | None) -> None:
    if residual.shape != x.shape or not residual.dtype.is_floating_point:
        raise UserError(
            f"residual must be floating of the shape of x, {tuple(x.shape)}, not"
            f" {residual.dtype} {tuple(residual.shape)}"
        )
    _check_device("residual", residual, x)
    if token_dropout is None:
        return
    if x.dim() != 2:
        raise UserError(f"with token_dropout x must be (tokens, width), not of shape {tuple(x.shape)}")
    check_token_dropout(token_dropout, x)


def choose(operation: str, x: Tensor, *others: Tensor | None) -> dispatch.BackendName:
    """The backend of a call: eager torch where the chosen kernels do not serve its kind."""
    chosen = dispatch.choose(operation, x.device)
    if chosen == "native":
        return "native" if rowwise.serves(operation, x, *others) else "eager"
    if chosen != "triton":
        return chosen
    dispatch.require_triton(x.device, "x")
    for tensor in (x, *others):
        if tensor is not None and tensor.dtype not in SERVED:
            reason = f"a tensor has dtype {tensor.dtype}: the triton backend serves bfloat16, float16 and float32"
            return dispatch.without_triton(operation, reason)
    if not 1 <= x.shape[-1] <= WIDEST:
        reason = f"x has {x.shape[-1]} columns: the triton backend serves 1 to {WIDEST}"
        return dispatch.without_triton(operation, reason)
    dispatch.refuse_forward_mode(operation)
    return chosen


def layer_norm_eager(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    trained = torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad)
    # torch's CPU kernel takes bf16 rows with fp32 weights, but adds the weights' gradients up in bf16.
    mixed = x.device.type == "cpu" and x.dtype == torch.bfloat16 and not trained
    # A plain integer also while torch.jit traces: the ONNX exporter takes no width that depends on the input.
    shape = (int(weight.shape[0]),)
    with without_autocast(x.device):
        alike = x.dtype == weight.dtype == bias.dtype
        if alike or (mixed and weight.dtype == bias.dtype == torch.float32):
            return F.layer_norm(x, shape, weight, bias, eps)
        # Two half-precision dtypes promote to fp32: nothing is rounded before the norm.
        wide = torch.promote_types(x.dtype, torch.promote_types(weight.dtype, bias.dtype))
        return F.layer_norm(x.to(wide), shape, weight.to(wide), bias.to(wide), eps).to(x.dtype)


def _dropout_add_layer_norm_eager(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
    x_bias: Tensor | None,
    return_sum: bool,
) -> tuple[Tensor, Tensor]:
    if x_bias is not None:
        x = x + x_bias.to(x.dtype)
    total = dropout(x, token_dropout) + residual.to(x.dtype)
    return layer_norm_eager(total, weight, bias, eps), total


def _dropout_of(
    p: float, key: Tensor | None, sequence_ids: Tensor | None, offsets: Tensor | None, site: int
) -> TokenDropout | None:
    """What an operator was given in parts."""
    if key is None or sequence_ids is None or offsets is None:
        return None
    return TokenDropout(p, key, sequence_ids, offsets, site)


def statistics(x: Tensor, save: bool) -> tuple[Tensor, Tensor]:
    """Mean and rstd of the rows of x, as a fake tensor has them."""
    mean, rstd = (x.new_empty(x.shape[0] if save else 0, dtype=torch.float32) for _ in range(2))
    return mean, rstd


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return _norm(rows, weight, bias, eps, recorded(x, weight, bias))[0].view(x.shape)


@operator("fastbert::layer_norm")
def _norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y (rows, width), mean and rstd fp32 (rows,), both empty without `save`."""
    if takes(x, weight, bias):
        y, _, mean, rstd = rowwise.norm_forward(x, None, None, weight, bias, eps, None, save)
        return y, mean, rstd
    from fastbert.kernels.norm import layer_norm as kernels

    y, _, mean, rstd = kernels.forward(x, None, None, weight, bias, eps, None, save)
    return y, mean, rstd


@_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), *statistics(x, save)


def _gradients_of(total: Tensor, weight: Tensor) -> Any:
    """The function that computes the gradients of rows that were normed: native or Triton's."""
    if takes(total, weight):
        return rowwise.norm_gradients
    from fastbert.kernels.norm import layer_norm as kernels

    return kernels.gradients


@operator("fastbert::layer_norm_backward")
def _norm_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """dx, and dweight and dbias as the rows of one fp32 tensor: an operator's results may not share memory."""
    dx, _, sums = _gradients_of(x, weight)(grad, None, x, mean, rstd, weight, None, x_bias=False, residual=False)
    return dx, sums


@_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), mean.new_empty(2, x.shape[1])


def _norm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, _ = inputs
    _, mean, rstd = output
    ctx.save_for_backward(x, mean, rstd, weight)
    ctx.bias_dtype = bias.dtype


def _norm_gradients(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, mean, rstd, weight = ctx.saved_tensors
    dx, sums = _norm_backward(grad, x, mean, rstd, weight)
    return dx, sums[0].to(weight.dtype), sums[1].to(ctx.bias_dtype), None, None


_norm.register_autograd(_norm_gradients, setup_context=_norm_context)


def _dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
    x_bias: Tensor | None,
    return_sum: bool,
) -> tuple[Tensor, Tensor]:
    rows, other = x.reshape(-1, x.shape[-1]), residual.reshape(-1, x.shape[-1])
    parts: tuple[Any, ...] = (0.0, None, None, None, 0)
    if token_dropout is not None:
        ids = (token_dropout.key, token_dropout.sequence_ids, token_dropout.offsets)
        parts = (token_dropout.p, *ids, token_dropout.site)
    save = return_sum or recorded(x, residual, weight, bias, x_bias)
    y, total, _, _ = _add_norm(rows, x_bias, other, weight, bias, eps, *parts, save)
    return y.view(x.shape), total.view(x.shape) if save else total


@operator("fastbert::dropout_add_layer_norm")
def _add_norm(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    p: float,
    key: Tensor | None,
    sequence_ids: Tensor | None,
    offsets: Tensor | None,
    site: int,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y and the rounded sum (rows, width), mean and rstd fp32 (rows,); all but y are empty without `save`."""
    arguments = (x, x_bias, residual, weight, bias, eps, _dropout_of(p, key, sequence_ids, offsets, site), save)
    if takes(x, x_bias, residual, weight, bias):
        return rowwise.norm_forward(*arguments)
    from fastbert.kernels.norm import layer_norm as kernels

    return kernels.forward(*arguments)


@_add_norm.register_fake
def _(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    save = arguments[-1]
    return x.new_empty(x.shape), x.new_empty(x.shape if save else 0), *statistics(x, save)


@operator("fastbert::dropout_add_layer_norm_backward")
def _add_norm_backward(
    grad: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    p: float,
    key: Tensor | None,
    sequence_ids: Tensor | None,
    offsets: Tensor | None,
    site: int,
    has_x_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx; dresidual, empty where it is dx; dweight, dbias and, with x_bias, its gradient as rows of one fp32 tensor."""
    token_dropout = _dropout_of(p, key, sequence_ids, offsets, site)
    gradients = _gradients_of(total, weight)
    dx, dresidual, sums = gradients(
        grad, grad_total, total, mean, rstd, weight, token_dropout, x_bias=has_x_bias, residual=True
    )
    return dx, dx.new_empty(0) if dresidual is None else dresidual, sums


@_add_norm_backward.register_fake
def _(grad: Tensor, grad_total: Tensor | None, total: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    mean, key, has_x_bias = arguments[0], arguments[4], arguments[-1]
    dresidual = total.new_empty(0 if key is None else total.shape)
    return total.new_empty(total.shape), dresidual, mean.new_empty(3 if has_x_bias else 2, total.shape[1])


def _add_norm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, x_bias, residual, weight, bias, _, p, key, sequence_ids, offsets, site, _ = inputs
    _, total, mean, rstd = output
    ctx.save_for_backward(total, mean, rstd, weight, key, sequence_ids, offsets)
    ctx.numbers = (p, site)
    ctx.dtypes = (residual.dtype, bias.dtype, None if x_bias is None else x_bias.dtype)
    # The sum rarely takes a gradient of its own: without one nothing is read.
    ctx.set_materialize_grads(False)


def _add_norm_gradients(
    ctx: Any, grad: Tensor | None, grad_total: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    total, mean, rstd, weight, key, sequence_ids, offsets = ctx.saved_tensors
    (p, site), (residual_dtype, bias_dtype, x_bias_dtype) = ctx.numbers, ctx.dtypes
    normed = torch.zeros_like(total) if grad is None else grad
    parts = (p, key, sequence_ids, offsets, site)
    has_x_bias = x_bias_dtype is not None
    dx, dresidual, sums = _add_norm_backward(normed, grad_total, total, mean, rstd, weight, *parts, has_x_bias)
    dx_bias = sums[2].to(x_bias_dtype) if has_x_bias else None
    dresidual = (dx if key is None else dresidual).to(residual_dtype)
    dweight, dbias = (None, None) if grad is None else (sums[0].to(weight.dtype), sums[1].to(bias_dtype))
    return dx, dx_bias, dresidual, dweight, dbias, *[None] * 7


_add_norm.register_autograd(_add_norm_gradients, setup_context=_add_norm_context)


dispatch.register("layer_norm", "eager", layer_norm_eager)
dispatch.register("layer_norm", "triton", _layer_norm)
dispatch.register("layer_norm", "native", rowwise.layer_norm)
dispatch.register("dropout_add_layer_norm", "eager", _dropout_add_layer_norm_eager)
dispatch.register("dropout_add_layer_norm", "triton", _dropout_add_layer_norm)
dispatch.register("dropout_add_layer_norm", "native", rowwise.dropout_add_layer_norm)
