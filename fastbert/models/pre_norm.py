"""Layers that normalise the inputs of attention and of the feed-forward network (pre-LN), as GPT-2's.

Names are those of transformers' `RobertaPreLayerNormModel`: `attention.LayerNorm` and `intermediate.LayerNorm`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastbert.errors import UserError
from fastbert.models.base import Quantization
from fastbert.models.fusibility import has_hooks
from fastbert.models.layers import ModuleLayer, is_native_spec, is_plain_part, native_layer, saving_matmuls
from fastbert.models.norm import Norm, is_plain_norm, norm_of
from fastbert.models.self_attention import SelfAttention
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.encoder_layer.composition import compose_layer
from fastbert.ops.encoder_layer.spec import LayerSpec


class Projection(nn.Module):
    """A projection back to the model's width."""

    def __init__(self, inner: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(inner, hidden_size, bias=bias)


class PreNormAttention(nn.Module):
    """The norm of self-attention's inputs, if there is one, its projections, under the name `self`, and its output
    projection."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        hidden_size, attention = spec.hidden_size, spec.self_attention
        self.LayerNorm: Norm | None = None if spec.attention_norm is None else norm_of(spec.attention_norm, hidden_size)
        self.self: SelfAttention = SelfAttention(hidden_size, attention)
        self.output: Projection = Projection(
            attention.heads * attention.head_dim, hidden_size, bias=attention.output_bias
        )


class PreNormIntermediate(nn.Module):
    """The norm of the feed-forward network's inputs, and its widening half; of a gated one the activated half, then
    that it is multiplied by."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        assert spec.output_norm is not None
        network = spec.feed_forward
        self.LayerNorm: Norm = norm_of(spec.output_norm, spec.hidden_size)
        self.dense: nn.Linear = nn.Linear(spec.hidden_size, network.first_width, bias=network.first_bias)


class PreNormLayer(nn.Module):
    """A layer x + attention(norm(x)), then x + network(norm(x)), each with dropout.

    `index` counts the layer's dropout sites; `drops` tells whether its config has dropout.
    """

    def __init__(self, spec: LayerSpec, index: int, *, drops: bool = False) -> None:
        super().__init__()
        network = spec.feed_forward
        self.attention: PreNormAttention = PreNormAttention(spec)
        self.intermediate: PreNormIntermediate = PreNormIntermediate(spec)
        self.output: Projection = Projection(network.intermediate_size, spec.hidden_size, bias=network.bias)
        self.index = index
        self.spec = spec
        self.causal_spec: LayerSpec = replace(spec, self_attention=replace(spec.self_attention, causal=True))
        self.drops = drops
        self.quantization: Quantization | None = None

    def forward(
        self,
        x: Tensor,
        batch: LayerBatch,
        spec: LayerSpec | None = None,
        recompute: bool = False,
        index: int | None = None,
        memory: Tensor | None = None,
    ) -> Tensor:
        """Compute the layer: x (tokens, hidden_size) -> the same shape, or (rows, hidden_size) of the tokens
        `batch.token_indices` alone.

        `spec` replaces the layer's own, for example by a causal one. `recompute` keeps less for backward. `index`
        replaces the layer's own, where it is applied repeatedly. Raises `UserError` for `memory`: keys and values are
        of x, which is normalised.
        """
        if memory is not None:
            raise UserError("a pre-LN layer cannot be repeated with keys and values of other states")
        index, spec = self.index if index is None else index, self.spec if spec is None else spec
        layer = composed(self, spec, batch, index)
        if self.is_plain():
            int8 = self.quantization == "int8"
            native = native_layer(layer.layer_parts, x, spec, batch, int8=int8, tables=layer.position_tables)
            if native is not None:
                return native
        if recompute:
            return checkpoint(
                compose_layer, x, layer, batch, index, use_reentrant=False, preserve_rng_state=False,
                context_fn=saving_matmuls,
            )  # fmt: skip
        return compose_layer(x, layer, batch, index)

    def is_native(self, tokens: int, dtype: torch.dtype) -> bool:
        """Return whether the CPU's kernels compute this layer of so many tokens, in inference in matmuls of `dtype`."""
        return not torch.is_grad_enabled() and self.is_plain() and is_native_spec(self.spec, tokens, dtype)

    def is_plain(self) -> bool:
        """Return whether the layer's parameters alone decide what it computes: no hooks, adapters, replaced modules."""
        containers = (self.attention, self.attention.self, self.attention.output, self.intermediate, self.output)
        return not any(map(has_hooks, containers)) and all(map(is_plain_part, self.named_parts().values()))

    def named_parts(self) -> dict[str, nn.Module]:
        """Return the layer's linear layers and norms by the names of `LayerParameters`."""
        norm = self.attention.LayerNorm
        return {
            **self.attention.self.named_projections(),
            "attention_output": self.attention.output.dense,
            **({} if norm is None else {"attention_norm": norm}),
            "intermediate": self.intermediate.dense,
            "output": self.output.dense,
            "output_norm": self.intermediate.LayerNorm,
        }


def composed(layer: PreNormLayer, spec: LayerSpec, batch: LayerBatch, index: int) -> ModuleLayer:
    """Return a layer's modules for `compose_layer`."""
    return ModuleLayer(spec, layer.named_parts(), batch, index, is_plain_norm=is_plain_norm)
