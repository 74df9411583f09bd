"""Softmax over explicit attention scores, for users who need the probabilities."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.autocast import without_autocast
from fastbert.ops.custom_op import operator
from fastbert.ops.dropout.op import attention_mask, draw_keys
from fastbert.ops.native import rowwise
from fastbert.ops.native.rowwise_tensors import recorded


def softmax(
    scores: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    dropout_p: float = 0.0,
    dropout_key: Tensor | None = None,
    dropout_site: int = 0,
) -> Tensor:
    """dropout(softmax(scale * scores)) over the keys: scores (sequences, heads, queries, keys), any floating dtype.

    `mask` bool, True where a query may see a key, broadcasts to `scores` and is not expanded in memory; a query that
    may see no key, or whose scores are all -inf, gets zeros, and its scores a gradient of zero. With `dropout_p`,
    `dropout_key` int64 (sequences,) and `dropout_site` decide what is dropped, as in `attention`; without keys, one a
    sequence is drawn on the device.

    Returns probabilities in the dtype of `scores`; maxima, exponentials and sums are fp32 inside (float64 for float64).
    Backward computes the probabilities again from `scores`. The `triton` backend serves bf16, fp16 and fp32 with
    the keys of a row side by side in memory, the `native` one bf16 and fp32; eager torch rounds `scale * scores` to
    their dtype. Nothing asks the device. Raises UserError, a ValueError, that names the wrong argument.
    """
    if dropout_p and dropout_key is None and scores.dim() == 4:
        dropout_key = draw_keys(scores.shape[0], scores.device)
    key = dropout_key.contiguous() if dropout_p and dropout_key is not None else None
    _check(scores, mask, scale, dropout_p, key, dropout_site)
    chosen = dispatch.choose("softmax", scores.device)
    if chosen == "triton":
        chosen = _check_triton(scores)
    elif chosen == "native":
        if not rowwise.serves("softmax", scores):
            chosen = "eager"
        elif not recorded(scores):
            return rowwise.softmax(scores, mask, scale, dropout_p, key, dropout_site)
    if chosen == "eager" and not torch.compiler.is_compiling():
        return softmax_eager(scores, mask, scale, dropout_p, key, dropout_site)
    dispatch.refuse_forward_mode("softmax")
    return _forward(scores, mask, scale, dropout_p, key, dropout_site, chosen)


def _check(
    scores: Tensor, mask: Tensor | None, scale: float, dropout_p: float, key: Tensor | None, dropout_site: int
) -> None:
    """Refuse what no backend can compute, by what the host knows: shapes, dtypes, devices, numbers."""
    if scores.dim() != 4 or not scores.dtype.is_floating_point:
        raise UserError(
            "scores must be floating of shape (sequences, heads, queries, keys), not"
            f" {scores.dtype} {tuple(scores.shape)}"
        )
    if mask is not None:
        if mask.dtype != torch.bool:
            raise UserError(f"mask has dtype {mask.dtype}: it must be bool, True where a query may see a key")
        wanted = scores.shape[4 - mask.dim() :] if mask.dim() <= 4 else ()
        if mask.dim() > 4 or any(size != 1 and size != other for size, other in zip(mask.shape, wanted)):
            raise UserError(
                f"mask has shape {tuple(mask.shape)}, which does not broadcast to that of scores, {tuple(scores.shape)}"
            )
    if not 0.0 <= dropout_p < 1.0:
        raise UserError(f"dropout_p={dropout_p} must be at least 0 and below 1")
    if not 0 <= dropout_site < 2**31:
        raise UserError(f"dropout_site={dropout_site} must be at least 0 and below 2**31")
    if not math.isfinite(scale):
        raise UserError(f"scale={scale} must be a finite number")
    if key is not None and (key.dtype != torch.int64 or key.shape != scores.shape[:1]):
        raise UserError(
            f"dropout_key must be int64 of shape ({scores.shape[0]},), one a sequence, not"
            f" {key.dtype} {tuple(key.shape)}"
        )
    for name, tensor in (("mask", mask), ("dropout_key", key)):
        if tensor is not None and tensor.device != scores.device:
            raise UserError(f"{name} is on {tensor.device}, scores on {scores.device}: move them to one device")


def _check_triton(scores: Tensor) -> dispatch.BackendName:
    """The backend of a call for which the Triton kernels were chosen: eager where they do not serve its kind."""
    dispatch.require_triton(scores.device, "scores")
    if scores.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        reason = f"scores has dtype {scores.dtype}: the triton backend serves bfloat16, float16 and float32"
        return dispatch.without_triton("softmax", reason)
    if scores.shape[3] > 1 and scores.stride(3) != 1:
        raise UserError(
            f"scores is not contiguous: strides {tuple(scores.stride())} of shape {tuple(scores.shape)}, but the keys"
            " of a query must lie side by side; call scores.contiguous()"
        )
    return "triton"


def softmax_eager(
    scores: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    dropout_key: Tensor | None,
    dropout_site: int,
) -> Tensor:
    """The eager backend: torch's own operations, whose gradients torch knows."""
    with without_autocast(scores.device):
        probabilities = _probabilities(scores * scale if scale != 1.0 else scores, mask)
        if dropout_key is not None:
            probabilities = _drop(probabilities, dropout_p, dropout_key, dropout_site)
        return probabilities


