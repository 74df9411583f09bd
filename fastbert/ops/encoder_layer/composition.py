"""A layer composed of single operations, for every spec: what no fused kernel supports, and modules that run their own
forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.encoder_layer.spec import APPROXIMATIONS, Activation, LayerSpec, NormSpec
from fastbert.ops.gated.op import gated_activation
from fastbert.ops.gelu.op import bias_gelu


class ComposableLayer(Protocol):
    """The parts of a layer, whatever holds its parameters. Names are those of `LayerParameters`."""

    spec: LayerSpec

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return the linear layer of x (tokens, in), with its bias."""

    def expand(self, x: Tensor) -> Tensor:
        """Return the activation of the intermediate linear layer: (tokens, intermediate_size)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return self-attention of (tokens, heads, head_dim) each."""

    def cross_attend(self, q: Tensor) -> Tensor:
        """Return cross-attention of q (tokens, heads, head_dim) to what the layer was given."""

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Return the norm of x (tokens, width)."""

    def add_norm(
        self, linear: str, norm: str | None, x: Tensor, residual: Tensor, dropout: TokenDropout | None
    ) -> Tensor:
        """Return norm(residual + dropout(linear(x))), without a norm where `norm` is None."""


def refuse_unsupported(spec: LayerSpec) -> None:
    """Raise UserError for parts of a spec that `LayerParameters` do not hold."""
    for attention in (spec.self_attention, spec.cross_attention):
        if attention is not None and attention.position not in ("none", "rotary"):
            raise UserError(
                f"position={attention.position!r}: a layer's parameters hold no relative positions; use 'none' or"
                " 'rotary'"
            )
        if attention is not None and attention.similarity != "dot":
            raise UserError(
                f"similarity={attention.similarity!r}: attention has no such operation, and a layer's parameters hold"
                " no perceptron; use 'dot'"
            )


def compose_layer(x: Tensor, layer: ComposableLayer, batch: LayerBatch, index: int) -> Tensor:
    """Compute a layer of x (tokens, width): (tokens, width), or (rows, width) of the tokens `batch.token_indices`.

    `index` counts the dropout sites.
    """
    spec, attention = layer.spec, layer.spec.self_attention
    normed = _pre_norm(layer, spec.attention_norm, "attention_norm", x)
    q, k, v = (layer.linear(name, normed).unflatten(-1, (-1, attention.head_dim)) for name in ("query", "key", "value"))
    context = layer.attend(q, k, v).flatten(1)
    if batch.token_indices is not None:
        context, x = batch.gather(context), batch.gather(x)
        if batch.sequence_ids is not None and batch.offsets is not None:
            batch = replace(batch, sequence_ids=batch.gather(batch.sequence_ids), offsets=batch.gather(batch.offsets))
    dropout = batch.token_dropout(Site.ATTENTION_OUTPUT, index)
    x = layer.add_norm("attention_output", _post(spec.attention_norm, "attention_norm"), context, x, dropout)
    if spec.cross_attention is not None:
        normed = _pre_norm(layer, spec.cross_attention_norm, "cross_attention_norm", x)
        q = layer.linear("cross_query", normed).unflatten(-1, (-1, spec.cross_attention.head_dim))
        context = layer.cross_attend(q).flatten(1)
        dropout = batch.token_dropout(Site.CROSS_ATTENTION_OUTPUT, index, batch.attention_output_p)
        norm = _post(spec.cross_attention_norm, "cross_attention_norm")
        x = layer.add_norm("cross_attention_output", norm, context, x, dropout)
    intermediate = layer.expand(_pre_norm(layer, spec.output_norm, "output_norm", x))
    dropout = batch.token_dropout(Site.FEED_FORWARD_OUTPUT, index)
    return layer.add_norm("output", _post(spec.output_norm, "output_norm"), intermediate, x, dropout)


def activate(product: Tensor, bias: Tensor | None, activation: Activation, *, gated: bool = False) -> Tensor:
    """Return the activation of product + bias: (tokens, width) and (width,) -> (tokens, width).

    `gated`: the activation of the first half of the columns times the second half, (tokens, width / 2).
    """
    if gated:
        return gated_activation(product, bias, activation)
    if activation in ("relu", "silu"):
        total = product if bias is None else product + bias.to(product.dtype)
        return torch.relu(total) if activation == "relu" else F.silu(total)
    return bias_gelu(product, bias, APPROXIMATIONS[activation])


def _pre_norm(layer: ComposableLayer, spec: NormSpec | None, name: str, x: Tensor) -> Tensor:
    return layer.norm(name, x) if spec is not None and spec.place == "pre" else x


def _post(spec: NormSpec | None, name: str) -> str | None:
    return name if spec is not None and spec.place == "post" else None
