"""Gated activations, with the bias of the matmul before them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.gated import eager, native, triton
from fastbert.ops.gated.arguments import GatedArguments
from fastbert.ops.kernel_failures import retried
from fastbert.ops.operation import Operation

GATED_ACTIVATION = Operation("gated_activation", eager.Eager(), native.Native(), triton.Triton())


@retried
def gated_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Compute activation(gate) * value (Shazeer 2020, section 2), of the halves of x + bias: GeGLU, ReGLU, SwiGLU.

    x (..., 2 * width) holds the gates and then the values of each row; bias (2 * width,) or None is added to both; any
    floating dtypes. `activation` is `"gelu"` (by erf), `"gelu_tanh"`, `"relu"` or `"silu"`. Returns (..., width) in the
    dtype of x.

    The `triton` backend supports bf16, fp16 and fp32 with a bias in fp32 or in the dtype of x, the `native` backend
    bf16 and fp32 with a bias in either. Both compute in fp32, save nothing but x, and sum the gradient of the bias in
    fp32 and in the same order on every run. Raises UserError, a ValueError, that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> ops.gated_activation(torch.tensor([[1.0, -1.0, 2.0, 3.0]]), None, "relu")  # gates 1 and -1, values 2 and 3
        tensor([[2., 0.]])
    """
    arguments = GatedArguments(x, bias, activation)
    backend, direct, _ = dispatch.choose(GATED_ACTIVATION, arguments, x, bias)
    return backend.forward(arguments) if direct else _forward(*arguments, backend.name)


@custom_op.operator("fastbert::gated_activation")
def _forward(arguments: GatedArguments, backend: str) -> Tensor:
    return GATED_ACTIVATION.backend(backend).forward(arguments)


@_forward.register_fake
def _(arguments: GatedArguments, backend: str) -> Tensor:
    return arguments.x.new_empty((*arguments.x.shape[:-1], arguments.width))


@custom_op.operator("fastbert::gated_activation_backward")
def _backward(grad: Tensor, arguments: GatedArguments, sums: bool, backend: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and its fp32 sums over all but the last axis, empty without `sums`."""
    dx, total = GATED_ACTIVATION.backend(backend).backward(arguments, grad, sums)
    return dx, dx.new_empty(0, dtype=torch.float32) if total is None else total


@_backward.register_fake
def _(grad: Tensor, arguments: GatedArguments, sums: bool, backend: str) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(arguments.x, memory_format=torch.contiguous_format)
    return dx, dx.new_empty(dx.shape[-1] if sums else 0, dtype=torch.float32)


@_forward.register_autograd(setup_context=custom_op.save_inputs)
def _(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, bias, activation, backend = custom_op.saved(ctx)
    dx, total = _backward(grad, x, bias, activation, bool(ctx.needs_input_grad[1]), backend)
    return dx, total.to(bias.dtype) if ctx.needs_input_grad[1] else None, None, None