def _drop(x: Tensor, p: float, key: Tensor, site: int) -> Tensor:
    sequences, heads, queries, keys = x.shape
    # Masks of no sequence cannot be stacked.
    return x * attention_mask((sequences, heads, queries, keys), p, key, site, x.dtype) if sequences else x


def _probabilities(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the visible keys; rows in which every score is -inf get zeros."""
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    probabilities = scores.softmax(-1)
    if scores.numel() == 0:
        return probabilities
    # A row without a key to see is NaN throughout. On a CPU a look at its first element is cheaper than two more
    # passes over the scores; on a GPU it would make the host wait.
    if scores.device.type == "cpu" and not bool(probabilities.detach()[..., 0].isnan().any()):
        return probabilities
    unseen = scores.detach().amax(-1, keepdim=True) == -math.inf
    return scores.masked_fill(unseen, 0.0).softmax(-1).masked_fill(unseen, 0.0)


@operator("fastbert::softmax")
def _forward(
    scores: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    dropout_key: Tensor | None,
    dropout_site: int,
    chosen: str,
) -> Tensor:
    """`dropout_key` is None exactly where nothing is dropped."""
    arguments = (scores, mask, scale, dropout_p, dropout_key, dropout_site)
    return dispatch.implementation("softmax", chosen).forward(*arguments)


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
    chosen: str,
) -> Tensor:
    """The gradient of `scores`."""
    arguments = (scores, mask, scale, dropout_p, dropout_key, dropout_site)
    return dispatch.implementation("softmax", chosen).backward(grad, *arguments)


@_backward.register_fake
def _(grad: Tensor, scores: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, mask, scale, dropout_p, dropout_key, dropout_site, chosen = inputs
    ctx.save_for_backward(scores, mask, dropout_key)
    ctx.numbers = (scale, dropout_p, dropout_site, chosen)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    scores, mask, dropout_key = ctx.saved_tensors
    scale, dropout_p, dropout_site, chosen = ctx.numbers
    dscores = _backward(grad, scores, mask, scale, dropout_p, dropout_key, dropout_site, chosen)
    return dscores, None, None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)


class _Triton:
    """The kernels of `fastbert.kernels.softmax.softmax`, imported when they first run."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        from fastbert.kernels.softmax import softmax as kernels

        return kernels.forward(*arguments)

    @staticmethod
    def backward(grad: Tensor, *arguments: Any) -> Tensor:
        from fastbert.kernels.softmax import softmax as kernels

        return kernels.backward(grad, *arguments)


class _Eager:
    """Plain torch as one opaque operation, for `torch.compile`; inside of it torch records no gradients."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        return softmax_eager(*arguments).contiguous()

    @staticmethod
    def backward(
        grad: Tensor,
        scores: Tensor,
        mask: Tensor | None,
        scale: float,
        dropout_p: float,
        dropout_key: Tensor | None,
        dropout_site: int,
    ) -> Tensor:
        wide = torch.promote_types(scores.dtype, torch.float32)
        with without_autocast(scores.device):
            p = softmax_eager(scores, mask, scale, 0.0, None, dropout_site).to(wide)
            dp = grad.to(wide)
            if dropout_key is not None:
                dp = _drop(dp, dropout_p, dropout_key, dropout_site)
            dscores = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
        return dscores.to(scores.dtype).contiguous()


class _Native:
    """The kernels of csrc/cpu/rows.h."""

    forward = staticmethod(rowwise.softmax)
    backward = staticmethod(rowwise.softmax_gradient)


dispatch.register("softmax", "eager", _Eager)
dispatch.register("softmax", "triton", _Triton)
dispatch.register("softmax", "native", _Native)
