"""Packed attention composed of PyTorch operations: one batched matmul per class of sequence lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.attention.arguments import AttentionArguments, AttentionGradients, WantedGradients
from fastbert.ops.attention.rotary import positions_of, rotate
from fastbert.ops.dropout.masks import attention_mask
from fastbert.ops.operation import EagerBackend
from fastbert.ops.softmax.eager import softmax_eager


class Eager(EagerBackend[AttentionArguments]):
    """Differentiable outside of compilers. It reads the offsets, so a compiler needs it as one opaque operator."""

    opaque = True

    def forward(self, arguments: AttentionArguments, with_lse: bool = True) -> tuple[Tensor, Tensor]:
        """Return the output, and zeros in place of the logarithms, which backward does not read."""
        if arguments.q.is_meta:
            # A sum, so that gradients reach what the output depends on.
            out = arguments.q + 0 * (arguments.k.sum() + arguments.v.sum())
            for table in (arguments.distance_bias, arguments.position_keys, arguments.position_queries):
                out = out if table is None else out + 0 * table.sum()
            return out.contiguous(), arguments.q.new_empty(0)
        arguments.check_offsets()
        arguments.check_positions()
        arguments = _expanded(arguments)
        sequences = _LengthGroups(arguments)
        outputs = [_token_rows(_probabilities(arguments, group) @ group.v_nhkd) for group in sequences.groups()]
        out = torch.cat(outputs) if outputs else arguments.q[:0].clone(memory_format=torch.contiguous_format)
        shape = (arguments.heads, arguments.q.shape[0]) if with_lse else (0,)
        lse = torch.zeros(shape, dtype=torch.float32, device=arguments.q.device)
        return sequences.queries.tokens_of(out.to(arguments.q.dtype)).contiguous(), lse

    def backward(
        self, arguments: AttentionArguments, out: Tensor, lse: Tensor, grad: Tensor, wanted: WantedGradients
    ) -> AttentionGradients:
        """Recompute forward; return the gradients of q, k, v and those that are wanted."""
        del out, lse
        if arguments.features:
            return self._gradients(arguments, grad, wanted)
        sequences = _LengthGroups(arguments)
        scale, bias = arguments.scale, arguments.bias
        wide = torch.promote_types(grad.dtype, torch.float32)
        grad_slots = sequences.queries.padded_slots_of(grad)
        gradients: list[tuple[Tensor, Tensor, Tensor]] = []
        dbias = None
        if bias is not None and wanted.bias:
            dbias = torch.zeros(bias.shape, dtype=wide, device=grad.device)
        for group in sequences.groups():
            n, heads, queries, width = group.q_nhqd.shape
            grad_rows = grad_slots[group.first_query : group.first_query + n * queries]
            grad_nhqd = grad_rows.view(n, queries, heads, width).transpose(1, 2)
            p = _probabilities(arguments, group, dropout=False).to(wide)
            dp = (grad_nhqd @ group.v_nhkd.transpose(-1, -2)).to(wide)
            dropped = p
            if group.dropout_key is not None:
                shape = (n, heads, queries, group.k_nhkd.shape[2])
                mask = attention_mask(shape, arguments.dropout_p, group.dropout_key, arguments.dropout_site, wide)
                dropped, dp = p * mask, dp * mask
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            if dbias is not None:
                rows, columns = min(queries, dbias.shape[1]), min(ds.shape[3], dbias.shape[2])
                dbias[:, :rows, :columns] += ds.sum(0)[:, :rows, :columns]
            ds = ds.to(grad.dtype)
            gradients.append(
                (
                    _token_rows(ds @ group.k_nhkd) * scale,
                    _token_rows(ds.transpose(-1, -2) @ group.q_nhqd) * scale,
                    _token_rows(dropped.to(grad.dtype).transpose(-1, -2) @ grad_nhqd),
                )
            )
        if not gradients:
            q, k, v = (
                torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (arguments.q, arguments.k, arguments.v)
            )
            gradients.append((q, k, v))
        dq, dk, dv = (torch.cat(rows) for rows in zip(*gradients))
        dq, dk, dv = sequences.queries.tokens_of(dq), sequences.keys.tokens_of(dk), sequences.keys.tokens_of(dv)
        if dbias is not None and bias is not None:
            dbias = dbias.to(bias.dtype)
        return AttentionGradients(dq.contiguous(), dk.contiguous(), dv.contiguous(), dbias)

    def _gradients(self, arguments: AttentionArguments, grad: Tensor, wanted: WantedGradients) -> AttentionGradients:
        """Return the gradients by PyTorch's formulas, of a forward pass that is recorded anew."""
        names = ("q", "k", "v", *(name for name, want in wanted._asdict().items() if want))
        with torch.enable_grad():
            leaves = {name: getattr(arguments, name).detach().requires_grad_() for name in names}
            out = self.forward(arguments._replace(**leaves), False)[0]
            gradients = torch.autograd.grad(  # without tokens, of nothing
                out, list(leaves.values()), grad, allow_unused=True, materialize_grads=True
            )
        return AttentionGradients(**dict(zip(names, gradients, strict=True)))


