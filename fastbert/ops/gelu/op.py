"""GELU with the bias of the matmul before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.gelu import eager, native, triton
from fastbert.ops.gelu.arguments import BiasGeluArguments, is_tanh
from fastbert.ops.kernel_failures import retried
from fastbert.ops.operation import Operation

BIAS_GELU = Operation("bias_gelu", eager.Eager(), native.Native(), triton.Triton())


@retried
def bias_gelu(x: Tensor, bias: Tensor | None, approximate: str = "none") -> Tensor:
    """Compute GELU(x + bias) (Hendrycks and Gimpel 2016).

    x (..., width), bias (width,) or None, any floating dtypes; `approximate` is `"none"` (by erf) or `"tanh"`. Returns
    shape and dtype of x.

    The `triton` backend supports bf16, fp16 and fp32 with a bias in fp32 or in the dtype of x, the `native` backend
    bf16 and fp32 with a bias in either. Both add and compute in fp32, save nothing but x, and sum the gradient of the
    bias in fp32 and in the same order on every run. Raises UserError, a ValueError, that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> ops.bias_gelu(torch.tensor([[0.0, 1.0]]), torch.tensor([1.0, -1.0]))
        tensor([[0.8413, 0.0000]])
    """
    arguments = BiasGeluArguments(x, bias, is_tanh(approximate))
    backend, direct, _ = dispatch.choose(BIAS_GELU, arguments, x, bias)
    return backend.forward(arguments) if direct else _forward(*arguments, backend.name)


@custom_op.operator("fastbert::bias_gelu")
def _forward(arguments: BiasGeluArguments, backend: str) -> Tensor:
    return BIAS_GELU.backend(backend).forward(arguments)


@_forward.register_fake
def _(arguments: BiasGeluArguments, backend: str) -> Tensor:
    return torch.empty_like(arguments.x, memory_format=torch.contiguous_format)


@custom_op.operator("fastbert::bias_gelu_backward")
def _backward(grad: Tensor, arguments: BiasGeluArguments, sums: bool, backend: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and its fp32 sums over all but the last axis, empty without `sums`."""
    dx, total = BIAS_GELU.backend(backend).backward(arguments, grad, sums)
    return dx, dx.new_empty(0, dtype=torch.float32) if total is None else total


@_backward.register_fake
def _(grad: Tensor, arguments: BiasGeluArguments, sums: bool, backend: str) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(arguments.x, memory_format=torch.contiguous_format)
    return dx, dx.new_empty(dx.shape[-1] if sums else 0, dtype=torch.float32)


@_forward.register_autograd(setup_context=custom_op.save_inputs)
def _(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, bias, tanh, backend = custom_op.saved(ctx)
    dx, total = _backward(grad, x, bias, tanh, bool(ctx.needs_input_grad[1]), backend)
    return dx, total.to(bias.dtype) if ctx.needs_input_grad[1] else None, None, None
