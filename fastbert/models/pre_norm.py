"""Layers that normalise the inputs of attention and of the feed-forward network (pre-LN), as GPT-2's.

Names are those of transformers' `RobertaPreLayerNormModel`: `attention.LayerNorm` and `intermediate.LayerNorm`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastbert.models.base import Quantization
from fastbert.models.layers import ModuleLayer, saving_matmuls
from fastbert.models.norm import Norm, is_plain_norm
from fastbert.models.self_attention import SelfAttention
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.encoder_layer.composition import compose_layer
from fastbert.ops.encoder_layer.spec import LayerSpec


class Projection(nn.Module):
    """A projection back to the model's width."""

    def __init__(self, inner: int, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, hidden_size)


class PreNormAttention(nn.Module):
    """The norm of self-attention's inputs, its projections, under the name `self`, and its output projection."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.LayerNorm = Norm(hidden_size, eps)
        self.self = SelfAttention(hidden_size)
        self.output = Projection(hidden_size, hidden_size)


class PreNormIntermediate(nn.Module):
    """The norm of the feed-forward network's inputs, and its widening half."""

    def __init__(self, hidden_size: int, intermediate_size: int, eps: float) -> None:
        super().__init__()
        self.LayerNorm = Norm(hidden_size, eps)
        self.dense = nn.Linear(hidden_size, intermediate_size)


class PreNormLayer(nn.Module):
    """A layer x + attention(norm(x)), then x + network(norm(x)), each with dropout.

    `index` counts the layer's dropout sites; `drops` tells whether its config has dropout.
    """

    def __init__(self, spec: LayerSpec, index: int, *, drops: bool = False) -> None:
        super().__init__()
        assert spec.attention_norm is not None
        assert spec.output_norm is not None
        inner = spec.feed_forward.intermediate_size
        self.attention = PreNormAttention(spec.hidden_size, spec.attention_norm.eps)
        self.intermediate = PreNormIntermediate(spec.hidden_size, inner, spec.output_norm.eps)
        self.output = Projection(inner, spec.hidden_size)
        self.index = index
        self.spec = spec
        self.causal_spec = replace(spec, self_attention=replace(spec.self_attention, causal=True))
        self.drops = drops
        self.quantization: Quantization | None = None

    def forward(self, x: Tensor, batch: LayerBatch, spec: LayerSpec | None = None, recompute: bool = False) -> Tensor:
        """Compute the layer: x (tokens, hidden_size) -> the same shape, or (rows, hidden_size) of the tokens
        `batch.token_indices` alone.

        `spec` replaces the layer's own, for example by a causal one. `recompute` keeps less for backward.
        """
        layer = composed(self, self.spec if spec is None else spec, batch)
        if recompute:
            return checkpoint(
                compose_layer, x, layer, batch, self.index, use_reentrant=False, preserve_rng_state=False,
                context_fn=saving_matmuls,
            )  # fmt: skip
        return compose_layer(x, layer, batch, self.index)

    def is_native(self, tokens: int, dtype: torch.dtype) -> bool:
        """Return False: no CPU kernel computes the layer as one operation."""
        del tokens, dtype
        return False

    def named_parts(self) -> dict[str, nn.Module]:
        """Return the layer's linear layers and norms by the names of `LayerParameters`."""
        projections = self.attention.self
        return {
            "query": projections.query,
            "key": projections.key,
            "value": projections.value,
            "attention_output": self.attention.output.dense,
            "attention_norm": self.attention.LayerNorm,
            "intermediate": self.intermediate.dense,
            "output": self.output.dense,
            "output_norm": self.intermediate.LayerNorm,
        }


def composed(layer: PreNormLayer, spec: LayerSpec, batch: LayerBatch) -> ModuleLayer:
    """Return a layer's modules for `compose_layer`."""
    return ModuleLayer(spec, layer.named_parts(), batch, layer.index, is_plain_norm=is_plain_norm)
