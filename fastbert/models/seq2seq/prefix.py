"""One stack under a prefix mask (Dong et al. 2019): source tokens see the source, target tokens also the targets before
them. Packed, the mask is two calls of attention, and nothing is computed for pairs that it forbids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastbert import ops
from fastbert.models.bert.modules import SelfAttention
from fastbert.models.seq2seq.decoding_cache import WrittenKeys
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.packing import PackedBatch


@dataclass(frozen=True)
class PrefixRows:
    """Sources and their targets as one batch: all source tokens, then all target tokens.

    So the queries of either call lie side by side; only the keys of targets have to be brought into order.
    """

    batch: PackedBatch
    """The tokens in that order; `sequence_ids`, positions and offsets as in `source target`. `cu_seqlens` counts the
    tokens of both, which are not side by side."""
    offsets: Tensor
    """Each token's distance from the first of its sequence, int64 (tokens,)."""
    sources: int
    """Tokens of all sources."""
    cu_sources: Tensor
    cu_targets: Tensor
    longest: tuple[int, int, int]
    """Tokens of the longest source, of the longest target, and at least of the longest of both together."""
    order: Tensor
    """Where the tokens of each sequence are, int64 (tokens,)."""


def prefix_rows(source: PackedBatch, target: PackedBatch) -> PrefixRows:
    """Join sources (segment 0) and what is written of their targets (segment 1), position by position."""
    lengths = source.cu_seqlens.diff().long()
    offsets = torch.cat((source.offsets_in_sequence, target.offsets_in_sequence + lengths[target.sequence_ids]))
    sequences = torch.cat((source.sequence_ids, target.sequence_ids))
    cu_seqlens = source.cu_seqlens + target.cu_seqlens
    # Counts up to the number of tokens: where each belongs, and so which belongs where.
    places = cu_seqlens[sequences].long() + offsets
    order = torch.empty_like(places).index_copy_(0, places, torch.arange(len(places), device=places.device))
    batch = PackedBatch(
        input_ids=torch.cat((source.input_ids, target.input_ids)),
        token_type_ids=torch.cat((source.token_type_ids, torch.ones_like(target.token_type_ids))),
        position_ids=torch.cat((source.position_ids, offsets[source.num_tokens :])),
        sequence_ids=sequences,
        cu_seqlens=cu_seqlens,
        max_seqlen=source.max_seqlen + target.max_seqlen,
        dropout_key=source.dropout_key,
    )
    longest = (source.max_seqlen, target.max_seqlen, batch.max_seqlen)
    return PrefixRows(batch, offsets, source.num_tokens, source.cu_seqlens, target.cu_seqlens, longest, order)


class PrefixTeacherForcing:
    """Sources that see themselves, and targets that are known and see what comes before."""

    def __init__(self, rows: PrefixRows, batch: LayerBatch) -> None:
        self.rows, self.batch = rows, batch

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of all tokens, (tokens, heads, head_dim)."""
        rows, count = self.rows, self.rows.sources
        source, target, both = rows.longest
        p, key = self.batch.attention_p, self.batch.dropout_key
        first = ops.attention(
            q[:count],
            k[:count],
            v[:count],
            rows.cu_sources,
            rows.cu_sources,
            source,
            source,
            dropout_p=p,
            dropout_key=key,
            dropout_site=Site.ATTENTION.of_layer(layer),
        )
        if len(q) == count:
            return first
        # Causal attention lays the last query on the last key: targets see their sources whole.
        second = ops.attention(
            q[count:],
            k.index_select(0, rows.order),
            v.index_select(0, rows.order),
            rows.cu_targets,
            rows.batch.cu_seqlens,
            target,
            both,
            causal=True,
            dropout_p=p,
            dropout_key=key,
            # A site of its own: queries of either call count from 0.
            dropout_site=Site.CROSS_ATTENTION.of_layer(layer),
        )
        return torch.cat((first, second))

    def cross_attend(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        raise AssertionError("one stack has no cross-attention")


class PrefixEncoding:
    """Sources that see themselves, whose keys and values are kept for what will be written."""

    def __init__(self, source: PackedBatch, written: WrittenKeys) -> None:
        self.source, self.written = source, written

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of all source tokens, (tokens, heads, head_dim)."""
        self.written.keep_prefix(layer, k, v, self.source)
        cu_seqlens, longest = self.source.cu_seqlens, self.source.max_seqlen
        return ops.attention(q, k, v, cu_seqlens, cu_seqlens, longest, longest)

    def cross_attend(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        raise AssertionError("one stack has no cross-attention")
