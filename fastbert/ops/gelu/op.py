"""GELU with the bias of the matmul before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.ops import dispatch
from fastbert.ops.custom_op import operator
from fastbert.ops.gelu.arguments import BiasGeluArguments, check_approximation
from fastbert.ops.gelu.eager import Eager
from fastbert.ops.gelu.native import Native
from fastbert.ops.gelu.triton import Triton
from fastbert.ops.operation import Operation

BIAS_GELU = Operation("bias_gelu", Eager(), Native(), Triton())


def bias_gelu(x: Tensor, bias: Tensor | None, approximate: str = "none") -> Tensor:
    """Compute GELU(x + bias) (Hendrycks and Gimpel 2016).

    x (..., width), bias (width,) or None, any floating dtypes; `approximate` is `"none"` (by erf) or `"tanh"`. Returns
    shape and dtype of x.

    The `triton` backend supports bf16, fp16 and fp32 with a bias in fp32 or in the dtype of x, the `native` backend
    bf16 and fp32 with a bias in either. Both add and compute in fp32, save nothing but x, and sum the gradient of the
    bias in fp32 and in the same order on every run. Raises UserError, a ValueError, that names the wrong argument.
    """
    check_approximation(approximate)
    arguments = BiasGeluArguments(x, bias, approximate == "tanh")
    arguments.check()
    backend = dispatch.select_backend(BIAS_GELU, x.device, arguments)
    if backend.composite or (backend.name == "native" and not dispatch.needs_backward(x, bias)):
        output: Tensor = backend.forward(arguments)
        return output
    dispatch.refuse_forward_mode("bias_gelu")
    traced: Tensor = _forward(*arguments, backend.name)
    return traced


@operator("fastbert::bias_gelu")
def _forward(x: Tensor, bias: Tensor | None, tanh: bool, backend: str) -> Tensor:
    output: Tensor = BIAS_GELU.backend(backend).forward(BiasGeluArguments(x, bias, tanh))
    return output


@_forward.register_fake
def _(x: Tensor, bias: Tensor | None, tanh: bool, backend: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@operator("fastbert::bias_gelu_backward")
def gelu_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool, sums: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and its fp32 sums over all but the last axis, empty without `sums`."""
    dx, total = BIAS_GELU.backend(backend).backward(BiasGeluArguments(x, bias, tanh), grad, sums)
    return dx, x.new_empty(0, dtype=torch.float32) if total is None else total


@gelu_backward.register_fake
def _(grad: Tensor, x: Tensor, bias: Tensor | None, tanh: bool, sums: bool, backend: str) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, x.new_empty(x.shape[-1] if sums else 0, dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, ctx.tanh, ctx.backend = inputs
    ctx.save_for_backward(x, bias)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, bias = ctx.saved_tensors
    dx, total = gelu_backward(grad, x, bias, ctx.tanh, bool(ctx.needs_input_grad[1]), ctx.backend)
    return dx, total.to(bias.dtype) if ctx.needs_input_grad[1] else None, None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)
