"""Matrix products: the linear layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.autocast import without_autocast
from fastbert.ops.custom_op import operator
from fastbert.ops.gelu.op import bias_gelu
from fastbert.ops.linear.mixed_matmul import product
from fastbert.ops.native import buffers, caching_allocator, matmul, prepacked_weights
from fastbert.ops.native.matmul_table import prefers_own
from fastbert.ops.native.rowwise_gradients import gelu_backward

# By activation: what torch's GELU is called.
APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}
# Outputs or inputs of a weight below which training leaves its products to torch: ours would be mostly padding.
LEAST_TRAINED = 32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None) -> Tensor:
    """activation(x weight^T + bias): x (..., in), weight (out, in), bias (out,); `activation` is None, `"gelu"` (by
    erf) or `"gelu_tanh"`. Under autocast the operands are cast.

    Without an activation this is torch's product on the GPU. With one, the `triton` backend keeps the product
    before GELU, rounded to the operands' dtype, and computes GELU from that in fp32: in the epilogue of a product of
    our own for bf16 and fp16 operands of widths that are multiples of 16, where the table of configurations prefers
    that, otherwise in a pass behind torch's product. The `native` backend multiplies with parameters itself where the
    table of products prefers that, with bias and GELU in the epilogue; the result is rounded once, and where a gradient
    is wanted GELU is computed of the rounded product, which is kept. There, and on CUDA, gradients of fp32 weights are
    sums that were never rounded to half precision.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    _check(x, weight, bias, activation)
    return dispatch.select("linear", x.device)(x, weight, bias, activation)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> None:
    if activation is not None and activation not in APPROXIMATIONS:
        raise UserError(f"activation={activation!r} must be None, {' or '.join(map(repr, APPROXIMATIONS))}")
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise UserError(
            f"weight has shape {tuple(weight.shape)}: it must be (out, in) with x of shape (..., in), not"
            f" {tuple(x.shape)}"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
        raise UserError(f"bias has shape {tuple(bias.shape)}: it must be ({weight.shape[0]},), one a row of weight")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        # Torch would give back memory that nobody wrote for a weight on the meta device.
        if tensor.device != x.device:
            raise UserError(f"{name} is on {tensor.device}, x on {x.device}: move them to one device")
        if tensor.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
            # A bias may stay in fp32 where what follows the product adds it.
            if name == "bias" and activation is not None and tensor.dtype == torch.float32:
                continue
            raise UserError(f"{name} has dtype {tensor.dtype}, x {x.dtype}: cast one, or use torch.autocast")
    if not x.dtype.is_floating_point:
        raise UserError(f"x must be floating, not {x.dtype}")


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    if bias is not None and activation is not None and not torch.is_autocast_enabled(x.device.type):
        bias = bias.to(x.dtype)
    u = F.linear(x, weight, bias)
    return u if activation is None else F.gelu(u, approximate=APPROXIMATIONS[activation])


def _linear_native(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Our product where the table prefers it, with a weight that was laid out once; else torch's.

    A weight that is no parameter may be a passing one, for which laying it out would cost more than the product. What
    traces gets torch's product, which it knows. Gradients are products of ours where the forward one is.
    """
    if buffers.is_transformed():
        buffers.declines("linear", "torch transforms the call")
    if not buffers.direct(x, weight, bias) or not buffers.serves("linear", x, weight, bias, trains=True):
        return _linear(x, weight, bias, activation)
    cast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if cast else x.dtype
    if dtype not in buffers.DTYPES:
        buffers.declines("linear", f"autocast multiplies {dtype}, and the native backend bfloat16 and float32")
        return _linear(x, weight, bias, activation)
    trains = torch.is_grad_enabled() and any(given is not None and given.requires_grad for given in (x, weight, bias))
    kept = isinstance(weight, torch.nn.Parameter) and not (trains and min(weight.shape) < LEAST_TRAINED)
    rows = x.flatten(0, -2) if x.dim() > 1 else x[None]
    if not (kept or dispatch.forced() == "native") or not prefers_own(buffers.DTYPES[dtype], len(rows), *weight.shape):
        return _linear(x, weight, bias, activation)
    if trains:
        y, _ = _linear_trained(matmul.together(rows.to(dtype)), weight, bias, activation)
    else:
        packed = prepacked_weights.packed(weight, buffers.DTYPES[dtype], rows=len(rows))
        y = matmul.product(matmul.together(rows), packed, bias, activation, out_dtype=dtype)
    return y.view(*x.shape[:-1], weight.shape[0])


@operator("fastbert::linear_native", device_types="cpu")
def _linear_trained(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> tuple[Tensor, Tensor]:
    """y = activation(u) and, with an activation, u = x weight^T + bias, both in the dtype of x (rows, in)."""
    shape = len(x), len(weight)
    u = caching_allocator.empty(shape if activation else (0, shape[1]), x.dtype)
    packed, y = prepacked_weights.packed(weight, buffers.DTYPES[x.dtype]), caching_allocator.empty(shape, x.dtype)
    matmul.product(x, packed, bias, activation, out=y, before=u if activation else None)
    return y, u


@_linear_trained.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(x.shape[0] if activation else 0, weight.shape[0])


@operator("fastbert::linear_native_backward", device_types="cpu")
def _native_gradients(
    grad: Tensor, u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias, each in its tensor's dtype; without elements where none is wanted."""
    of_x, of_weight, of_bias = wanted
    if activation and u.shape[1]:
        grad = gelu_backward(grad, u, None, activation == "gelu_tanh", sums=False)[0]
    grad = matmul.together(grad)
    dx, dweight, dbias = x.new_empty(0), weight.new_empty(0), x.new_empty(0, dtype=torch.float32)
    if of_x:
        packed = prepacked_weights.packed(weight, buffers.DTYPES[x.dtype], transposed=True)
        dx = matmul.product(grad, packed, out=caching_allocator.empty(tuple(x.shape), x.dtype))
    if of_weight:
        dweight, sums = matmul.gradient_product(grad, x, sums=of_bias)
        dbias = dbias if sums is None else sums
    elif of_bias:
        dbias = grad.sum(0, dtype=torch.float32)
    return dx, dweight.to(weight.dtype), dbias if bias is None else dbias.to(bias.dtype)


@_native_gradients.register_fake
def _(
    grad: Tensor, u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight = (t.new_empty(t.shape if given else (0,)) for t, given in zip((x, weight), wanted, strict=False))
    dbias = x.new_empty(weight.shape[0] if wanted[2] else 0, dtype=torch.float32 if bias is None else bias.dtype)
    return dx, dweight, dbias


def _keep_for_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, activation = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, bias, output[1])
    ctx.activation = activation


def _trained_gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, u = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:3])
    with without_autocast(x.device):
        found = _native_gradients(grad, u, x, weight, bias, ctx.activation, wanted)
    return (*[gradient if given else None for gradient, given in zip(found, wanted, strict=True)], None)


