"""Dropout of token vectors by counter, so that masks can be replayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.ops import dispatch
from fastbert.ops.custom_op import operator
from fastbert.ops.dropout.arguments import DropoutArguments, TokenDropout
from fastbert.ops.dropout.eager import Eager
from fastbert.ops.dropout.native import Native
from fastbert.ops.dropout.triton import Triton
from fastbert.ops.operation import Operation

DROPOUT = Operation("dropout", Eager(), Native(), Triton())


def dropout(x: Tensor, dropout: TokenDropout | None) -> Tensor:
    """Zero each element of x with probability p and scale the others by 1 / (1 - p) (Srivastava et al. 2014).

    x (tokens, width) of any floating dtype. p counts in steps of 1/65536; without a `dropout`, or with p = 0, x itself
    is returned. Otherwise the result has shape and dtype of x. The mask depends on the keys, the site and the positions
    of `dropout` alone, and backward applies it again instead of saving it.

    The `triton` backend (bf16, fp16, fp32) and the `native` one (bf16, fp32) multiply in fp32 and in one pass. For
    other calls a mask in the dtype of x is written first. Raises UserError, a ValueError, that names the wrong
    argument.
    """
    if dropout is None or dropout.p == 0.0:
        return x
    arguments = DropoutArguments(x, dropout)
    arguments.check()
    backend = dispatch.select_backend(DROPOUT, x.device, arguments)
    if isinstance(backend, Native) and not backend.has_kernel(arguments):
        backend = DROPOUT.backend("eager")
    if backend.composite or (backend.name == "native" and not dispatch.needs_backward(x)):
        output: Tensor = backend.forward(arguments)
        return output
    dispatch.refuse_forward_mode("dropout")
    ids = (dropout.key, dropout.sequence_ids, dropout.offsets)
    traced: Tensor = _forward(x, *ids, dropout.p, dropout.site, backend.name)
    return traced


@operator("fastbert::dropout")
def _forward(
    x: Tensor, key: Tensor, sequence_ids: Tensor, offsets: Tensor, p: float, site: int, backend: str
) -> Tensor:
    """Drop elements of x, or of the gradient: backward multiplies with the same mask."""
    arguments = DropoutArguments(x, TokenDropout(p, key, sequence_ids, offsets, site))
    output: Tensor = DROPOUT.backend(backend).forward(arguments)
    return output


@_forward.register_fake
def _(x: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, key, sequence_ids, offsets, *ctx.numbers = inputs
    ctx.save_for_backward(key, sequence_ids, offsets)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _forward(grad, *ctx.saved_tensors, *ctx.numbers), *[None] * 6


_forward.register_autograd(_gradients, setup_context=_setup_context)
