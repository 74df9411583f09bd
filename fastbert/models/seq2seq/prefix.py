"""One stack under a prefix mask (Dong et al. 2019): source tokens attend to the source, target tokens also to the
target tokens before them. Packed, this is two calls of attention, and masked pairs are never computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastbert import ops
from fastbert.models.modules import SelfAttention
from fastbert.models.seq2seq.decoding_cache import WrittenKeys
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.packing import PackedBatch


@dataclass(frozen=True)
class PrefixRows:
    """Sources and their targets as one batch: all source tokens, then all target tokens.

    The queries of each call are contiguous; only the keys of targets are reordered.
    """

    batch: PackedBatch
    """The tokens in that order; `sequence_ids`, positions and offsets as in `source target`. `cu_seqlens` counts the
    tokens of both, which are not contiguous."""
    offsets: Tensor
    """Each token's distance from the first of its sequence, int64 (tokens,)."""
    sources: int
    """The number of tokens of all sources."""
    cu_sources: Tensor
    cu_targets: Tensor
    longest: tuple[int, int, int]
    """The largest lengths of a source and of a target, and a bound for the length of both together."""
    order: Tensor
    """The indices of each sequence's tokens, sequence by sequence, int64 (tokens,)."""


def prefix_rows(source: PackedBatch, target: PackedBatch) -> PrefixRows:
    """Join sources (segment 0) and their targets (segment 1), whose positions continue the sources'."""
    lengths = source.cu_seqlens.diff().long()
    offsets = torch.cat((source.offsets_in_sequence, target.offsets_in_sequence + lengths[target.sequence_ids]))
    sequences = torch.cat((source.sequence_ids, target.sequence_ids))
    cu_seqlens = source.cu_seqlens + target.cu_seqlens
    # A permutation of the tokens, and its inverse.
    positions = cu_seqlens[sequences].long() + offsets
    order = torch.empty_like(positions).index_copy_(0, positions, torch.arange(len(positions), device=positions.device))
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
    """Attention of sources to themselves, and of known targets to their sources and the tokens before."""

    def __init__(self, rows: PrefixRows, batch: LayerBatch) -> None:
        self.rows = rows
        self.batch = batch

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention of all tokens, (tokens, heads, head_dim)."""
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
        # Causal attention aligns the last query with the last key: targets attend to all of their sources.
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
            # A different site: the queries of both calls count from 0.
            dropout_site=Site.CROSS_ATTENTION.of_layer(layer),
        )
        return torch.cat((first, second))

    def cross_attend(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        """Refuse: one stack has no cross-attention."""
        raise AssertionError("one stack has no cross-attention")


class PrefixEncoding:
    """Attention of sources to themselves, whose keys and values are cached for generation."""

    def __init__(self, source: PackedBatch, written: WrittenKeys) -> None:
        self.source = source
        self.written = written

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention of all source tokens, (tokens, heads, head_dim)."""
        self.written.keep_prefix(layer, k, v, self.source)
        cu_seqlens, longest = self.source.cu_seqlens, self.source.max_seqlen
        return ops.attention(q, k, v, cu_seqlens, cu_seqlens, longest, longest)

    def cross_attend(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        """Refuse: one stack has no cross-attention."""
        raise AssertionError("one stack has no cross-attention")
