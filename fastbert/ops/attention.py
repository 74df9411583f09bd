"""Attention over packed sequences: no padding is computed, and sequences never see each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops import backend
from fastbert.ops.softmax import softmax


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
) -> Tensor:
    """softmax(Q K^T * scale + bias) V for each sequence on its own (Vaswani et al. 2017, section 3.2.1).

    q (tokens_q, heads, head_dim), k and v (tokens_k, heads, head_dim) in one floating dtype; `cu_seqlens_*` int32
    (sequences + 1,); `max_seqlen_*` host integers, at least the longest sequence; `bias` (heads, max_q, max_k) is added
    to the scores; `scale` defaults to 1 / sqrt(head_dim). With `dropout_p`, `dropout_key` int64 (sequences,) and
    `dropout_site` decide what is dropped; without keys, one a sequence is drawn on the device. Returns
    (tokens_q, heads, head_dim) in the dtype of q. The softmax is fp32 inside; a query that may see no key gets zeros.
    """
    if q.dim() != 3 or k.shape != v.shape or q.shape[1:] != k.shape[1:]:
        raise UserError(
            "q, k, v must have shape (tokens, heads, head_dim) with equal heads and head_dim, not"
            f" {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if dropout_p and dropout_key is None:
        dropout_key = draw_keys(len(cu_seqlens_q) - 1, q.device)
    return backend.select("attention", q.device)(
        q,
        k,
        v,
        (cu_seqlens_q, cu_seqlens_k),
        (max_seqlen_q, max_seqlen_k),
        causal=causal,
        dropout=(dropout_p, dropout_key, dropout_site),
        bias=bias,
        scale=1 / math.sqrt(q.shape[-1]) if scale is None else scale,
        deterministic=deterministic,
    )


def draw_keys(sequences: int, device: torch.device) -> Tensor:
    """Fresh dropout keys, int64 (sequences,), from torch's generator of the device."""
    return torch.randint(-(2**63), 2**63 - 1, (sequences,), dtype=torch.int64, device=device)


class _Reorder(torch.autograd.Function):
    """x[order] along the first axis, where the gradient is a gather too because `order` is a permutation."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        context.save_for_backward(inverse)
        return x.index_select(0, order)

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = context.saved_tensors  # type: ignore[attr-defined]
        return gradients[0].index_select(0, inverse), None, None


def _reorder(x: Tensor, order: Tensor | None, inverse: Tensor | None) -> Tensor:
    return x if order is None else _Reorder.apply(x, order, inverse)


def _token_order(starts: Tensor, lengths: Tensor, ranks: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The tokens in the order of their sequences' `ranks`, and the inverse; None, None where nothing moves."""
    if torch.equal(ranks, torch.arange(len(ranks))):
        return None, None
    moved = lengths[ranks]
    total = int(moved.sum())
    ends = moved.cumsum(0)
    shift = (starts[ranks] - (ends - moved)).repeat_interleave(moved, output_size=total)
    order = torch.arange(total) + shift
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(total)
    return order, inverse


def _eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: tuple[Tensor, Tensor],
    max_seqlen: tuple[int, int],
    *,
    causal: bool,
    dropout: tuple[float, Tensor | None, int],
    bias: Tensor | None,
    scale: float,
    deterministic: bool,
) -> Tensor:
    """Sequences of equal lengths lie side by side after a reordering, and each such group is one batched product."""
    del max_seqlen, deterministic  # eager torch needs no bound and has one order of summation
    heads, width = q.shape[1:]
    p, key, site = dropout
    starts_q, starts_k = (offsets.cpu().long() for offsets in cu_seqlens)
    lengths_q, lengths_k = starts_q.diff(), starts_k.diff()
    ranks = torch.argsort(lengths_q * (int(lengths_k.max()) + 1 if len(lengths_k) else 1) + lengths_k, stable=True)
    orders = [
        tuple(None if index is None else index.to(q.device) for index in _token_order(starts, lengths, ranks))
        for starts, lengths in ((starts_q[:-1], lengths_q), (starts_k[:-1], lengths_k))
    ]
    (order_q, inverse_q), (order_k, inverse_k) = orders
    q, k, v = _reorder(q, order_q, inverse_q), _reorder(k, order_k, inverse_k), _reorder(v, order_k, inverse_k)
    pairs, counts = torch.unique_consecutive(
        torch.stack((lengths_q[ranks], lengths_k[ranks]), dim=1), dim=0, return_counts=True
    )
    outputs = []
    first = begin_q = begin_k = 0
    for (queries, keys), count in zip(pairs.tolist(), counts.tolist()):
        rows = ranks[first : first + count]
        q_nhqd = q[begin_q : begin_q + count * queries].view(count, queries, heads, width).transpose(1, 2)
        k_nhkd = k[begin_k : begin_k + count * keys].view(count, keys, heads, width).transpose(1, 2)
        v_nhkd = v[begin_k : begin_k + count * keys].view(count, keys, heads, width).transpose(1, 2)
        scores = q_nhqd @ k_nhkd.transpose(-1, -2)
        if bias is not None:
            scores = scores * scale + bias[:, :queries, :keys].to(scores.dtype)
        probabilities = softmax(
            scores,
            scale=1.0 if bias is not None else scale,
            causal=causal,
            dropout_p=p,
            dropout_key=None if key is None else key[rows.to(key.device)],
            dropout_site=site,
        )
        outputs.append((probabilities @ v_nhkd).transpose(1, 2).reshape(count * queries, heads, width))
        first, begin_q, begin_k = first + count, begin_q + count * queries, begin_k + count * keys
    packed = torch.cat(outputs) if outputs else q[:0]
    return _reorder(packed.to(q.dtype), inverse_q, order_q)


backend.register("attention", "eager", _eager)
