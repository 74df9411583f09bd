"""A Transformer decoder of BERT's layers (Vaswani et al. 2017, section 3.1): causal self-attention, cross-attention.

The module tree gives the state dict the names of Hugging Face's `BertLMHeadModel` with cross-attention. What a layer's
queries attend to is given by an `AttentionContext`: a packed batch of targets in training, a cache in generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastbert.config import BertConfig
from fastbert.models.base import Checkpointing, Quantization
from fastbert.models.bert.architecture import bert_spec
from fastbert.models.fusibility import project
from fastbert.models.heads.prediction import PreTrainingHeads, VocabularyHead
from fastbert.models.layers import saving_matmuls
from fastbert.models.modules import (
    Attention,
    ComposedLayer,
    Embeddings,
    Intermediate,
    Layer,
    Output,
    SelfAttention,
    causal_spec,
    post_norms,
)
from fastbert.models.similarity import PackedAttention, similarity_of
from fastbert.ops.attention.op import attention
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.encoder_layer.composition import compose_layer
from fastbert.ops.encoder_layer.spec import LayerSpec
from fastbert.packing import PackedBatch


class AttentionContext(Protocol):
    """The keys and values that the queries of a stack's layers attend to."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return self-attention in a layer, by its number: (tokens, heads, head_dim) each, and so is the result. Where
        layers may have a perceptron of similarity, that is a further argument."""

    def cross_attend(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        """Return cross-attention, whose keys and values `attention` projects: (tokens, heads, head_dim)."""


class TeacherForcing:
    """Known targets: each token attends to those before it, and to all of its source."""

    def __init__(
        self, target: PackedBatch, source: PackedBatch, states: Tensor, batch: LayerBatch, heads: int, first: int
    ) -> None:
        """`states` (source tokens, hidden_size) are the encoder's, `batch` is the layers' view of `target`; `first`
        counts the first layer's dropout sites."""
        self.target = target
        self.source = source
        self.states = states
        self.batch = batch
        self.heads = heads
        self.first = first

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, similarity: PackedAttention | None = None) -> Tensor:
        """Return causal self-attention of the targets."""
        site = Site.ATTENTION.of_layer(self.first + layer)
        return self._attention(q, k, v, self.target, True, site, similarity)

    def cross_attend(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        """Return attention of the targets to their sources."""
        k, v = (
            project(linear, self.states).unflatten(-1, (self.heads, -1)) for linear in (attention.key, attention.value)
        )
        site = Site.CROSS_ATTENTION.of_layer(self.first + layer)
        return self._attention(q, k, v, self.source, False, site, similarity_of(attention))

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: PackedBatch,
        causal: bool,
        site: int,
        similarity: PackedAttention | None,
    ) -> Tensor:
        return (similarity or attention)(
            q,
            k,
            v,
            self.target.cu_seqlens,
            keys.cu_seqlens,
            self.target.max_seqlen,
            keys.max_seqlen,
            causal=causal,
            dropout_p=self.batch.attention_p,
            dropout_key=self.batch.dropout_key,
            dropout_site=site,
        )


class ContextLayer(ComposedLayer):
    """A layer of BERT's modules, an encoder's or a decoder's, whose attention is that of an `AttentionContext`."""

    def __init__(self, layer: Layer | DecoderLayer, number: int, batch: LayerBatch, context: AttentionContext) -> None:
        super().__init__(layer, layer.spec, batch)
        self.number = number
        self.context = context
        if isinstance(layer, DecoderLayer):
            self.cross_projections: SelfAttention = layer.crossattention.self
            self.modules["cross_query"] = layer.crossattention.self.query
            self.blocks["cross_attention_output"] = layer.crossattention.output

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the context's self-attention."""
        if self.similarity is None:
            return self.context.attend(self.number, q, k, v)
        context: Any = self.context
        attended: Tensor = context.attend(self.number, q, k, v, self.similarity)
        return attended

    def cross_attend(self, q: Tensor) -> Tensor:
        """Return the context's cross-attention."""
        return self.context.cross_attend(self.number, q, self.cross_projections)


