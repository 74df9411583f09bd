"""A layer of transformers that a `LayerSpec` describes, computed on packed tokens with the parameters that it holds:
positions inside attention, gated networks, norms in front, joined projections."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.integrations.module_checks import (
    is_pointwise,
    is_rms_norm,
    is_tokenwise_linear,
    is_tokenwise_norm,
    norm_eps,
)
from fastbert.models.fusibility import is_plain, is_plain_without_bias, project
from fastbert.models.layers import (
    ModuleLayer,
    fused_layer,
    is_native,
    is_native_spec,
    layer_parameters,
    native_layer,
)
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.dropout.op import dropout
from fastbert.ops.encoder_layer.arguments import LayerBatch, LayerParameters
from fastbert.ops.encoder_layer.composition import compose_layer
from fastbert.ops.encoder_layer.spec import Activation, LayerSpec
from fastbert.ops.gated.op import gated_activation
from fastbert.ops.norm.op import layer_norm, rms_norm

NORMS = ("attention_norm", "output_norm")
_LINEARS = ("query", "key", "value", "attention_output", "intermediate", "output")


@dataclass(frozen=True)
class SpecLayer:
    """The modules of an encoder layer, what they compute, and its current dropout probabilities, 0 in inference."""

    spec: LayerSpec
    parts: dict[str, nn.Module]
    """By the names of `TransformersLayout.parts`."""
    activation: Callable[[Tensor], Tensor] | None
    """None: that of the spec."""
    home: str
    """The module of transformers that defines the layer."""
    attention_p: float
    attention_output_p: float
    output_p: float
    inner_p: float

    @property
    def largest_p(self) -> float:
        """The largest dropout probability of tokens."""
        return max(self.attention_output_p, self.output_p, self.inner_p)

    @property
    def projections(self) -> tuple[nn.Module, ...]:
        """The linear layers whose weights a GPU reads as one."""
        if self.spec.unfused is not None:
            return ()
        return self.parts["query"], self.parts["key"], self.parts["value"]

    def is_tokenwise(self) -> bool:
        """Return whether nothing but attention is known to read more than one token, so that tokens may be packed."""
        if self.activation is not None and not is_pointwise(self.activation):
            return False
        return all(
            is_tokenwise_norm(part) or is_rms_norm(part, self.home) if name in NORMS else is_tokenwise_linear(part)
            for name, part in self.parts.items()
        )

    def run(self, x: Tensor, batch: LayerBatch, index: int, int8: bool = False) -> Tensor:
        """Compute the layer of x (tokens, hidden_size) -> the same shape: as one operation if its modules are plain and
        a backend fuses it, else composed of single operations, modules that are not plain running their own forward."""
        batch = replace(
            batch, attention_p=self.attention_p, attention_output_p=self.attention_output_p, output_p=self.output_p,
            inner_p=self.inner_p,
        )  # fmt: skip
        layer = _ComposedLayer(self, batch, index)
        if self.is_plain:
            parameters = self.fusible_parameters()
            if parameters is not None:
                fused = fused_layer(x, parameters, self.spec, batch, index, int8=int8)
            else:
                fused = native_layer(layer.layer_parts, x, self.spec, batch, int8=int8, tables=layer.position_tables)
            if fused is not None:
                return fused
        return compose_layer(x, layer, batch, index)

    @functools.cached_property
    def is_plain(self) -> bool:
        """Return whether the parameters of the linear layers and norms alone decide what the layer computes."""
        return self.activation is None and all(
            self.is_plain_norm(name) if name in NORMS else is_plain(part) or is_plain_without_bias(part)
            for name, part in self.parts.items()
        )

    def is_plain_norm(self, name: str) -> bool:
        """Return whether a norm computes what the spec says of it, with its own parameters."""
        spec = self.spec.attention_norm if name == "attention_norm" else self.spec.output_norm
        return spec is not None and norm_eps(self.parts[name], self.home) == spec.eps

    def fusible_parameters(self) -> LayerParameters | None:
        """Return the parameters of a plain layer whose spec is BERT's and that has every bias; else None."""
        if self.spec.unfused is not None:
            return None
        linears = tuple(self.parts[name] for name in _LINEARS)
        norms = (self.parts["attention_norm"], self.parts["output_norm"])
        biased = all(module._parameters.get("bias") is not None for module in (*linears, *norms))
        return layer_parameters(linears, norms) if biased else None

    def leaves_bf16(self, tokens: int, x: Tensor, int8: bool) -> bool:
        """Return whether torch's library, not our kernels, would multiply bf16 on the CPU in the layer of so many
        tokens; `x` has the dtype and the device of the hidden states."""
        if not self.is_plain:
            return True
        parameters = self.fusible_parameters()
        if parameters is not None:
            return not is_native(parameters, self.spec, tokens, torch.bfloat16, int8=int8, trains=False)
        return torch.is_grad_enabled() or not is_native_spec(self.spec, tokens, torch.bfloat16)


class _ComposedLayer(ModuleLayer):
    """A `SpecLayer` of single operations."""

    def __init__(self, layer: SpecLayer, batch: LayerBatch, index: int) -> None:
        super().__init__(
            layer.spec, layer.parts, batch, index, is_plain_norm=self._is_plain_norm, activation=layer.activation
        )
        self.layer = layer
        self._projected: tuple[Tensor, ...] = ()

    def _is_plain_norm(self, module: nn.Module) -> bool:
        return any(self.layer.parts.get(name) is module and self.layer.is_plain_norm(name) for name in NORMS)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return the linear layer of x (tokens, in), with its bias."""
        if name not in ("query", "key", "value") or "qkv" not in self.modules:
            return super().linear(name, x)
        if name == "query":  # the first that a layer computes
            self.check_dtype("qkv", x)
            self._projected = project(self.modules["qkv"], x).chunk(3, dim=-1)
        return self._projected[("query", "key", "value").index(name)]

    def expand(self, x: Tensor) -> Tensor:
        """Return the activation of the intermediate linear layer, of a gated network times its other half."""
        network = self.spec.feed_forward
        if not network.gated or ("gate" not in self.modules and self.activation is None):
            return super().expand(x)
        halves: tuple[Tensor, ...]
        if "gate" in self.modules:
            halves = project(self.modules["gate"], x), project(self.modules["up"], x)
        else:
            halves = project(self.modules["intermediate"], x).chunk(2, dim=-1)
        if self.activation is None:
            inner = gated_activation(torch.cat(halves, dim=-1), None, network.activation)
        else:
            inner = self.activation(halves[0]) * halves[1]
        return dropout(inner, self.batch.row_dropout(Site.INTERMEDIATE, self.index, self.batch.inner_p))

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Return the norm of x (tokens, width)."""
        return (
            plain_norm(self.modules[name], x, self.layer.home)
            if self.layer.is_plain_norm(name)
            else super().norm(name, x)
        )


def plain_norm(module: Any, x: Tensor, home: str) -> Tensor:
    """Return a norm that `norm_eps` knows of x (rows, width), by our operation."""
    if is_rms_norm(module, home):
        return rms_norm(x, module.weight, module.variance_epsilon)
    return layer_norm(x, module.weight, module.bias, module.eps)


@functools.cache
def with_activation(spec: LayerSpec, activation: Activation) -> LayerSpec:
    """Return a spec with another activation."""
    if spec.feed_forward.activation == activation:
        return spec
    return replace(spec, feed_forward=replace(spec.feed_forward, activation=activation))
