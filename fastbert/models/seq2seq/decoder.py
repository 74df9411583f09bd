"""A Transformer decoder of BERT's layers (Vaswani et al. 2017, section 3.1): causal self-attention, cross-attention.

The module tree gives the state dict the names of Hugging Face's `BertLMHeadModel` with cross-attention. What a layer's
queries see is not the layer's business: in training it is a packed batch of targets, in generation a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastbert import ops
from fastbert.config import BertConfig
from fastbert.models.base import Checkpointing, Quantization
from fastbert.models.bert.model import Attention, Embeddings, Intermediate, Layer, Output, SelfAttention, feed_forward
from fastbert.models.fusibility import project
from fastbert.models.heads import PreTrainingHeads
from fastbert.models.layers import Dropouts, keeping_products
from fastbert.ops.dropout.arguments import Site
from fastbert.packing import PackedBatch


class Seen(Protocol):
    """What the queries of a stack's layers see."""

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Self-attention in the layer of this number: (tokens, heads, head_dim) each, and so is the result."""

    def cross(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        """Cross-attention, whose keys and values are projected by `attention`: as `own`."""


class Teaching:
    """Targets that are known: each token sees those before it, and all of its source."""

    def __init__(
        self, target: PackedBatch, source: PackedBatch, states: Tensor, dropouts: Dropouts, heads: int, first: int
    ) -> None:
        """`states` (source tokens, hidden_size) are the encoder's; `first` counts the first layer's dropout sites."""
        self.target, self.source, self.states = target, source, states
        self.dropouts, self.heads, self.first = dropouts, heads, first

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._attention(q, k, v, self.target, True, Site.ATTENTION.of_layer(self.first + layer))

    def cross(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        k, v = (project(part, self.states).unflatten(-1, (self.heads, -1)) for part in (attention.key, attention.value))
        return self._attention(q, k, v, self.source, False, Site.CROSS_ATTENTION.of_layer(self.first + layer))

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, keys: PackedBatch, causal: bool, site: int) -> Tensor:
        return ops.attention(
            q,
            k,
            v,
            self.target.cu_seqlens,
            keys.cu_seqlens,
            self.target.max_seqlen,
            keys.max_seqlen,
            causal=causal,
            dropout_p=self.dropouts.attention,
            dropout_key=self.dropouts.key,
            dropout_site=site,
        )


def attended(layer: Layer | DecoderLayer, number: int, x: Tensor, seen: Seen, dropouts: Dropouts) -> Tensor:
    """The first part of a layer, self-attention, for which `layer.index` counts dropout."""
    own = layer.attention.self
    q, k, v = (project(part, x).unflatten(-1, (layer.heads, -1)) for part in (own.query, own.key, own.value))
    context = seen.own(number, q, k, v).flatten(1)
    mixed: Tensor = layer.attention.output(context, x, dropouts.tokens(Site.ATTENTION_OUTPUT, layer.index))
    return mixed


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, the feed-forward network: each with dropout, residual and LayerNorm."""

    def __init__(self, config: BertConfig, number: int, index: int) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.crossattention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Output(config.intermediate_size, config)
        self.number = number
        self.index = index
        """Counts the layer's dropout sites, which those of the encoder's layers must not meet."""
        self.heads = config.num_attention_heads
        self.approximate = config.gelu_approximation
        self.quantization: Quantization | None = None
        """Of what multiplies for tokens that are written one by one."""

    def forward(self, x: Tensor, seen: Seen, dropouts: Dropouts) -> Tensor:
        """x (tokens, hidden_size) -> the same shape."""
        x = attended(self, self.number, x, seen, dropouts)
        cross = self.crossattention
        q = project(cross.self.query, x).unflatten(-1, (self.heads, -1))
        context = seen.cross(self.number, q, cross.self).flatten(1)
        x = cross.output(context, x, dropouts.tokens(Site.CROSS_ATTENTION_OUTPUT, self.index))
        return feed_forward(self.intermediate, self.output, x, self.approximate, dropouts, self.index)


class DecoderStack(nn.Module):
    """The stack of layers; `first` counts the dropout sites of the first."""

    def __init__(self, config: BertConfig, first: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList(DecoderLayer(config, i, first + i) for i in range(config.num_hidden_layers))
        self.checkpointing: Checkpointing = "none"

    def forward(self, x: Tensor, seen: Seen, dropouts: Dropouts) -> Tensor:
        """x (tokens, hidden_size) -> the same shape."""
        return run_layers(self.layer, x, seen, dropouts, self.checkpointing if self.training else "none")


def run_layers(
    layers: Iterable[Callable[..., Tensor]], x: Tensor, seen: Seen, dropouts: Dropouts, mode: Checkpointing = "none"
) -> Tensor:
    """Layers one behind the other, each called with what its queries see."""
    again = mode if torch.is_grad_enabled() else "none"
    for layer in layers:
        if again == "none":
            x = layer(x, seen, dropouts)
        elif again == "layer":
            x = checkpoint(layer, x, seen, dropouts, use_reentrant=False, preserve_rng_state=False)
        else:
            x = checkpoint(
                layer, x, seen, dropouts, use_reentrant=False, preserve_rng_state=False, context_fn=keeping_products
            )
    return x


class DecoderBert(nn.Module):
    """Embeddings and layers, under the names of Hugging Face's `BertModel`."""

    def __init__(self, config: BertConfig, first: int) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = DecoderStack(config, first)


class Decoder(nn.Module):
    """The decoder with its head, which is tied to its token embedding."""

    def __init__(self, config: BertConfig, first: int) -> None:
        super().__init__()
        self.bert = DecoderBert(config, first)
        self.cls = PreTrainingHeads(config, mlm=True, nsp=False)
        self.first = first

    def forward(self, batch: PackedBatch, seen: Seen, dropouts: Dropouts) -> Tensor:
        """Hidden states (tokens, hidden_size) of the target tokens in `batch`, for the head `cls.predictions`."""
        # A layer's number beside the site: with the encoder's own, masks of source and target would be the same.
        x = self.bert.embeddings(batch, dropouts.tokens(Site.EMBEDDING, self.first))
        states: Tensor = self.bert.encoder(x, seen, dropouts)
        return states


def run_alone(layers: Iterable[Any], x: Tensor, seen: Seen, dropouts: Dropouts, mode: Checkpointing = "none") -> Tensor:
    """An encoder's layers over x (tokens, hidden_size), whose self-attention is given."""
    return run_layers([partial(layer_alone, layer, i) for i, layer in enumerate(layers)], x, seen, dropouts, mode)


def layer_alone(layer: Layer, number: int, x: Tensor, seen: Seen, dropouts: Dropouts) -> Tensor:
    """An encoder's layer, whose self-attention is given."""
    x = attended(layer, number, x, seen, dropouts)
    return feed_forward(layer.intermediate, layer.output, x, layer.approximate, dropouts, layer.index)