def _expanded(arguments: AttentionArguments) -> AttentionArguments:
    """Return a call without rotary tables and grouped heads: q and k turned, k and v repeated per head of q."""
    q, k, v = arguments.q, arguments.k, arguments.v
    if arguments.rotary is not None:
        positions = arguments.rotary_positions
        if positions is None:
            positions = positions_of(arguments.cu_seqlens_q, q.shape[0])
        q, k = rotate(q, arguments.rotary, positions), rotate(k, arguments.rotary, positions)
    if arguments.key_value_heads != arguments.heads:
        group = arguments.heads // arguments.key_value_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return arguments._replace(q=q, k=k, v=v, rotary=None, rotary_positions=None)


class _Gather(torch.autograd.Function):
    """x[index] along the first axis, where row t of x is read for slot `slots[t]`, whose gradient is the row's.

    Other slots hold copies that no result depends on, so the gradient is a gather too, not a scatter.
    """

    # setup_context apart from forward, as torch.func's transforms require.
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, index: Tensor, slots: Tensor) -> Tensor:
        return x.index_select(0, index)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        context.save_for_backward(inputs[2])
        context.save_for_forward(inputs[1])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = context.saved_tensors
        return gradients[0].index_select(0, slots), None, None

    @staticmethod
    def jvp(context: Any, *tangents: Tensor) -> Tensor:
        (index,) = context.saved_tensors
        return tangents[0].index_select(0, index)


class _Scatter(torch.autograd.Function):
    """The inverse, from slots to rows: x[slots], whose gradient is zero in slots without a row."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, slots: Tensor) -> Tensor:
        return x.index_select(0, slots)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        context.save_for_backward(inputs[1])
        context.save_for_forward(inputs[1])
        context.rows = inputs[0].shape[0]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slots,) = context.saved_tensors
        gradient = gradients[0].new_zeros(context.rows, *gradients[0].shape[1:])
        return gradient.index_copy(0, slots, gradients[0]), None

    @staticmethod
    def jvp(context: Any, *tangents: Tensor) -> Tensor:
        (slots,) = context.saved_tensors
        return tangents[0].index_select(0, slots)


class _SlotLayout:
    """The map between packed tokens and slots, where each sequence is padded to the width of its length class.

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
        # A padding slot reads its sequence's last token; any token would do, because its key is masked.
        inside = torch.minimum(offset, (ranked_lengths - 1).repeat_interleave(ranked_widths, output_size=self.total))
        self.index = starts[ranks].repeat_interleave(ranked_widths, output_size=self.total) + inside
        real = offset == inside
        self.slots = torch.empty(int(ranked_lengths.sum()), dtype=torch.int64)
        self.slots[self.index[real]] = real.nonzero().flatten()

    def slots_of(self, x: Tensor) -> Tensor:
        """Gather packed rows (tokens, ...) into slots (slots, ...)."""
        if self.index is None or self.slots is None:
            return x
        return _Gather.apply(x, self.index.to(x.device), self.slots.to(x.device))

    def padded_slots_of(self, x: Tensor) -> Tensor:
        """Copy packed rows into slots, with zeros in padding slots."""
        if self.slots is None:
            return x
        return x.new_zeros(self.total, *x.shape[1:]).index_copy_(0, self.slots.to(x.device), x)

    def tokens_of(self, x: Tensor) -> Tensor:
        """Gather slots (slots, ...) into packed rows (tokens, ...)."""
        return x if self.slots is None else _Scatter.apply(x, self.slots.to(x.device))


