"""What encoder layers are made of, whoever owns their parameters: our own models, or a model of another library."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from fastbert import ops
from fastbert.models.fusibility import project
from fastbert.models.padded import PaddedBatch, padded_attention
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.encoder_layer import op
from fastbert.packing import PackedBatch


class Dropouts:
    """The dropout of one forward pass: gives each site its `TokenDropout`, or None when nothing is dropped."""

    def __init__(self, batch: PackedBatch, hidden: float, attention: float, training: bool) -> None:
        self.hidden = hidden if training else 0.0
        self.attention = attention if training else 0.0
        self.key: Tensor | None = None
        self.sequence_ids: Tensor | None = None
        self.offsets: Tensor | None = None
        if self.hidden or self.attention:
            self.key = batch.dropout_key if batch.dropout_key is not None else draw_keys(len(batch), batch.device)
            self.sequence_ids, self.offsets = batch.sequence_ids, batch.offsets_in_sequence

    def of(self, rows: Tensor) -> Dropouts:
        """The dropout of these tokens, int64 (rows,), alone."""
        some = copy(self)
        if self.sequence_ids is not None and self.offsets is not None:
            some.sequence_ids, some.offsets = (ids.index_select(0, rows) for ids in (self.sequence_ids, self.offsets))
        return some

    def tokens(self, site: Site, layer: int = 0, p: float | None = None) -> TokenDropout | None:
        """Dropout on all token vectors at one site."""
        p = self.hidden if p is None else p
        if self.key is None or not p:
            return None
        assert self.sequence_ids is not None
        assert self.offsets is not None
        return TokenDropout(p, self.key, self.sequence_ids, self.offsets, site.of_layer(layer))


@dataclass(frozen=True)
class LayerNumbers:
    """What a layer computes with beside its weights."""

    heads: int
    index: int
    """Counts the layer's dropout sites."""
    eps: float
    tanh: bool
    """GELU by its approximation."""
    int8: bool
    """Quantised, where nothing is trained."""


def layer_weights(linears: Sequence[nn.Module], norms: Sequence[nn.Module]) -> op.LayerWeights:
    """The parameters of plain modules: the products of queries, keys, values, the attention's output, and both of the
    feed-forward network; the LayerNorms behind attention and behind the layer."""
    held: list[Any] = [linear._parameters for linear in linears]
    query, key, value, inside, widening, narrowing = held
    of_norms: list[Any] = [norm._parameters for norm in norms]
    first, last = of_norms
    return op.LayerWeights(
        query=query["weight"],
        key=key["weight"],
        value=value["weight"],
        query_bias=query["bias"],
        key_bias=key["bias"],
        value_bias=value["bias"],
        attention_output=inside["weight"],
        attention_output_bias=inside["bias"],
        attention_norm=first["weight"],
        attention_norm_bias=first["bias"],
        intermediate=widening["weight"],
        intermediate_bias=widening["bias"],
        output=narrowing["weight"],
        output_bias=narrowing["bias"],
        output_norm=last["weight"],
        output_norm_bias=last["bias"],
    )


def whole_layer(
    x: Tensor,
    weights: op.LayerWeights,
    numbers: LayerNumbers,
    batch: PackedBatch,
    dropouts: Dropouts,
    *,
    causal: bool = False,
    recompute: bool = False,
    rows: Tensor | None = None,
) -> Tensor | None:
    """x (tokens, hidden_size) -> the same shape, or (rows, hidden_size) of the tokens `rows`, as one operation; None
    where no backend has it for this input."""
    if isinstance(batch, PaddedBatch):
        return None
    dropped = bool(dropouts.attention or dropouts.hidden)
    served = op.serves(x, weights, numbers.heads, dropped=dropped, int8=numbers.int8)
    if served is None:
        return None
    settings = op.LayerSettings(
        cu_seqlens=batch.cu_seqlens,
        max_seqlen=batch.max_seqlen,
        heads=numbers.heads,
        eps=numbers.eps,
        tanh=numbers.tanh,
        causal=causal,
        layer=numbers.index,
        attention_p=dropouts.attention,
        hidden_p=dropouts.hidden,
        dropout_key=dropouts.key,
        sequence_ids=dropouts.sequence_ids,
        offsets=dropouts.offsets,
        rows=rows,
    )
    return op.encoder_layer(x, weights, settings, recompute=recompute, served=served)


def self_attention(
    x: Tensor,
    projections: tuple[nn.Module, nn.Module, nn.Module],
    heads: int,
    index: int,
    batch: PackedBatch,
    dropouts: Dropouts,
    *,
    causal: bool = False,
) -> Tensor:
    """Attention of tokens x (tokens, hidden_size) by the query, key and value projections, each plain or with a forward
    of its own: (tokens, width of the values)."""
    q, k, v = (project(part, x).unflatten(-1, (heads, -1)) for part in projections)
    if isinstance(batch, PaddedBatch):
        return padded_attention(
            q,
            k,
            v,
            batch,
            causal=causal,
            dropout_p=dropouts.attention,
            dropout_key=dropouts.key,
            dropout_site=Site.ATTENTION.of_layer(index),
        ).flatten(1)
    context = ops.attention(
        q,
        k,
        v,
        batch.cu_seqlens,
        batch.cu_seqlens,
        batch.max_seqlen,
        batch.max_seqlen,
        causal=causal,
        dropout_p=dropouts.attention,
        dropout_key=dropouts.key,
        dropout_site=Site.ATTENTION.of_layer(index),
    )
    return context.flatten(1)


def keeping_products() -> Any:
    """For selective checkpointing: matrix products and attention are kept, what lies between is computed again."""

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = operation in _PRODUCTS or (operation.namespace == "fastbert" and "attention" in operation.name())
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.linear.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}
