"""Packed attention in plain torch: sequences of one length class lie side by side, and each class is one product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.attention.arguments import AttentionProblem
from fastbert.ops.dropout.masks import attention_mask
from fastbert.ops.softmax.eager import softmax_eager


class _Gather(torch.autograd.Function):
    """x[index] along the first axis, where row t of x is read for slot `slots[t]` and its gradient is that slot's.

    Other slots hold copies that nothing depends on, so the gradient is a gather too, not a scatter.
    """

    # Apart from forward, so that torch.func's transforms take it.
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, index: Tensor, slots: Tensor) -> Tensor:
        return x.index_select(0, index)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        context.save_for_backward(inputs[2])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = context.saved_tensors
        return gradients[0].index_select(0, slots), None, None


class _Scatter(torch.autograd.Function):
    """The way back from slots to rows: x[slots], whose gradient is zero in slots that no row has."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, slots: Tensor) -> Tensor:
        return x.index_select(0, slots)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        context.save_for_backward(inputs[1])
        context.rows = inputs[0].shape[0]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slots,) = context.saved_tensors
        gradient = gradients[0].new_zeros(context.rows, *gradients[0].shape[1:])
        return gradient.index_copy(0, slots, gradients[0]), None


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

    def place(self, x: Tensor) -> Tensor:
        """Packed rows -> slot rows, zero in slots that no token has."""
        if self.slots is None:
            return x
        return x.new_zeros(self.total, *x.shape[1:]).index_copy_(0, self.slots.to(x.device), x)

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


@dataclass(frozen=True)
class _Class:
    """Sequences of one pair of length classes: n of them, with their slots' tensors and what is common to them."""

    q_nhqd: Tensor
    k_nhkd: Tensor
    v_nhkd: Tensor
    bias_hqk: Tensor | None
    mask: Tensor | None
    key: Tensor | None
    begin_q: int
    begin_k: int

    def scores(self, scale: float) -> Tensor:
        scores = self.q_nhqd @ self.k_nhkd.transpose(-1, -2)
        return scores if self.bias_hqk is None else scores * scale + self.bias_hqk.to(scores.dtype)


class _Packed:
    """The classes of a problem's sequences, and where their slots lie."""

    def __init__(self, problem: AttentionProblem) -> None:
        starts_q, starts_k = problem.cu_seqlens_q.cpu().long(), problem.cu_seqlens_k.cpu().long()
        self.lengths_q, self.lengths_k = starts_q.diff(), starts_k.diff()
        self.widths_q, self.widths_k = _length_class(self.lengths_q), _length_class(self.lengths_k)
        order = self.widths_q * (int(self.widths_k.max()) + 1 if len(self.widths_k) else 1) + self.widths_k
        self.ranks = torch.argsort(order, stable=True)
        self.queries = _Layout(starts_q[:-1], self.lengths_q, self.widths_q, self.ranks)
        self.keys = _Layout(starts_k[:-1], self.lengths_k, self.widths_k, self.ranks)
        self.counts = torch.unique_consecutive(order[self.ranks], return_counts=True)[1].tolist()
        self.problem = problem

    def classes(self) -> Iterator[_Class]:
        problem = self.problem
        heads, width = problem.q.shape[1:]
        q, k, v = self.queries.spread(problem.q), self.keys.spread(problem.k), self.keys.spread(problem.v)
        first = 0
        for count in self.counts:
            rows = self.ranks[first : first + count]
            wide_q, wide_k = int(self.widths_q[rows[0]]), int(self.widths_k[rows[0]])
            begin_q, begin_k = int(self.queries.begins[first]), int(self.keys.begins[first])

            def slots(x: Tensor, begin: int, wide: int, count: int = count) -> Tensor:
                return x[begin : begin + count * wide].view(count, wide, heads, width).transpose(1, 2)

            mask = _visible(self.lengths_q[rows], self.lengths_k[rows], wide_q, wide_k, problem.causal)
            mask = None if mask is None else mask.to(problem.q.device)
            bias, key = problem.bias, problem.dropout_key
            if bias is not None:
                room = (0, max(wide_k - bias.shape[2], 0), 0, max(wide_q - bias.shape[1], 0))
                bias = F.pad(bias, room)[:, :wide_q, :wide_k]
            yield _Class(
                slots(q, begin_q, wide_q),
                slots(k, begin_k, wide_k),
                slots(v, begin_k, wide_k),
                bias,
                mask,
                None if key is None else key[rows.to(key.device)],
                begin_q,
                begin_k,
            )
            first += count