_linear_trained.register_autograd(_trained_gradients, setup_context=_keep_for_gradients)


def _linear_triton(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    if activation is None:
        return F.linear(x, weight, bias)
    dispatch.require_triton(x.device, "x")
    kind, approximate = x.device.type, APPROXIMATIONS[activation]
    cast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    dtype = torch.get_autocast_dtype(kind) if cast else x.dtype
    served = dtype in (torch.bfloat16, torch.float16) and (cast or weight.dtype == dtype)
    served = served and (bias is None or bias.dtype in (dtype, torch.float32))
    if not served or weight.shape[0] % 16 or weight.shape[1] % 16 or weight.numel() == 0:
        if dtype in (torch.bfloat16, torch.float16):
            # The product adds the bias: a sum behind it would round to half precision twice.
            bias = bias if cast or bias is None else bias.to(dtype)
            return bias_gelu(F.linear(x, weight, bias), None, approximate)
        # Behind the product the bias' gradient is summed in the same pass as GELU's.
        return bias_gelu(F.linear(x, weight), bias, approximate)
    dispatch.refuse_forward_mode("linear")
    rows = x.to(dtype).reshape(-1, x.shape[-1])
    given = [tensor for tensor in (x, weight, bias) if tensor is not None]
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    y, _ = _linear_gelu(rows, weight, bias, approximate == "tanh", keep)
    return y.view(*x.shape[:-1], weight.shape[0])


@operator("fastbert::linear_gelu")
def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, keep: bool) -> tuple[Tensor, Tensor]:
    """y = gelu(u) and u = x weight^T + bias in the dtype of x (rows, in), to which the weight is cast.

    u is for the gradient alone, and has no rows without `keep`.
    """
    from fastbert.kernels.gelu import bias_gelu as passes
    from fastbert.kernels.linear import linear as products

    weight = weight.to(x.dtype)
    if products.prefers_own(x):
        return products.linear_gelu(x, weight, bias, tanh, keep)
    with without_autocast(x.device):
        u = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    return passes.forward(u, None, tanh), u if keep else u.new_empty(0, len(weight))


@_linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, keep: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(x.shape[0] if keep else 0, weight.shape[0])


@operator("fastbert::linear_gelu_backward")
def _gelu_gradient(
    grad: Tensor, u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, sums: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of u, and its sums over the rows, fp32; without `sums` that is empty.

    x, weight and bias are here so that a second derivative is refused: u has none, and would count as a constant.
    """
    du, total = dispatch.implementation("bias_gelu", "triton").backward(grad, u, None, tanh, sums)
    return du, u.new_empty(0, dtype=torch.float32) if total is None else total


@_gelu_gradient.register_fake
def _(
    grad: Tensor, u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, sums: bool
) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), u.new_empty(u.shape[1] if sums else 0, dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, tanh, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, bias, output[1])
    ctx.tanh = tanh


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, u = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
    du, total = _gelu_gradient(grad, u, x, weight, bias, ctx.tanh, bool(of_bias))
    with without_autocast(x.device):
        dx = du @ weight.to(x.dtype) if of_x else None
        dweight = product(du.t(), x, weight.dtype) if of_weight else None
    return dx, dweight, total.to(bias.dtype) if of_bias else None, None, None


_linear_gelu.register_autograd(_gradients, setup_context=_setup_context)


dispatch.register("linear", "eager", _linear)
dispatch.register("linear", "native", _linear_native)
dispatch.register("linear", "triton", _linear_triton)