def run_context_layer(
    layer: Layer | DecoderLayer, number: int, x: Tensor, context: AttentionContext, batch: LayerBatch
) -> Tensor:
    """Compute a layer of x (tokens, hidden_size), whose attention is the context's: the same shape."""
    return compose_layer(x, ContextLayer(layer, number, batch, context), batch, layer.index)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, the feed-forward network: each with dropout, residual and LayerNorm."""

    def __init__(self, encoder_spec: LayerSpec, number: int, index: int) -> None:
        """`encoder_spec` is that of the encoder's layers."""
        super().__init__()
        spec = causal_spec(encoder_spec)
        attention_norm, output_norm = post_norms(spec)
        self.attention: Attention = Attention(spec.hidden_size, attention_norm, spec.self_attention)
        self.crossattention: Attention = Attention(spec.hidden_size, attention_norm, encoder_spec.self_attention)
        self.intermediate: Intermediate = Intermediate(spec)
        self.output: Output = Output(spec.feed_forward.intermediate_size, spec.hidden_size, output_norm)
        self.number = number
        self.index = index
        """Counts the layer's dropout sites, which must differ from those of the encoder's layers."""
        self.spec: LayerSpec = replace(
            spec, cross_attention=encoder_spec.self_attention, cross_attention_norm=spec.attention_norm
        )
        self.quantization: Quantization | None = None
        """Quantization of the matmuls for tokens that are generated one by one."""

    def forward(self, x: Tensor, context: AttentionContext, batch: LayerBatch) -> Tensor:
        """Compute the layer: x (tokens, hidden_size) -> the same shape."""
        return run_context_layer(self, self.number, x, context, batch)


class DecoderStack(nn.Module):
    """The stack of layers; `first` counts the dropout sites of the first."""

    def __init__(self, specs: tuple[LayerSpec, ...], first: int) -> None:
        super().__init__()
        self.layer: nn.ModuleList = nn.ModuleList(DecoderLayer(spec, i, first + i) for i, spec in enumerate(specs))
        self.first = first
        self.checkpointing: Checkpointing = "none"

    def forward(self, x: Tensor, context: AttentionContext, batch: LayerBatch) -> Tensor:
        """Run the layers: x (tokens, hidden_size) -> the same shape."""
        return run_layers(self.layer, x, context, batch, self.checkpointing if self.training else "none")


def run_layers(
    layers: Iterable[Callable[..., Tensor]],
    x: Tensor,
    context: AttentionContext,
    batch: LayerBatch,
    mode: Checkpointing = "none",
) -> Tensor:
    """Run layers in order, each with the attention context."""
    mode = mode if torch.is_grad_enabled() else "none"
    for layer in layers:
        if mode == "none":
            x = layer(x, context, batch)
        elif mode == "layer":
            x = checkpoint(layer, x, context, batch, use_reentrant=False, preserve_rng_state=False)
        else:
            x = checkpoint(
                layer, x, context, batch, use_reentrant=False, preserve_rng_state=False, context_fn=saving_matmuls
            )
    return x


@dataclass(frozen=True)
class DecoderParts:
    """The modules of a decoder with cross-attention, whatever holds them."""

    embeddings: nn.Module
    """Returns embeddings (tokens, hidden_size) of a `PackedBatch` and a dropout of token vectors, which may be None."""
    stack: DecoderStack
    head: VocabularyHead

    def __call__(self, target: PackedBatch, context: AttentionContext, batch: LayerBatch) -> Tensor:
        """Return hidden states (tokens, hidden_size) of the target tokens, for the head."""
        # The site carries a layer's number: with the encoder's site, masks of source and target would be the same.
        x = self.embeddings(target, batch.token_dropout(Site.EMBEDDING, self.stack.first))
        states: Tensor = self.stack(x, context, batch)
        return states


class DecoderBert(nn.Module):
    """Embeddings and layers, under the names of Hugging Face's `BertModel`."""

    def __init__(self, config: BertConfig, first: int) -> None:
        super().__init__()
        spec = bert_spec(config)
        self.embeddings: Embeddings = Embeddings(spec.embeddings)
        self.encoder: DecoderStack = DecoderStack(spec.layers, first)


class Decoder(nn.Module):
    """The decoder with its head, which is tied to its token embedding."""

    def __init__(self, config: BertConfig, first: int) -> None:
        super().__init__()
        self.bert: DecoderBert = DecoderBert(config, first)
        self.cls: PreTrainingHeads = PreTrainingHeads(config, mlm=True, nsp=False)

    @property
    def parts(self) -> DecoderParts:
        """The modules that compute it."""
        return DecoderParts(self.bert.embeddings, self.bert.encoder, self.cls.predictions)

    def forward(self, target: PackedBatch, context: AttentionContext, batch: LayerBatch) -> Tensor:
        """Return hidden states (tokens, hidden_size) of the target tokens, for the head `cls.predictions`."""
        return self.parts(target, context, batch)


def run_encoder_layers(
    layers: Iterable[Any], x: Tensor, context: AttentionContext, batch: LayerBatch, mode: Checkpointing = "none"
) -> Tensor:
    """Run an encoder's layers over x (tokens, hidden_size) with the context's self-attention."""
    steps = [partial(run_context_layer, layer, number) for number, layer in enumerate(layers)]
    return run_layers(steps, x, context, batch, mode)