def _probabilities(problem: AttentionProblem, part: _Class, *, dropped: bool = True) -> Tensor:
    scale = 1.0 if part.bias_hqk is not None else problem.scale
    p, key = (problem.dropout_p, part.key) if dropped else (0.0, None)
    return softmax_eager(part.scores(problem.scale), part.mask, scale, p, key, problem.dropout_site)


def _as_rows(x_nhqd: Tensor) -> Tensor:
    return x_nhqd.transpose(1, 2).flatten(0, 1)


def attention(problem: AttentionProblem) -> Tensor:
    """Sequences of one length class lie side by side in slots, and each class is one batched product."""
    packed = _Packed(problem)
    outputs = [_as_rows(_probabilities(problem, part) @ part.v_nhkd) for part in packed.classes()]
    out = torch.cat(outputs) if outputs else problem.q[:0].clone(memory_format=torch.contiguous_format)
    return packed.queries.collect(out.to(problem.q.dtype))


def gradients(
    problem: AttentionProblem, grad: Tensor, bias_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and of the bias if asked for: the forward pass again, then the chain rule by hand."""
    packed = _Packed(problem)
    scale, p = problem.scale, problem.dropout_p
    wide = torch.promote_types(grad.dtype, torch.float32)
    grad_slots = packed.queries.place(grad)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    dbias = None
    if problem.bias is not None and bias_gradient:
        dbias = torch.zeros(problem.bias.shape, dtype=wide, device=grad.device)
    for part in packed.classes():
        n, heads, queries, width = part.q_nhqd.shape
        grad_nhqd = grad_slots[part.begin_q : part.begin_q + n * queries].view(n, queries, heads, width).transpose(1, 2)
        whole = _probabilities(problem, part, dropped=False).to(wide)
        dp = (grad_nhqd @ part.v_nhkd.transpose(-1, -2)).to(wide)
        kept = whole
        if part.key is not None:
            shape = (n, heads, queries, part.k_nhkd.shape[2])
            mask = attention_mask(shape, p, part.key, problem.dropout_site, wide)
            kept, dp = whole * mask, dp * mask
        ds = whole * (dp - (whole * dp).sum(-1, keepdim=True))
        if dbias is not None:
            rows, columns = min(queries, dbias.shape[1]), min(ds.shape[3], dbias.shape[2])
            dbias[:, :rows, :columns] += ds.sum(0)[:, :rows, :columns]
        ds = ds.to(grad.dtype)
        found.append(
            (
                _as_rows(ds @ part.k_nhkd) * scale,
                _as_rows(ds.transpose(-1, -2) @ part.q_nhqd) * scale,
                _as_rows(kept.to(grad.dtype).transpose(-1, -2) @ grad_nhqd),
            )
        )
    if not found:
        dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (problem.q, problem.k, problem.v))
        found.append((dq, dk, dv))
    dq, dk, dv = (torch.cat(parts) for parts in zip(*found))
    dq, dk, dv = packed.queries.collect(dq), packed.keys.collect(dk), packed.keys.collect(dv)
    if dbias is not None:
        assert problem.bias is not None
        dbias = dbias.to(problem.bias.dtype)
    return dq.contiguous(), dk.contiguous(), dv.contiguous(), dbias
