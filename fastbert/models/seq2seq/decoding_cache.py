"""Caches of keys and values for generation, one token at a time.

All rows have the same number of generated tokens, so their keys are in one tensor per layer, (rows, slots, heads,
head_dim), with room for more. Packed attention reads it in place: the free slots between rows form sequences of keys
without queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import ops
from fastbert.models.modules import SelfAttention
from fastbert.models.similarity import PackedAttention, similarity_of
from fastbert.packing import PackedBatch


class WrittenKeys:
    """The keys and values of self-attention: of each row's prefix, if it has one, and of its generated tokens."""

    def __init__(self, layers: int, room: int, prefix: PackedBatch | None, rows: int, like: Tensor) -> None:
        """Allocate `room` tokens per row after the prefixes, which end at the same slot, in the dtype and on the device
        of `like` (..., heads, head_dim)."""
        self.before: int = 0 if prefix is None else prefix.max_seqlen
        self.room = room
        self.written: int = 0
        self._offsets: tuple[Tensor, Tensor] | None = None
        self.starts: Tensor = torch.zeros(rows, dtype=torch.int64, device=like.device)
        if prefix is not None:
            self.starts = self.before - prefix.cu_seqlens.diff().long()
        self.shortest: int = 0 if prefix is None else int((self.before - self.starts).min())
        shape = (rows, self.before + room, *like.shape[-2:])
        self.keys: list[Tensor] = [like.new_empty(shape) for _ in range(layers)]
        self.values: list[Tensor] = [like.new_empty(shape) for _ in range(layers)]

    def keep_prefix(self, layer: int, k: Tensor, v: Tensor, prefix: PackedBatch) -> None:
        """Store the packed keys and values (tokens, heads, head_dim) of a layer's prefixes."""
        slots = self.before + self.room
        indices = prefix.sequence_ids * slots + self.starts[prefix.sequence_ids] + prefix.offsets_in_sequence
        for cache, new in ((self.keys, k), (self.values, v)):
            cache[layer].flatten(0, 1).index_copy_(0, indices, new)

    def advance(self) -> None:
        """Make room for one more token per row."""
        self.written += 1
        self._offsets = None

    def _cu_seqlens(self) -> tuple[Tensor, Tensor]:
        """Return cu_seqlens of the newest tokens' queries and of all slots: sequences of a row's visible slots, between
        those of free slots, which have no queries."""
        if self._offsets is None:
            rows, slots = len(self.starts), self.before + self.room
            row = torch.arange(rows, device=self.starts.device) * slots
            keys = torch.empty(2 * rows + 2, dtype=torch.int32, device=self.starts.device)
            keys[0], keys[-1] = 0, rows * slots
            keys[1:-1:2] = row + self.starts
            keys[2::2] = row + (self.before + self.written)
            queries = torch.arange(2 * rows + 2, dtype=torch.int32, device=self.starts.device) // 2
            self._offsets = queries, keys
        return self._offsets

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, similarity: PackedAttention | None = None) -> Tensor:
        """Cache the newest tokens' keys and values; return their self-attention, (rows, heads, head_dim) each.
        `similarity` replaces attention by the dot product."""
        slot = self.before + self.written - 1
        keys, values = self.keys[layer], self.values[layer]
        keys[:, slot], values[:, slot] = k, v
        attention = similarity or ops.attention
        # Of a row with its generated tokens, or of the free slots between two rows.
        longest = max(slot + 1, self.before + self.room - self.written - self.shortest)
        return attention(q, keys.flatten(0, 1), values.flatten(0, 1), *self._cu_seqlens(), 1, longest)

    def select(self, rows: Tensor, *, same_prefixes: bool) -> None:
        """Keep these rows, int64; with `same_prefixes` only the generated tokens are moved."""
        if not same_prefixes:
            self.starts = self.starts.index_select(0, rows)
            self.keys = [cache.index_select(0, rows) for cache in self.keys]
            self.values = [cache.index_select(0, rows) for cache in self.values]
            return
        written = slice(self.before, self.before + self.written)
        for cache in (*self.keys, *self.values):
            cache[:, written] = cache[:, written].index_select(0, rows)


class SourceKeys:
    """The keys and values of cross-attention, packed: one copy per source, shared by all its rows."""

    def __init__(self, layers: int, source: PackedBatch) -> None:
        self.layer_tensors: list[tuple[Tensor, Tensor]] = []
        self.layers = layers
        self.cu_seqlens: Tensor = source.cu_seqlens
        self.max_seqlen: int = source.max_seqlen
        self.set_readers(1)

    def keep(self, k: Tensor, v: Tensor) -> None:
        """Append the keys and values of the next layer, (source tokens, heads, head_dim) each."""
        self.layer_tensors.append((k, v))

    def set_readers(self, rows: int) -> None:
        """Set the number of adjacent rows per source."""
        sources = len(self.cu_seqlens)
        self.readers = rows
        self.of_queries: Tensor = torch.arange(sources, dtype=torch.int32, device=self.cu_seqlens.device) * rows

    def attend(self, layer: int, q: Tensor, similarity: PackedAttention | None = None) -> Tensor:
        """Return cross-attention of rows (rows, heads, head_dim) to all tokens of their sources."""
        k, v = self.layer_tensors[layer]
        attention = similarity or ops.attention
        return attention(q, k, v, self.of_queries, self.cu_seqlens, self.readers, self.max_seqlen)

    def select(self, sources: Tensor) -> None:
        """Keep these sources, int64."""
        lengths = self.cu_seqlens.diff().long()[sources]
        ends = lengths.cumsum(0)
        total = int(ends[-1]) if len(ends) else 0
        starts = self.cu_seqlens[:-1].long()[sources] - (ends - lengths)
        indices = torch.arange(total, device=ends.device) + starts.repeat_interleave(lengths, output_size=total)
        self.layer_tensors = [(k.index_select(0, indices), v.index_select(0, indices)) for k, v in self.layer_tensors]
        self.cu_seqlens = torch.cat((ends.new_zeros(1), ends)).to(torch.int32)
        self.set_readers(self.readers)


class Writing:
    """The attention of newly generated tokens to the caches of every layer."""

    def __init__(self, written: WrittenKeys, source: SourceKeys | None = None) -> None:
        self.written = written
        self.source = source

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, similarity: PackedAttention | None = None) -> Tensor:
        """Return self-attention of the newest tokens."""
        return self.written.attend(layer, q, k, v, similarity)

    def cross_attend(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        """Return cross-attention of the newest tokens."""
        assert self.source is not None
        return self.source.attend(layer, q, similarity_of(attention))


def one_token_each(tokens: Tensor, position: Tensor | int, segment: int) -> PackedBatch:
    """Return a packed batch of one token per row, int64 (rows,), with one position for all or one for each."""
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
