"""Packed attention in plain torch: sequences of one length class lie side by side, and each class is one product."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.attention_problem import AttentionProblem
from fastbert.ops.softmax import softmax


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


def attention(problem: AttentionProblem) -> Tensor:
    """Sequences of one length class lie side by side in slots, and each class is one batched product."""
    q, k, v, bias, scale, causal = problem.q, problem.k, problem.v, problem.bias, problem.scale, problem.causal
    heads, width = q.shape[1:]
    p, key, site = problem.dropout_p, problem.dropout_key, problem.dropout_site
    tokens_q = len(q)
    starts_q, starts_k = problem.cu_seqlens_q.cpu().long(), problem.cu_seqlens_k.cpu().long()
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
        mask = _visible(lengths_q[rows], lengths_k[rows], wide_q, wide_k, causal)
        mask = None if mask is None else mask.to(q.device)
        if bias is not None:
            room = (0, max(wide_k - bias.shape[2], 0), 0, max(wide_q - bias.shape[1], 0))
            added = F.pad(bias, room)[:, :wide_q, :wide_k]
            scores = scores * scale + added.to(scores.dtype)
            open_keys = added != -math.inf
            mask = open_keys if mask is None else mask & open_keys
        probabilities = softmax(
            scores,
            mask,
            scale=1.0 if bias is not None else scale,
            dropout_p=p,
            dropout_key=None if key is None else key[rows.to(key.device)],
            dropout_site=site,
        )
        outputs.append((probabilities @ v_nhkd).transpose(1, 2).reshape(count * wide_q, heads, width))
        first += count
    packed = torch.cat(outputs) if outputs else q[:tokens_q]
    return layout_q.collect(packed.to(q.dtype))


def gradients(
    problem: AttentionProblem, grad: Tensor, bias_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and of the bias if asked for, by computing the forward pass again."""
    leaves = [x.detach().requires_grad_() for x in (problem.q, problem.k, problem.v)]
    bias = problem.bias
    if bias is not None and bias_gradient:
        bias = bias.detach().requires_grad_()
        leaves.append(bias)
    with torch.enable_grad():
        out = attention(replace(problem, q=leaves[0], k=leaves[1], v=leaves[2], bias=bias))
        found = torch.autograd.grad(out, leaves, grad.to(out.dtype), materialize_grads=True)
    dq, dk, dv, *rest = (gradient.contiguous() for gradient in found)
    return dq, dk, dv, rest[0] if rest else None
