"""An encoder layer of another library, computed on packed tokens with the parameters that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fastbert.integrations.module_checks import (
    gelu_approximation,
    is_plain_norm,
    is_pointwise,
    is_tokenwise_linear,
    is_tokenwise_norm,
)
from fastbert.models.fusibility import is_plain
from fastbert.models.layers import ModuleLayer, fused_layer, is_native, layer_parameters, multiplies_in_bf16
from fastbert.ops.encoder_layer.arguments import LayerBatch, LayerParameters
from fastbert.ops.encoder_layer.composition import compose_layer
from fastbert.ops.encoder_layer.spec import Activation, LayerSpec, bert_layer


@dataclass(frozen=True)
class LayerModules:
    """The modules of a post-LN encoder layer, and its current dropout probabilities, 0 in inference."""

    query: nn.Module
    key: nn.Module
    value: nn.Module
    attention_output: nn.Module
    attention_norm: nn.Module
    intermediate: nn.Module
    activation: Callable[[Tensor], Tensor]
    output: nn.Module
    output_norm: nn.Module
    heads: int
    head_dim: int
    attention_p: float
    attention_output_p: float
    output_p: float
    inner_p: float = 0.0
    """Probability behind the activation, where torch.nn's layer drops too."""

    @property
    def linears(self) -> tuple[nn.Module, ...]:
        """The linear layers."""
        return self.query, self.key, self.value, self.attention_output, self.intermediate, self.output

    @property
    def norms(self) -> tuple[Any, Any]:
        """The norms behind attention and behind the layer."""
        return self.attention_norm, self.output_norm

    @property
    def projections(self) -> tuple[nn.Module, ...]:
        """The linear layers whose weights a GPU reads as one."""
        return self.query, self.key, self.value

    @property
    def largest_p(self) -> float:
        """The largest dropout probability of tokens."""
        return max(self.attention_output_p, self.output_p)

    def run(self, x: Tensor, batch: LayerBatch, index: int, int8: bool = False) -> Tensor:
        """Compute the layer, by `run_layer`."""
        return run_layer(self, x, batch, index, int8)

    def leaves_bf16(self, tokens: int, x: Tensor, int8: bool) -> bool:
        """Return whether torch's library, not our kernels, would multiply bf16 on the CPU in the layer of so many
        tokens; `x` has the dtype and the device of the hidden states."""
        parameters = self.fusible_parameters()
        return parameters is None or not is_native(
            parameters, self.spec(), tokens, torch.bfloat16, int8=int8, trains=False
        )

    def is_tokenwise(self) -> bool:
        """Return whether nothing but attention is known to read more than one token, so that tokens may be packed."""
        known = gelu_approximation(self.activation) is not None or is_pointwise(self.activation)
        return known and all(map(is_tokenwise_norm, self.norms)) and all(map(is_tokenwise_linear, self.linears))

    def spec(self) -> LayerSpec:
        """Return the layer's spec; the GELU of a layer with another activation is not used."""
        width = self.heads * self.head_dim
        inner = getattr(self.intermediate, "out_features", 0)
        activation: Activation = "gelu_tanh" if gelu_approximation(self.activation) == "tanh" else "gelu"
        # A norm without eps runs its own forward.
        return bert_layer(width, self.heads, inner, activation, getattr(self.output_norm, "eps", None) or 0.0)

    def fusible_parameters(self) -> LayerParameters | None:
        """Return the layer's parameters if they alone decide what it computes."""
        if gelu_approximation(self.activation) is None or self.inner_p or self.attention_output_p != self.output_p:
            return None
        if not all(map(is_plain, self.linears)) or not all(map(is_plain_norm, self.norms)):
            return None
        if self.attention_norm.eps != self.output_norm.eps:
            return None
        return layer_parameters(self.linears, self.norms)


class PackedLayer(Protocol):
    """A layer of another library that runs on packed tokens."""

    @property
    def attention_p(self) -> float:
        """The dropout probability of attention."""

    @property
    def largest_p(self) -> float:
        """The largest dropout probability of tokens."""

    @property
    def projections(self) -> tuple[nn.Module, ...]:
        """The linear layers whose weights a GPU reads as one."""

    def is_tokenwise(self) -> bool:
        """Return whether nothing but attention is known to read more than one token, so that tokens may be packed."""

    def run(self, x: Tensor, batch: LayerBatch, index: int, int8: bool = False) -> Tensor:
        """Compute the layer of x (tokens, hidden_size) -> the same shape."""

    def leaves_bf16(self, tokens: int, x: Tensor, int8: bool) -> bool:
        """Return whether torch's library, not our kernels, would multiply bf16 on the CPU in the layer of so many
        tokens; `x` has the dtype and the device of the hidden states."""


def largest_dropout(layers: Iterable[PackedLayer | None]) -> tuple[float, float]:
    """Return the largest dropout probabilities of tokens and of attention: they decide whether keys are drawn."""
    known = [layer for layer in layers if layer is not None]
    hidden = max((layer.largest_p for layer in known), default=0.0)
    return hidden, max((layer.attention_p for layer in known), default=0.0)


def run_layer(modules: LayerModules, x: Tensor, batch: LayerBatch, index: int, int8: bool = False) -> Tensor:
    """Compute a layer of x (tokens, hidden_size) -> the same shape: as one operation if its modules are plain, else
    composed of single operations, modules that are not plain running their own forward."""
    p = (modules.attention_p, modules.attention_output_p, modules.output_p)
    if (batch.attention_p, batch.attention_output_p, batch.output_p) != p:
        batch = replace(batch, attention_p=p[0], attention_output_p=p[1], output_p=p[2])
    parameters, spec = modules.fusible_parameters(), modules.spec()
    if parameters is not None:
        fused = fused_layer(x, parameters, spec, batch, index, int8=int8)
        if fused is not None:
            return fused
    named = {
        "query": modules.query, "key": modules.key, "value": modules.value, "intermediate": modules.intermediate,
        "attention_output": modules.attention_output, "attention_norm": modules.attention_norm,
        "output": modules.output, "output_norm": modules.output_norm,
    }  # fmt: skip
    activation = modules.activation if gelu_approximation(modules.activation) is None else None
    layer = ModuleLayer(
        spec, named, batch, index, is_plain_norm=is_plain_norm, activation=activation, inner_p=modules.inner_p
    )
    return compose_layer(x, layer, batch, index)


def library_multiplies_bf16(layers: Iterable[PackedLayer | None], tokens: int, x: Tensor, int8: bool) -> bool:
    """Return whether torch's library, not our kernels, would multiply bf16 on the CPU in one of the layers of so many
    tokens, for which row counts are rounded up; `x` has the dtype and the device of the hidden states."""
    if not multiplies_in_bf16(x):
        return False
    return any(layer is not None and layer.leaves_bf16(tokens, x, int8) for layer in layers)
