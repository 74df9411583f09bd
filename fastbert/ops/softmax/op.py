"""Softmax over explicit attention scores, for users who need the probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.kernel_failures import retried
from fastbert.ops.operation import Operation
from fastbert.ops.softmax import eager, native, triton
from fastbert.ops.softmax.arguments import SoftmaxArguments

SOFTMAX = Operation("softmax", eager.Eager(), native.Native(), triton.Triton())


@retried
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
    (sequences,) and `dropout_site` decide what is dropped, with `dropout_p` in steps of 1/256, as in `attention`.
    Without keys, one per sequence is drawn on the device.

    Returns probabilities in the shape and dtype of `scores`; maxima, exponentials and sums are fp32 inside (float64 for
    float64). Backward recomputes the probabilities from `scores`. The `triton` backend supports bf16, fp16 and fp32
    with contiguous keys, the `native` one bf16 and fp32; PyTorch rounds `scale * scores` to their dtype. There is no
    host-device sync. Raises UserError, a ValueError, that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> scores = torch.zeros(1, 1, 2, 3)
        >>> mask = torch.tensor([[True, True, False], [False, False, False]])
        >>> ops.softmax(scores, mask)
        tensor([[[[0.5000, 0.5000, 0.0000],
                  [0.0000, 0.0000, 0.0000]]]])
    """
    if dropout_p and dropout_key is None and scores.dim() == 4:
        dropout_key = draw_keys(scores.shape[0], scores.device)
    key = dropout_key.contiguous() if dropout_p and dropout_key is not None else None
    arguments = SoftmaxArguments(scores, mask, scale, dropout_p, key, dropout_site)
    backend, direct, _ = dispatch.choose(SOFTMAX, arguments, scores)
    return backend.forward(arguments) if direct else _forward(*arguments, backend.name)


@custom_op.operator("fastbert::softmax")
def _forward(arguments: SoftmaxArguments, backend: str) -> Tensor:
    return SOFTMAX.backend(backend).forward(arguments).contiguous()


@_forward.register_fake
def _(arguments: SoftmaxArguments, backend: str) -> Tensor:
    return torch.empty_like(arguments.scores, memory_format=torch.contiguous_format)


@custom_op.operator("fastbert::softmax_backward")
def _backward(grad: Tensor, arguments: SoftmaxArguments, backend: str) -> Tensor:
    """Return the gradient of `scores`."""
    return SOFTMAX.backend(backend).backward(arguments, grad).contiguous()


@_backward.register_fake
def _(grad: Tensor, arguments: SoftmaxArguments, backend: str) -> Tensor:
    return torch.empty_like(arguments.scores, memory_format=torch.contiguous_format)


@_forward.register_autograd(setup_context=custom_op.save_inputs)
def _(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _backward(grad, *custom_op.saved(ctx)), *[None] * 6