def _length_class(lengths: Tensor) -> Tensor:
    """Return the padded width of sequences: the next power of two from 16 on, 0 for an empty sequence.

    Few widths give the library few shapes to multiply; and as a width depends on the sequence's own length alone, so
    does its result.
    """
    widths = 2 ** torch.log2(lengths.clamp(min=16).double()).ceil().long()
    return torch.where(lengths == 0, 0, widths)


def _visible_keys(
    queries: Tensor, keys: Tensor, width_q: int, width_k: int, causal: bool, window: int | None
) -> Tensor | None:
    """Return the mask of key slots that query slots attend to, bool (n, 1, 1 or width_q, width_k); None for all."""
    column = torch.arange(width_k)
    if not causal and window is None:
        return None if bool((keys == width_k).all()) else (column < keys[:, None])[:, None, None]
    distance = _distances(queries, keys, width_q, width_k)
    visible = column < keys[:, None, None]
    if causal:
        visible = visible & (distance <= 0)
    if window is not None:
        visible = visible & (distance.abs() <= window)
    return visible[:, None]


def _distances(queries: Tensor, keys: Tensor, width_q: int, width_k: int) -> Tensor:
    """Return key - query of all slots, int64 (n, width_q, width_k); the last query has the position of the last key."""
    row, column = torch.arange(width_q)[:, None], torch.arange(width_k)
    return column - row - (keys - queries)[:, None, None]


