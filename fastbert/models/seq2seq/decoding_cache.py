"""Keys and values that were computed once, for the tokens that are written one by one.

All rows have written the same number of tokens, so theirs lie in one tensor a layer, (rows, slots, heads, head_dim),
with room for those to come. Packed attention reads it in place: what a row has not filled yet is, between the rows, a
sequence of keys that no query belongs to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import ops
from fastbert.models.bert.modules import SelfAttention
from fastbert.packing import PackedBatch


class WrittenKeys:
    """The keys and values of self-attention: of each row's prefix, if it has one, and of what it has written."""

    def __init__(self, layers: int, room: int, prefix: PackedBatch | None, rows: int, like: Tensor) -> None:
        """Room for `room` tokens a row behind the prefixes, which end at the same slot; `like` (..., heads, head_dim)
        has the dtype and device of what will be kept."""
        self.before = 0 if prefix is None else prefix.max_seqlen
        self.room, self.written = room, 0
        self.starts = torch.zeros(rows, dtype=torch.int64, device=like.device)
        if prefix is not None:
            self.starts = self.before - prefix.cu_seqlens.diff().long()
        self.shortest = 0 if prefix is None else int((self.before - self.starts).min())
        shape = (rows, self.before + room, *like.shape[-2:])
        self.keys = [like.new_empty(shape) for _ in range(layers)]
        self.values = [like.new_empty(shape) for _ in range(layers)]

    def keep_prefix(self, layer: int, k: Tensor, v: Tensor, prefix: PackedBatch) -> None:
        """Put the packed keys and values (tokens, heads, head_dim) of a layer before what will be written."""
        slots = self.before + self.room
        places = prefix.sequence_ids * slots + self.starts[prefix.sequence_ids] + prefix.offsets_in_sequence
        for kept, new in ((self.keys, k), (self.values, v)):
            kept[layer].flatten(0, 1).index_copy_(0, places, new)

    def advance(self) -> None:
        """Make place for one more token of each row."""
        self.written += 1
        rows, slots = len(self.starts), self.before + self.room
        row = torch.arange(rows, device=self.starts.device) * slots
        bounds = torch.empty(2 * rows + 2, dtype=torch.int32, device=self.starts.device)
        bounds[0], bounds[-1] = 0, rows * slots
        bounds[1:-1:2] = row + self.starts
        bounds[2::2] = row + (self.before + self.written)
        self.of_keys = bounds
        self.of_queries = torch.arange(2 * rows + 2, dtype=torch.int32, device=self.starts.device) // 2
        # Of a row with what it has written, or of what lies between two rows.
        self.longest = max(self.before + self.written, slots - self.written - self.shortest)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Self-attention of the newest token of each row, (rows, heads, head_dim) each, whose keys are kept."""
        slot = self.before + self.written - 1
        keys, values = self.keys[layer], self.values[layer]
        keys[:, slot], values[:, slot] = k, v
        return ops.attention(
            q, keys.flatten(0, 1), values.flatten(0, 1), self.of_queries, self.of_keys, 1, self.longest
        )

    def select(self, rows: Tensor, *, same_prefixes: bool) -> None:
        """Go on with these rows, int64; where as many rows keep their `same_prefixes`, only what is written moves."""
        if not same_prefixes:
            self.starts = self.starts.index_select(0, rows)
            self.keys = [one.index_select(0, rows) for one in self.keys]
            self.values = [one.index_select(0, rows) for one in self.values]
            return
        written = slice(self.before, self.before + self.written)
        for one in (*self.keys, *self.values):
            one[:, written] = one[:, written].index_select(0, rows)


class SourceKeys:
    """The keys and values of cross-attention: packed, once a source, whatever the number of rows that read it."""

    def __init__(self, layers: int, source: PackedBatch) -> None:
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.layers = layers
        self.cu_seqlens, self.max_seqlen = source.cu_seqlens, source.max_seqlen
        self.set_readers(1)

    def keep(self, k: Tensor, v: Tensor) -> None:
        """Add the next layer's, (source tokens, heads, head_dim) each."""
        self.kept.append((k, v))

    def set_readers(self, rows: int) -> None:
        """Say how many neighbouring rows read each source."""
        sources = len(self.cu_seqlens)
        self.readers = rows
        self.of_queries = torch.arange(sources, dtype=torch.int32, device=self.cu_seqlens.device) * rows

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Cross-attention of rows (rows, heads, head_dim), each of which reads all of its source."""
        k, v = self.kept[layer]
        return ops.attention(q, k, v, self.of_queries, self.cu_seqlens, self.readers, self.max_seqlen)

    def select(self, sources: Tensor) -> None:
        """Go on with these sources, int64, alone."""
        lengths = self.cu_seqlens.diff().long()[sources]
        ends = lengths.cumsum(0)
        total = int(ends[-1]) if len(ends) else 0
        begins = self.cu_seqlens[:-1].long()[sources] - (ends - lengths)
        places = torch.arange(total, device=ends.device) + begins.repeat_interleave(lengths, output_size=total)
        self.kept = [(k.index_select(0, places), v.index_select(0, places)) for k, v in self.kept]
        self.cu_seqlens = torch.cat((ends.new_zeros(1), ends)).to(torch.int32)
        self.set_readers(self.readers)


class Writing:
    """What the queries of newly written tokens see, in every layer."""

    def __init__(self, written: WrittenKeys, source: SourceKeys | None = None) -> None:
        self.written, self.source = written, source

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.written.attend(layer, q, k, v)

    def cross_attend(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        assert self.source is not None
        return self.source.attend(layer, q)


def one_token_each(tokens: Tensor, position: Tensor | int, segment: int) -> PackedBatch:
    """A packed batch of one token a row, int64 (rows,), all at one position or each at its own."""
    rows = torch.arange(len(tokens) + 1, dtype=torch.int32, device=tokens.device)
    positions = torch.full_like(tokens, position) if isinstance(position, int) else position
    return PackedBatch(
        input_ids=tokens,
        token_type_ids=torch.full_like(tokens, segment),
        position_ids=positions,
        sequence_ids=rows[:-1].long(),
        cu_seqlens=rows,
        max_seqlen=1,
    )
