"""The linear layer with an optional activation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.autocast import matmul_dtype, without_autocast
from fastbert.ops.encoder_layer import flat_layer
from fastbert.ops.kernel_failures import retried
from fastbert.ops.linear import accumulating, eager, mixed_matmul, native, triton
from fastbert.ops.linear.arguments import GradMask, LinearArguments
from fastbert.ops.native import buffers
from fastbert.ops.operation import Operation

_EAGER, _NATIVE, _TRITON = eager.Eager(), native.Native(), triton.Triton()
LINEAR = Operation("linear", _EAGER, _NATIVE, _TRITON)


@retried
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None) -> Tensor:
    """Compute activation(x weight^T + bias).

    x (..., in), weight (out, in) and bias (out,) have one floating dtype; with an activation the bias may be fp32.
    `activation` is None, `"gelu"` (by erf) or `"gelu_tanh"`. Under autocast the operands are cast. Returns (..., out)
    in the dtype of the matmul.

    Without an activation, GPUs run PyTorch's matmul. With one, the `triton` backend rounds and saves the matmul's
    result and computes GELU from it in fp32: for bf16 and fp16 operands whose sizes are multiples of 16 in the epilogue
    of the matmul where the table of configurations prefers it, otherwise in a pass after PyTorch's. The `native`
    backend multiplies by parameters where the table of matmuls prefers it, with bias and GELU in the epilogue; it
    rounds once, unless a backward pass may follow: then GELU is computed from the rounded matmul, which is saved. In
    both, gradients of fp32 weights under autocast are summed in fp32 (on CUDA and CPU).
    Raises UserError, a ValueError, that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> x, weight, bias = torch.randn(4, 16), torch.randn(32, 16), torch.zeros(32)
        >>> ops.linear(x, weight, bias, activation="gelu").shape
        torch.Size([4, 32])
    """
    arguments = LinearArguments(x, weight, bias, activation)
    arguments.check()
    backend = dispatch.select_backend(LINEAR, x.device, arguments)
    if backend is _NATIVE:
        trains = dispatch.needs_backward(x, weight, bias)
        # Unless it is forced, the backend supports nothing but direct calls.
        if not trains and (dispatch.forced() is None or buffers.direct(x, weight, bias)):
            return _NATIVE.infer(arguments)
        dispatch.refuse_forward_mode("linear")
        rows = arguments.rows.to(matmul_dtype(x))
        y, _ = _linear_native(rows, weight, bias, activation)
    elif backend is _TRITON:
        if activation is None and not torch.compiler.is_compiling():
            weights = flat_layer.owner_of(weight, bias, matmul_dtype(x))
            if weights is not None:
                return accumulating.run(x, weight, bias, weights, matmul_dtype(x))
        if not _TRITON.fuses(arguments):
            return _TRITON.compose(arguments)
        dispatch.refuse_forward_mode("linear")
        rows, keep_u = arguments.rows.to(matmul_dtype(x)), dispatch.needs_backward(x, weight, bias)
        y, _ = _linear_gelu(rows, weight, bias, activation == "gelu_tanh", keep_u)
    else:
        return _EAGER.forward(arguments)
    return y.view(arguments.output_shape)


@custom_op.operator("fastbert::linear_native", device_types="cpu")
def _linear_native(arguments: LinearArguments) -> tuple[Tensor, Tensor]:
    return _NATIVE.forward(arguments)


@_linear_native.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(x.shape[0] if activation else 0, weight.shape[0])


@custom_op.operator("fastbert::linear_native_backward", device_types="cpu")
def _linear_native_backward(
    grad: Tensor, u: Tensor, arguments: LinearArguments, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return _NATIVE.backward(arguments, u, grad, GradMask(*wanted))


@_linear_native_backward.register_fake
def _(grad: Tensor, u: Tensor, arguments: LinearArguments, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, bias, _ = arguments
    dx, dweight = (t.new_empty(t.shape if needed else (0,)) for t, needed in zip((x, weight), wanted, strict=False))
    dbias = x.new_empty(weight.shape[0] if wanted[2] else 0, dtype=torch.float32 if bias is None else bias.dtype)
    return dx, dweight, dbias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    custom_op.save(ctx, output[1], *inputs[:4])
    ctx.mark_non_differentiable(output[1])


@_linear_native.register_autograd(setup_context=_setup_context)
def _(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    mask = list(ctx.needs_input_grad[:3])
    with without_autocast(grad.device):
        gradients = _linear_native_backward(grad, *custom_op.saved(ctx), mask)
    return *[gradient if needed else None for gradient, needed in zip(gradients, mask, strict=True)], None


@custom_op.operator("fastbert::linear_gelu")
def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, keep: bool) -> tuple[Tensor, Tensor]:
    return _TRITON.forward(LinearArguments(x, weight, bias, "gelu_tanh" if tanh else "gelu"), keep)


@_linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, keep: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(x.shape[0] if keep else 0, weight.shape[0])


@custom_op.operator("fastbert::linear_gelu_backward")
def _linear_gelu_backward(
    grad: Tensor, u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool, sums: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient of u and its fp32 sums over the rows, empty without `sums`.

    With x, weight and bias as inputs a second derivative is refused: u alone would count as a constant.
    """
    du, total = _TRITON.backward(u, tanh, grad, sums)
    return du, u.new_empty(0, dtype=torch.float32) if total is None else total


@_linear_gelu_backward.register_fake
def _(grad: Tensor, u: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), u.new_empty(u.shape[1] if others[-1] else 0, dtype=torch.float32)


@_linear_gelu.register_autograd(setup_context=_setup_context)
def _(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    (u, x, weight, bias, tanh), mask = custom_op.saved(ctx), GradMask(*ctx.needs_input_grad[:3])
    du, total = _linear_gelu_backward(grad, u, x, weight, bias, tanh, bool(mask.bias))
    with without_autocast(x.device):
        dx = du @ weight.to(x.dtype) if mask.x else None
        dweight = mixed_matmul.matmul(du.t(), x, weight.dtype) if mask.weight else None
    return dx, dweight, total.to(bias.dtype) if mask.bias else None, None, None