def _distance_columns(distances: Tensor, count: int) -> Tensor:
    """Return the columns of distances in a table of `count`, those of padding slots at its ends; (1, ...) if all
    sequences have the same."""
    columns = (distances + count // 2).clamp(0, count - 1)
    return columns[:1] if bool((columns == columns[:1]).all()) else columns


@dataclass(frozen=True)
class _LengthGroup:
    """The n sequences of one pair of length classes: the tensors of their slots, and what they share."""

    q_nhqd: Tensor
    k_nhkd: Tensor
    v_nhkd: Tensor
    bias_hqk: Tensor | None
    mask: Tensor | None
    dropout_key: Tensor | None
    first_query: int
    first_key: int
    distances: Tensor | None = None
    """key - query, int64 (n, queries, keys), if the call reads it."""

    def scores(self, arguments: AttentionArguments) -> Tensor:
        """Return the scores, scaled if anything is added behind the scale (`is_scaled`)."""
        scores = self.q_nhqd @ self.k_nhkd.transpose(-1, -2)
        if self.distances is not None and arguments.buckets is not None:
            columns = _distance_columns(self.distances, len(arguments.buckets)).to(scores.device)
            rows = arguments.buckets.long()[columns].unsqueeze(1).expand(scores.shape)
            if arguments.position_keys is not None:
                by_position = self.q_nhqd @ arguments.position_keys.permute(1, 2, 0)
                scores = scores + by_position.gather(-1, rows)
            if arguments.position_queries is not None:
                by_position = self.k_nhkd @ arguments.position_queries.permute(1, 2, 0)
                scores = scores + by_position.gather(-1, rows.transpose(-1, -2)).transpose(-1, -2)
        if not self.is_scaled(arguments):
            return scores
        scores = scores * arguments.scale
        if self.bias_hqk is not None:
            scores = scores + self.bias_hqk.to(scores.dtype)
        if self.distances is not None and arguments.distance_bias is not None:
            columns = _distance_columns(self.distances, arguments.distance_bias.shape[1]).to(scores.device)
            scores = scores + arguments.distance_bias[:, columns].transpose(0, 1).to(scores.dtype)
        return scores

    def is_scaled(self, arguments: AttentionArguments) -> bool:
        """Return whether `scores` are scaled."""
        return self.bias_hqk is not None or arguments.distance_bias is not None


class _LengthGroups:
    """A call's sequences grouped by length class, and the layout of their slots."""

    def __init__(self, arguments: AttentionArguments) -> None:
        starts_q, starts_k = arguments.cu_seqlens_q.cpu().long(), arguments.cu_seqlens_k.cpu().long()
        self.lengths_q, self.lengths_k = starts_q.diff(), starts_k.diff()
        self.widths_q, self.widths_k = _length_class(self.lengths_q), _length_class(self.lengths_k)
        order = self.widths_q * (int(self.widths_k.max()) + 1 if len(self.widths_k) else 1) + self.widths_k
        self.ranks = torch.argsort(order, stable=True)
        self.queries = _SlotLayout(starts_q[:-1], self.lengths_q, self.widths_q, self.ranks)
        self.keys = _SlotLayout(starts_k[:-1], self.lengths_k, self.widths_k, self.ranks)
        self.counts = torch.unique_consecutive(order[self.ranks], return_counts=True)[1].tolist()
        self.arguments = arguments

    def groups(self) -> Iterator[_LengthGroup]:
        """Yield the groups in the order of their slots."""
        arguments = self.arguments
        heads, head_dim = arguments.q.shape[1:]
        q, k, v = self.queries.slots_of(arguments.q), self.keys.slots_of(arguments.k), self.keys.slots_of(arguments.v)
        first = 0
        for count in self.counts:
            rows = self.ranks[first : first + count]
            width_q, width_k = int(self.widths_q[rows[0]]), int(self.widths_k[rows[0]])
            first_query, first_key = int(self.queries.begins[first]), int(self.keys.begins[first])

            def slots(x: Tensor, begin: int, width: int, count: int = count) -> Tensor:
                return x[begin : begin + count * width].view(count, width, heads, head_dim).transpose(1, 2)

            sizes = (self.lengths_q[rows], self.lengths_k[rows], width_q, width_k)
            mask = _visible_keys(*sizes, arguments.causal, arguments.window)
            reads_distances = arguments.distance_bias is not None or arguments.buckets is not None
            bias, key = arguments.bias, arguments.dropout_key
            if bias is not None:
                padding = (0, max(width_k - bias.shape[2], 0), 0, max(width_q - bias.shape[1], 0))
                bias = F.pad(bias, padding)[:, :width_q, :width_k]
            yield _LengthGroup(
                slots(q, first_query, width_q),
                slots(k, first_key, width_k),
                slots(v, first_key, width_k),
                bias,
                None if mask is None else mask.to(arguments.q.device),
                None if key is None else key[rows.to(key.device)],
                first_query,
                first_key,
                _distances(*sizes) if reads_distances else None,
            )
            first += count


def _probabilities(arguments: AttentionArguments, group: _LengthGroup, *, dropout: bool = True) -> Tensor:
    scale = 1.0 if group.is_scaled(arguments) else arguments.scale
    p, key = (arguments.dropout_p, group.dropout_key) if dropout else (0.0, None)
    return softmax_eager(group.scores(arguments), group.mask, scale, p, key, arguments.dropout_site)


def _token_rows(x_nhqd: Tensor) -> Tensor:
    return x_nhqd.transpose(1, 2).flatten(0, 1)
