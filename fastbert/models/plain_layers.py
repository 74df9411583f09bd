"""Layers whose parameters alone decide what they compute, as the C++ stacks of layers take them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from fastbert.errors import UserError
from fastbert.models.fusibility import has_hooks, is_plain, runs_as_written
from fastbert.models.layers import layer_parameters
from fastbert.models.modules import Layer
from fastbert.models.norm import is_plain_norm
from fastbert.models.pre_norm import PreNormLayer, Projection
from fastbert.ops.encoder_layer.arguments import LayerParameters
from fastbert.ops.native import buffers, prepacked_weights

LINEARS = ("query", "key", "value", "attention_output", "intermediate", "output")


def is_plain_pre_norm(layer: PreNormLayer) -> bool:
    """Return whether the parameters of a pre-LN layer alone decide what it computes: no hooks, no adapters."""
    parts = layer.named_parts()
    norms = (parts["attention_norm"], parts["output_norm"])
    containers: list[nn.Module] = [layer.attention, layer.attention.self, layer.intermediate]
    outputs = (layer.attention.output, layer.output)
    return (
        runs_as_written(layer, PreNormLayer)
        and all(is_plain(parts[name]) for name in LINEARS)
        and all(is_plain_norm(norm) for norm in norms)
        and all(type(output) is Projection and not has_hooks(output) for output in outputs)
        and not any(has_hooks(module) for module in containers)
    )


class PlainLayer(NamedTuple):
    """The parameters of a layer of plain modules, and the epsilons of the attention's and the output's norm."""

    parameters: LayerParameters
    eps: tuple[float, float]


def plain_layer(layer: nn.Module) -> PlainLayer | None:
    """Return the parameters of a layer that the C++ step computes: plain modules, GELU, every bias; None for others."""
    if isinstance(layer, PreNormLayer):
        if not (layer.spec.is_pre_norm and is_plain_pre_norm(layer)):
            return None
        parts: Any = layer.named_parts()
        norms = (parts["attention_norm"], parts["output_norm"])
        return PlainLayer(layer_parameters(tuple(parts[name] for name in LINEARS), norms), (norms[0].eps, norms[1].eps))
    if isinstance(layer, Layer) and layer.spec.unfused is None and runs_as_written(layer, Layer):
        parameters = layer.fusible_parameters()
        eps = (layer.attention.output.LayerNorm.eps, layer.output.LayerNorm.eps)
        return None if parameters is None else PlainLayer(parameters, eps)
    return None


def native_layer(layer: PlainLayer, element: str) -> Any:
    """Return a layer as `_C.DecoderStack` and `_C.EncoderStack` take it."""
    values = layer.parameters
    packed = prepacked_weights.prepacked_group(values.matrices, (3, 1, 1, 1), element)
    vectors = (
        values.query_bias, values.key_bias, values.value_bias, values.attention_output_bias, values.attention_norm,
        values.attention_norm_bias, values.intermediate_bias, values.output_bias, values.output_norm,
        values.output_norm_bias,
    )  # fmt: skip
    return packed, [vector(each) for each in vectors], layer.eps


def vector(vector: Tensor) -> tuple[int, int, str]:
    """Return address, elements and dtype of a contiguous vector."""
    if not vector.is_contiguous():
        raise UserError(f"a vector of shape {tuple(vector.shape)} has strides {vector.stride()}: use contiguous()")
    return buffers.address("a layer's vector", vector), vector.numel(), buffers.DTYPES[vector.dtype]
