"""Attention over packed sequences: no padding is computed, and sequences never see each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

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


class _Gather(torch.autograd.Function):
    """x[index] along the first axis, where row t of x is read for slot `slots[t]` and its gradient is that slot's.

    Other slots hold copies that nothing depends on, so the gradient is a gather too, not a scatter.
    """

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor, index: Tensor, slots: Tensor) -> Tensor:
        context.save_for_backward(slots)
        return x.index_select(0, index)

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = context.saved_tensors  # type: ignore[attr-defined]
        return gradients[0].index_select(0, slots), None, None


class _Scatter(torch.autograd.Function):
    """The way back from slots to rows: x[slots], whose gradient is zero in slots that no row has."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor, slots: Tensor) -> Tensor:
        context.save_for_backward(slots)
        context.rows = len(x)  # type: ignore[attr-defined]
        return x.index_select(0, slots)

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        (slots,) = context.saved_tensors  # type: ignore[attr-defined]
        gradient = gradients[0].new_zeros(context.rows, *gradients[0].shape[1:])  # type: ignore[attr-defined]
        return gradient.index_copy_(0, slots, gradients[0]), None


class _Layout:
    """Where the tokens of packed sequences lie when each sequence has a slot row as wide as its length class.

    `begins[i]` is the first slot of the i-th sequence in the order of `ranks`, `index` the token that a slot reads,
    `slots` the slot of a token; both are None when slots and tokens are the same.
    """

    def __init__(self, starts: Tensor, lengths: Tensor, widths: Tensor, ranks: Tensor) -> None:
        ranked_widths, ranked_lengths = widths[ranks], lengths[ranks]
        self.total = int(ranked_widths.sum())
        ends = ranked_widths.cumsum(0)
        self.begins = ends - ranked_widths
        self.index: Tensor | None = None
        self.slots: Tensor | None = None
        if torch.equal(ranks, torch.arange(len(ranks))) and torch.equal(ranked_lengths, ranked_widths):
            return
        offset = torch.arange(self.total) - self.begins.repeat_interleave(ranked_widths, output_size=self.total)
        # A slot behind the end of its sequence reads the last token: any would do, its key is masked.
        inside = torch.minimum(offset, (ranked_lengths - 1).repeat_interleave(ranked_widths, output_size=self.total))
        self.index = starts[ranks].repeat_interleave(ranked_widths, output_size=self.total) + inside
        real = offset == inside
        self.slots = torch.empty(int(ranked_lengths.sum()), dtype=torch.int64)
        self.slots[self.index[real]] = real.nonzero().flatten()

    def spread(self, x: Tensor) -> Tensor:
        """Packed rows (tokens, ...) -> slot rows (slots, ...)."""
        if self.index is None or self.slots is None:
            return x
        return _Gather.apply(x, self.index.to(x.device), self.slots.to(x.device))

    def collect(self, x: Tensor) -> Tensor:
        """Slot rows (slots, ...) -> packed rows (tokens, ...)."""
        return x if self.slots is None else _Scatter.apply(x, self.slots.to(x.device))


def _length_class(lengths: Tensor) -> Tensor:
    """The width that a sequence is computed at: the power of two from 16 on that holds it; nothing for an empty one.

    A few widths only, so that the library below meets few shapes of products; and a function of the sequence's own
    length, so that a result does not depend on the batch.
    """
    widths = 2 ** torch.log2(lengths.clamp(min=16).double()).ceil().long()
    return torch.where(lengths == 0, 0, widths)


def _visible(queries: Tensor, keys: Tensor, wide_q: int, wide_k: int, causal: bool) -> Tensor | None:
    """Which key slots a query slot may see, bool (n, 1, 1 or wide_q, wide_k); None for all."""
    column = torch.arange(wide_k)
    if not causal:
        return None if bool((keys == wide_k).all()) else (column < keys[:, None])[:, None, None]
    row = torch.arange(wide_q)[:, None]
    reach = row + (keys - queries)[:, None, None]
    return ((column <= reach) & (column < keys[:, None, None]))[:, None]


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
    """Sequences of one length class lie side by side in slots, and each class is one batched product."""
    del max_seqlen, deterministic  # eager torch needs no bound and has one order of summation
    heads, width = q.shape[1:]
    p, key, site = dropout
    tokens_q = len(q)
    starts_q, starts_k = (offsets.cpu().long() for offsets in cu_seqlens)
    lengths_q, lengths_k = starts_q.diff(), starts_k.diff()
    widths_q, widths_k = _length_class(lengths_q), _length_class(lengths_k)
    order = widths_q * (int(widths_k.max()) + 1 if len(widths_k) else 1) + widths_k
    ranks = torch.argsort(order, stable=True)
    layout_q = _Layout(starts_q[:-1], lengths_q, widths_q, ranks)
    layout_k = _Layout(starts_k[:-1], lengths_k, widths_k, ranks)
    q, k, v = layout_q.spread(q), layout_k.spread(k), layout_k.spread(v)
    _, counts = torch.unique_consecutive(order[ranks], return_counts=True)
    outputs = []
    first = 0
    for count in counts.tolist():
        rows = ranks[first : first + count]
        wide_q, wide_k = int(widths_q[rows[0]]), int(widths_k[rows[0]])
        begin_q, begin_k = int(layout_q.begins[first]), int(layout_k.begins[first])
        q_nhqd = q[begin_q : begin_q + count * wide_q].view(count, wide_q, heads, width).transpose(1, 2)
        k_nhkd = k[begin_k : begin_k + count * wide_k].view(count, wide_k, heads, width).transpose(1, 2)
        v_nhkd = v[begin_k : begin_k + count * wide_k].view(count, wide_k, heads, width).transpose(1, 2)
        scores = q_nhqd @ k_nhkd.transpose(-1, -2)
        if bias is not None:
            room = (0, max(wide_k - bias.shape[2], 0), 0, max(wide_q - bias.shape[1], 0))
            scores = scores * scale + F.pad(bias, room)[:, :wide_q, :wide_k].to(scores.dtype)
        mask = _visible(lengths_q[rows], lengths_k[rows], wide_q, wide_k, causal)
        probabilities = softmax(
            scores,
            None if mask is None else mask.to(q.device),
            scale=1.0 if bias is not None else scale,
            dropout_p=p,
            dropout_key=None if key is None else key[rows.to(key.device)],
            dropout_site=site,
        )
        outputs.append((probabilities @ v_nhkd).transpose(1, 2).reshape(count * wide_q, heads, width))
        first += count
    packed = torch.cat(outputs) if outputs else q[:tokens_q]
    return layout_q.collect(packed.to(q.dtype))


backend.register("attention", "eager", _eager)
