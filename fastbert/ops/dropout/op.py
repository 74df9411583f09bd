"""Dropout of token vectors by counter, so that masks can be replayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.dropout import eager, native, triton
from fastbert.ops.dropout.arguments import DropoutArguments, TokenDropout
from fastbert.ops.kernel_failures import retried
from fastbert.ops.operation import Operation

DROPOUT = Operation("dropout", eager.Eager(), native.Native(), triton.Triton())


@retried
def dropout(x: Tensor, dropout: TokenDropout | None) -> Tensor:
    """Zero each element of x with probability p and scale the others by 1 / (1 - p) (Srivastava et al. 2014).

    x (tokens, width) of any floating dtype. p counts in steps of 1/65536; without a `dropout`, or with p = 0, x itself
    is returned. Otherwise the result has shape and dtype of x. The mask depends on the keys, the site and the positions
    of `dropout` alone, and backward applies it again instead of saving it.

    The `triton` backend (bf16, fp16, fp32) and the `native` one (bf16, fp32) multiply in fp32 and in one pass. For
    other calls a mask in the dtype of x is written first. Raises UserError, a ValueError, that names the wrong
    argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> key, index = torch.tensor([42]), torch.zeros(4, dtype=torch.int64)  # four tokens of one sequence
        >>> drop = ops.TokenDropout(0.5, key, index, torch.arange(4), ops.Site.EMBEDDING)
        >>> x = torch.ones(4, 8)
        >>> ops.dropout(x, drop).unique()
        tensor([0., 2.])
        >>> torch.equal(ops.dropout(x, drop), ops.dropout(x, drop))  # a function of the key and the position
        True
    """
    if dropout is None or dropout.p == 0.0:
        return x
    arguments = DropoutArguments(x, dropout)
    backend, direct, _ = dispatch.choose(DROPOUT, arguments, x)
    if direct:
        return backend.forward(arguments)
    return _forward(x, dropout.key, dropout.sequence_ids, dropout.offsets, dropout.p, dropout.site, backend.name)


@custom_op.operator("fastbert::dropout")
def _forward(
    x: Tensor, key: Tensor, sequence_ids: Tensor, offsets: Tensor, p: float, site: int, backend: str
) -> Tensor:
    """Drop elements of x, or of the gradient: backward multiplies with the same mask."""
    arguments = DropoutArguments(x, TokenDropout(p, key, sequence_ids, offsets, site))
    return DROPOUT.backend(backend).forward(arguments)


@_forward.register_fake
def _(x: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    custom_op.save(ctx, *inputs[1:])


@_forward.register_autograd(setup_context=_setup_context)
def _(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _forward(grad, *custom_op.saved(ctx)), *[None] * 6
