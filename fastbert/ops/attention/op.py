"""Attention over packed sequences: padding is never computed, and a token attends to its own sequence only."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.attention import eager, native, triton
from fastbert.ops.attention.arguments import AttentionArguments, AttentionGradients, WantedGradients
from fastbert.ops.autocast import is_autocast_enabled
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.kernel_failures import retried
from fastbert.ops.native import buffers
from fastbert.ops.operation import Operation

ATTENTION = Operation("attention", eager.Eager(), native.Native(), triton.Triton())
# The indices of the tensors with gradients, in the order of `AttentionGradients`.
_DIFFERENTIABLE = tuple(map(AttentionArguments._fields.index, AttentionGradients._fields))


@retried
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    dropout_p: float = 0.0,
    dropout_key: Tensor | None = None,
    dropout_site: int = 0,
    bias: Tensor | None = None,
    scale: float | None = None,
    deterministic: bool = False,
    window: int | None = None,
    rotary: Tensor | None = None,
    rotary_positions: Tensor | None = None,
    distance_bias: Tensor | None = None,
    position_keys: Tensor | None = None,
    position_queries: Tensor | None = None,
    buckets: Tensor | None = None,
) -> Tensor:
    """Compute softmax(Q K^T * scale + bias) V for each sequence (Vaswani et al. 2017, section 3.2.1).

    q (tokens_q, heads, head_dim), k and v (tokens_k, heads, head_dim), all of one floating dtype; k and v may have
    fewer heads, each shared by consecutive heads of q (Ainslie et al. 2023). `cu_seqlens_q` and
    `cu_seqlens_k` int32 (sequences + 1,) hold the offsets of the sequences, and `max_seqlen_q` and `max_seqlen_k`,
    integers on the host, are at least the longest lengths. With `causal`, the last query attends to all keys and each
    query before it to one key fewer. `bias` (heads, queries, keys) is added to the scores and gets a gradient; it
    counts as 0 beyond its shape. `scale` defaults to 1 / sqrt(head_dim). With `dropout_p`, `dropout_key` int64
    (sequences,) and `dropout_site` determine the mask; keys are drawn on the device if there are none. `dropout_p`
    counts in steps of 1/256: it is rounded to the nearest, an error of at most 1/512 (a smaller positive p becomes
    1/256), and kept probabilities are scaled by what it is rounded to. A query with no visible key, or with a bias of
    -inf for all of them, gets zeros.

    Positions enter in four ways. `window`: a query attends to so many tokens on each side alone, and cost is linear in
    length. `rotary` fp32 (positions, rotary_dim), cosines then sines, turns the first dims of q and k (Su et al. 2021),
    by a token's index in its sequence or by `rotary_positions` int64 (tokens,). `distance_bias` (heads, distances) is
    added to the scores (Raffel et al. 2020; Press et al. 2022): with 2 x length - 1 distances, for any length from the
    longest sequence on, column key - query + length - 1. `position_keys` and `position_queries` (rows, heads, head_dim)
    add q . position_key and k . position_query to q . k before the scale (disentangled attention, He et al. 2021), of
    the row that `buckets` int32 (distances,) holds for the distance. The last three get gradients. With fewer queries
    than keys the last query has the last key's position.

    Returns (tokens_q, heads, head_dim) in the dtype of q; under autocast q, k and v are cast to its dtype first. Sums
    and the softmax are fp32. fp32 matmuls follow `torch.set_float32_matmul_precision`. Results and gradients are the
    same on every run; `deterministic` has no effect today, but without it a later version may give that up for speed.

    No backend needs a host-device sync: on a GPU the contents of `cu_seqlens_q` and `cu_seqlens_k` are checked under
    FASTBERT_DEBUG=1 only. The `triton` backend supports bf16, fp16 and fp32 with head_dim 32, 64, 96 or 128, positive
    scales and contiguous heads, and positions unless there is a `bias` (relative ones with head_dim 32 or 64 and
    without rotary embeddings; above 64, fp32 has no `distance_bias`, and `rotary` with tf32 only); unsupported calls
    fall back to PyTorch, with a warning in the log. The `native` backend supports bf16 and fp32 on a CPU with head_dim
    1 to 256 and positive scales; the result of a sequence, and the gradients of its q, k and v, have the same bits in
    every batch and on any number of threads. Neither has second derivatives. Raises UserError, a ValueError, that names
    the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> q, k, v = torch.randn(3, 7, 2, 32).unbind()  # 7 tokens, 2 heads
        >>> offsets = torch.tensor([0, 3, 7], dtype=torch.int32)  # of sequences with 3 and 4 tokens
        >>> ops.attention(q, k, v, offsets, offsets, 4, 4).shape
        torch.Size([7, 2, 32])
        >>> ops.attention(q, k, v, offsets, offsets, 4, 4, causal=True, window=2).shape
        torch.Size([7, 2, 32])
    """
    del deterministic
    if is_autocast_enabled(q.device) and q.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if dropout_p and dropout_key is None and cu_seqlens_q.dim() == 1 and cu_seqlens_q.shape[0] > 0:
        dropout_key = draw_keys(cu_seqlens_q.shape[0] - 1, q.device)
    arguments = AttentionArguments(
        q=q,
        k=k,
        v=v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        causal=causal,
        dropout_p=dropout_p,
        dropout_key=dropout_key.contiguous() if dropout_p and dropout_key is not None else None,
        dropout_site=dropout_site,
        bias=bias,
        scale=1 / math.sqrt(q.shape[-1]) if scale is None else scale,
        tf32=q.dtype == torch.float32 and tf32_allowed(),
        window=window,
        rotary=rotary,
        rotary_positions=rotary_positions,
        distance_bias=distance_bias,
        position_keys=position_keys,
        position_queries=position_queries,
        buckets=buckets,
    )
    tables = (bias, distance_bias, position_keys, position_queries)
    backend, direct, trains = dispatch.choose(ATTENTION, arguments, q, k, v, *tables)
    others = (cu_seqlens_q, cu_seqlens_k, dropout_key, rotary, rotary_positions, buckets)
    if direct and (backend.composite or buffers.direct(q, k, v, *tables, *others)):
        return backend.forward(arguments, False)[0]
    dispatch.refuse_forward_mode("attention")
    return _forward(*arguments, backend.name, trains)[0]


def tf32_allowed() -> bool:
    """Return whether fp32 matmuls may use tf32; compiled code is already guarded by that setting.

    From torch 2.9 on there are two settings, and reading one after the other was written is an error; this attribute
    follows both.
    """
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return torch.get_float32_matmul_precision() != "highest" if precision is None else precision == "tf32"


# The effect of `torch.compiler.assume_constant_result`, which would import the whole compiler.
tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


@custom_op.operator("fastbert::attention")
def _forward(arguments: AttentionArguments, backend: str, trains: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the rows' log-sum-exp (heads, tokens_q) fp32 in the backend's own units, and what rounding
    removed from the output, where backward needs it: (tokens_q or 0, heads, head_dim).

    With `trains`, backward may follow.
    """
    out, lse, *rest = ATTENTION.backend(backend).forward(arguments, *((trains,) if backend == "triton" else ()))
    return out, lse, rest[0] if rest else _empty_rest(arguments)


