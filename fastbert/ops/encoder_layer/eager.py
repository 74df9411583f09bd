"""An encoder layer composed of single operations, each on the backend that supports it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.attention.op import attention
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.op import dropout
from fastbert.ops.encoder_layer.arguments import EncoderLayerArguments
from fastbert.ops.encoder_layer.composition import activate, compose_layer, refuse_unsupported
from fastbert.ops.encoder_layer.spec import NormSpec
from fastbert.ops.linear.op import linear
from fastbert.ops.norm.op import dropout_add_layer_norm, dropout_add_rms_norm, layer_norm, rms_norm
from fastbert.ops.operation import EagerBackend


class Eager(EagerBackend[EncoderLayerArguments]):
    """Every layer of which the single operations exist."""

    summary = "composed of the other operations"

    def forward(self, arguments: EncoderLayerArguments, *options: Any) -> Tensor:
        """Return the layer's output, (tokens, width) or (rows, width)."""
        refuse_unsupported(arguments.spec)
        _check_parameters(arguments)
        return compose_layer(arguments.x, _Layer(arguments), arguments.batch, arguments.layer_index)


def _check_parameters(arguments: EncoderLayerArguments) -> None:
    """Raise UserError for a spec of parameters that `LayerParameters` does not hold, or that have other shapes."""
    spec, parameters = arguments.spec, arguments.parameters
    attention, network = spec.self_attention, spec.feed_forward
    if spec.cross_attention is not None:
        raise UserError("cross_attention: LayerParameters hold no cross-attention; use cross_attention=None")
    norms = [norm for norm in (spec.attention_norm, spec.output_norm) if norm is not None]
    # RMSNorm has no bias: what is given for one is not read.
    norm_biases = [norm.bias or norm.kind == "rms_norm" for norm in norms]
    biases = (attention.projection_bias, attention.output_bias, network.bias, network.first_bias, *norm_biases)
    if not all(biases):
        raise UserError("the spec lacks a bias, but LayerParameters hold every bias: give zeros, and the spec the bias")
    groups = attention.heads if attention.key_value_heads is None else attention.key_value_heads
    inner = attention.heads * attention.head_dim
    widths = {"query": inner, "key": groups * attention.head_dim, "intermediate": network.first_width}
    expected = {name: (width, spec.hidden_size) for name, width in widths.items()}
    for name, shape in expected.items():
        weight: Tensor = getattr(parameters, name)
        if weight.shape != shape:
            raise UserError(f"{name} has shape {tuple(weight.shape)}, but the spec describes {shape}")


class _Layer:
    """The parts of a layer by its parameters."""

    def __init__(self, arguments: EncoderLayerArguments) -> None:
        self.arguments = arguments
        self.spec = arguments.spec
        self.parameters = arguments.parameters._asdict()

    def linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.parameters[name], self.parameters[f"{name}_bias"])

    def expand(self, x: Tensor) -> Tensor:
        bias = self.parameters["intermediate_bias"]
        network = self.spec.feed_forward
        return activate(linear(x, self.parameters["intermediate"]), bias, network.activation, gated=network.gated)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, spec = self.arguments.batch, self.spec.self_attention
        offsets, longest = batch.cu_seqlens, batch.max_seqlen
        return attention(
            q, k, v, offsets, offsets, longest, longest, causal=spec.causal, scale=spec.scale, window=spec.window,
            **batch.rotary_arguments(spec),
            dropout_p=batch.attention_p, dropout_key=batch.dropout_key,
            dropout_site=Site.ATTENTION.of_layer(self.arguments.layer_index),
        )  # fmt: skip

    def cross_attend(self, q: Tensor) -> Tensor:
        raise AssertionError("a layer of LayerParameters has no cross-attention")

    def norm(self, name: str, x: Tensor) -> Tensor:
        spec: NormSpec = getattr(self.spec, name)
        if spec.kind == "rms_norm":
            return rms_norm(x, self.parameters[name], spec.eps)
        return layer_norm(x, self.parameters[name], self.parameters[f"{name}_bias"], spec.eps)

    def add_norm(
        self, linear_name: str, norm: str | None, x: Tensor, residual: Tensor, token_dropout: TokenDropout | None
    ) -> Tensor:
        product, bias = linear(x, self.parameters[linear_name]), self.parameters[f"{linear_name}_bias"]
        if norm is None:
            return residual + dropout(product + bias.to(product.dtype), token_dropout)
        spec: NormSpec = getattr(self.spec, norm)
        weight, norm_bias = self.parameters[norm], self.parameters[f"{norm}_bias"]
        if spec.kind == "rms_norm":
            return dropout_add_rms_norm(product, residual, weight, spec.eps, token_dropout, x_bias=bias)
        return dropout_add_layer_norm(product, residual, weight, norm_bias, spec.eps, token_dropout, x_bias=bias)
