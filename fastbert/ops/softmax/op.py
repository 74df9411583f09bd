"""Softmax over explicit attention scores, for users who need the probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.ops import dispatch
from fastbert.ops.custom_op import operator
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.operation import Operation
from fastbert.ops.softmax.arguments import SoftmaxArguments
from fastbert.ops.softmax.eager import Eager
from fastbert.ops.softmax.native import Native
from fastbert.ops.softmax.triton import Triton

SOFTMAX = Operation("softmax", Eager(), Native(), Triton())


def softmax(
    scores: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    dropout_p: float = 0.0,
    dropout_key: Tensor | None = None,
    dropout_site: int = 0,
) -> Tensor:
    """Compute dropout(softmax(scale * scores)) over the keys (Vaswani et al. 2017, 3.2.1).

    scores (sequences, heads, queries, keys) of any floating dtype. `mask` bool, True where a query attends to a key,
    broadcasts to `scores` and is not expanded in memory; a query without a visible key, or whose scores are all -inf,
    gets zeros, and its scores a gradient of zero. `dropout_p` is at least 0 and below 1; `dropout_key` int64
    (sequences,) and `dropout_site` decide what is dropped, as in `attention`. Without keys, one per sequence is drawn
    on the device.

    Returns probabilities in the shape and dtype of `scores`; maxima, exponentials and sums are fp32 inside (float64 for
    float64). Backward recomputes the probabilities from `scores`. The `triton` backend supports bf16, fp16 and fp32
    with contiguous keys, the `native` one bf16 and fp32; PyTorch rounds `scale * scores` to their dtype. There is no
    host-device sync. Raises UserError, a ValueError, that names the wrong argument.
    """
    if dropout_p and dropout_key is None and scores.dim() == 4:
        dropout_key = draw_keys(scores.shape[0], scores.device)
    key = dropout_key.contiguous() if dropout_p and dropout_key is not None else None
    arguments = SoftmaxArguments(scores, mask, scale, dropout_p, key, dropout_site)
    arguments.check()
    backend = dispatch.select_backend(SOFTMAX, scores.device, arguments)
    if backend.composite:
        direct = not torch.compiler.is_compiling()
    else:
        direct = backend.name == "native" and not dispatch.needs_backward(scores)
    if direct:
        output: Tensor = backend.forward(arguments)
        return output
    dispatch.refuse_forward_mode("softmax")
    traced: Tensor = _forward(*arguments, backend.name)
    return traced


@operator("fastbert::softmax")
def _forward(
    scores: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    dropout_key: Tensor | None,
    dropout_site: int,
    backend: str,
) -> Tensor:
    arguments = SoftmaxArguments(scores, mask, scale, dropout_p, dropout_key, dropout_site)
    output: Tensor = SOFTMAX.backend(backend).forward(arguments).contiguous()
    return output


@_forward.register_fake
def _(scores: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@operator("fastbert::softmax_backward")
def _backward(
    grad: Tensor,
    scores: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    dropout_key: Tensor | None,
    dropout_site: int,
    backend: str,
) -> Tensor:
    """Return the gradient of `scores`."""
    arguments = SoftmaxArguments(scores, mask, scale, dropout_p, dropout_key, dropout_site)
    dscores: Tensor = SOFTMAX.backend(backend).backward(arguments, grad).contiguous()
    return dscores


@_backward.register_fake
def _(grad: Tensor, scores: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, mask, scale, dropout_p, dropout_key, dropout_site, backend = inputs
    ctx.save_for_backward(scores, mask, dropout_key)
    ctx.numbers = (scale, dropout_p, dropout_site, backend)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    scores, mask, dropout_key = ctx.saved_tensors
    scale, dropout_p, dropout_site, backend = ctx.numbers
    dscores = _backward(grad, scores, mask, scale, dropout_p, dropout_key, dropout_site, backend)
    return dscores, *[None] * 6


_forward.register_autograd(_gradients, setup_context=_setup_context)