def _empty_rest(arguments: AttentionArguments, rows: int = 0) -> Tensor:
    return arguments.q.new_empty((rows, *arguments.q.shape[1:]))


@_forward.register_fake
def _(arguments: AttentionArguments, backend: str, trains: bool) -> tuple[Tensor, Tensor, Tensor]:
    q = arguments.q
    lse = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    rows = ATTENTION.backend(backend).rest_rows(arguments) if backend == "triton" and trains else 0
    return torch.empty_like(q, memory_format=torch.contiguous_format), lse, _empty_rest(arguments, rows)


@custom_op.operator("fastbert::attention_backward")
def _backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    arguments: AttentionArguments,
    backend: str,
    wanted: list[bool],
) -> list[Tensor]:
    """Return the gradients in the order of `AttentionGradients`, those that are not wanted empty."""
    saved = (out, lse, rest) if backend == "triton" else (out, lse)
    gradients = ATTENTION.backend(backend).backward(arguments, *saved, grad.contiguous(), WantedGradients(*wanted))
    return [grad.new_empty(0) if gradient is None else gradient for gradient in gradients]


@_backward.register_fake
def _(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    arguments: AttentionArguments,
    backend: str,
    wanted: list[bool],
) -> list[Tensor]:
    tables: list[Any] = [
        arguments[index] if want else None for index, want in zip(_DIFFERENTIABLE[3:], wanted, strict=True)
    ]
    return [
        grad.new_empty(0) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in [*arguments[:3], *tables]
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    custom_op.save(ctx, *output, *inputs[:-1])
    ctx.set_materialize_grads(False)


@_forward.register_autograd(setup_context=_setup_context)
def _(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    gradients: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
    if grad is not None:
        wanted = [bool(ctx.needs_input_grad[index]) for index in _DIFFERENTIABLE[3:]]
        computed = _backward(grad, *custom_op.saved(ctx), wanted)
        for index, gradient, want in zip(_DIFFERENTIABLE, computed, [True] * 3 + wanted, strict=True):
            gradients[index] = gradient if want else None
    return tuple(gradients)
