"""Layers for tokens that are written one by one on a CPU: bias, GELU, residual and LayerNorm inside of the products.

A token or a few make small products, beside which everything else that is called costs as much again. Weights do not
change while a text is written, so they are looked at once, when it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fastbert import _C
from fastbert.models.fusibility import has_hooks, is_plain, owns_weight_and_bias, runs_as_written
from fastbert.models.modules import Layer, Norm, Output
from fastbert.models.seq2seq.decoder import AttentionContext, DecoderLayer, run_context_layer
from fastbert.ops.dispatch import preferred_backend
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.encoder_layer.spec import APPROXIMATIONS
from fastbert.ops.native import buffers, matmul, prepacked_weights
from fastbert.ops.native.matmul_table import prefers_native

if TYPE_CHECKING:
    from fastbert.models.self_attention import SelfAttention

Step = Callable[[Tensor, AttentionContext, LayerBatch], Tensor]


def step_layers(layers: Iterable[Any], like: Tensor) -> list[Step]:
    """Return the steps that compute layers for new tokens of the dtype and device of `like`: fused where the CPU's
    kernels support a layer of plain modules, else the layer's own forward."""
    steps: list[Step] = []
    for number, layer in enumerate(layers):
        fused = _fused(layer, number, like)
        forward: Step = layer if isinstance(layer, DecoderLayer) else partial(run_context_layer, layer, number)
        steps.append(forward if fused is None else fused)
    return steps


def _fused(layer: Layer | DecoderLayer, number: int, like: Tensor) -> FusedLayer | None:
    """Return the fused layer; None if it would compute something else, or is not supported."""
    if not (type(layer) in (Layer, DecoderLayer) and runs_as_written(layer, type(layer)) and _is_plain(layer)):
        return None
    element = fused_element(layer, like)
    return None if element is None else FusedLayer(layer, number, element)


def fused_element(layer: Any, like: Tensor) -> str | None:
    """Return the elements of prepacked weights for a layer's new tokens of the dtype and device of `like`; None if the
    CPU's kernels do not support them."""
    autocast = torch.is_autocast_enabled(like.device.type)
    if (
        like.device.type != "cpu"
        or autocast
        or like.dtype not in buffers.DTYPES
        or preferred_backend("linear", like.device) != "native"
    ):
        return None
    if torch.compiler.is_compiling() or not buffers.direct(like):
        return None
    element = layer.quantization or buffers.DTYPES[like.dtype]
    width, inner = layer.output.dense.out_features, layer.output.dense.in_features
    if not all(prefers_native(element, 16, *shape) for shape in ((width, width), (inner, width), (width, inner))):
        return None
    return element


def _is_plain(layer: Any) -> bool:
    """Return whether the layer's parameters alone decide what it computes."""
    if layer.spec.self_attention.similarity != "dot":
        return False
    attentions = [layer.attention, *([layer.crossattention] if isinstance(layer, DecoderLayer) else [])]
    linears: list[nn.Module] = [layer.intermediate.dense, layer.output.dense]
    for attention in attentions:
        projections = attention.self
        linears += [projections.query, projections.key, projections.value, attention.output.dense]
    outputs = [layer.output, *(attention.output for attention in attentions)]
    norms = [output.LayerNorm for output in outputs]
    containers = [layer.intermediate, *attentions, *(attention.self for attention in attentions)]
    return (
        all(is_plain(linear) for linear in linears)
        and all(runs_as_written(output, Output) for output in outputs)
        and all(runs_as_written(norm, Norm) and owns_weight_and_bias(norm) for norm in norms)
        and not any(has_hooks(module) for module in containers)
    )


class FusedLayer:
    """A layer of plain modules as four matmuls and attention; with cross-attention six and two."""

    def __init__(self, layer: Layer | DecoderLayer, number: int, element: str) -> None:
        self.number = number
        self.heads: int = layer.spec.self_attention.heads
        self.activation: str = layer.spec.feed_forward.activation
        projections = layer.attention.self
        linears = [
            projections.query,
            projections.key,
            projections.value,
            layer.attention.output.dense,
            layer.intermediate.dense,
        ]
        linears.append(layer.output.dense)
        weights, counts = [linear.weight for linear in linears], (3, 1, 1, 1)
        self.joined: _C.PrepackedWeight
        self.mixed: _C.PrepackedWeight
        self.widened: _C.PrepackedWeight
        self.narrowed: _C.PrepackedWeight
        self.joined, self.mixed, self.widened, self.narrowed = prepacked_weights.prepacked_group(
            weights, counts, element
        )
        biases = [linear.bias.detach() for linear in linears]
        self.joined_bias: Tensor = torch.cat(biases[:3])
        self.mixed_bias: Tensor
        self.widened_bias: Tensor
        self.narrowed_bias: Tensor
        self.mixed_bias, self.widened_bias, self.narrowed_bias = biases[3:]
        self.mixed_norm: tuple[Tensor, Tensor, float] = _norm(layer.attention.output)
        self.narrowed_norm: tuple[Tensor, Tensor, float] = _norm(layer.output)
        self.cross: _FusedCross | None = _FusedCross(layer, element) if isinstance(layer, DecoderLayer) else None

    def __call__(self, x: Tensor, context: AttentionContext, batch: LayerBatch) -> Tensor:
        """Compute the layer: x (tokens, hidden_size) -> the same shape; nothing is dropped."""
        del batch
        product = matmul.matmul
        q, k, v = product(x, self.joined, self.joined_bias).view(len(x), 3, self.heads, -1).unbind(1)
        attended = context.attend(self.number, q, k, v).flatten(1)
        x = product(attended, self.mixed, self.mixed_bias, residual=x, norm=self.mixed_norm)
        if self.cross is not None:
            x = self.cross(x, context, self.number, self.heads)
        if self.activation in APPROXIMATIONS:
            inner = product(x, self.widened, self.widened_bias, self.activation)
        else:
            inner = product(x, self.widened, self.widened_bias).relu_()
        return product(inner, self.narrowed, self.narrowed_bias, residual=x, norm=self.narrowed_norm)


class _FusedCross:
    """Cross-attention to cached keys and values."""

    def __init__(self, layer: DecoderLayer, element: str) -> None:
        attention = layer.crossattention
        linears = (attention.self.query, attention.output.dense)
        self.attention: SelfAttention = attention.self
        self.query: _C.PrepackedWeight
        self.mixed: _C.PrepackedWeight
        self.query, self.mixed = prepacked_weights.prepacked_group(
            [linear.weight for linear in linears], (1, 1), element
        )
        self.query_bias: Tensor
        self.mixed_bias: Tensor
        self.query_bias, self.mixed_bias = (linear.bias.detach() for linear in linears)
        self.norm: tuple[Tensor, Tensor, float] = _norm(attention.output)

    def __call__(self, x: Tensor, context: AttentionContext, number: int, heads: int) -> Tensor:
        q = matmul.matmul(x, self.query, self.query_bias).view(len(x), heads, -1)
        attended = context.cross_attend(number, q, self.attention).flatten(1)
        return matmul.matmul(attended, self.mixed, self.mixed_bias, residual=x, norm=self.norm)


def _norm(output: Output) -> tuple[Tensor, Tensor, float]:
    """Return the weight, bias and epsilon of a block's LayerNorm."""
    norm = output.LayerNorm
    return norm.weight.detach(), norm.bias.detach(), norm.eps
