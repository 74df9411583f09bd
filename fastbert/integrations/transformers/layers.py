"""An encoder layer of another library, computed on packed tokens with the parameters that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert import ops
from fastbert.integrations.module_checks import gelu_of, is_by_token, is_norm_by_token, is_plain_norm, is_pointwise
from fastbert.models.fusibility import is_plain, project_apart
from fastbert.models.layers import Dropouts, LayerNumbers, layer_weights, self_attention, whole_layer
from fastbert.ops.dispatch import choose
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.encoder_layer import native_inference
from fastbert.ops.encoder_layer.op import LayerWeights
from fastbert.packing import PackedBatch


@dataclass(frozen=True)
class LayerParts:
    """The modules of a post-LN encoder layer, and the probabilities with which it drops now, 0 in inference."""

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
    attention_p: float
    attention_output_p: float
    output_p: float
    inner_p: float = 0.0
    """Behind the activation, where torch.nn's layer drops too."""

    @property
    def linears(self) -> tuple[nn.Module, ...]:
        """The products."""
        return self.query, self.key, self.value, self.attention_output, self.intermediate, self.output

    def by_token(self) -> bool:
        """Whether nothing but attention is known to look at more than one token, so that they may stand packed."""
        norms = is_norm_by_token(self.attention_norm) and is_norm_by_token(self.output_norm)
        known = gelu_of(self.activation) is not None or is_pointwise(self.activation)
        return norms and known and all(is_by_token(linear) for linear in self.linears)


def most_dropped(parts: Iterable[LayerParts | None]) -> tuple[float, float]:
    """The largest probabilities with which layers drop tokens, and attention: what keys are drawn for."""
    known = [part for part in parts if part is not None]
    hidden = max((max(part.attention_output_p, part.output_p) for part in known), default=0.0)
    return hidden, max((part.attention_p for part in known), default=0.0)


def run_layer(
    parts: LayerParts, x: Tensor, batch: PackedBatch, dropouts: Dropouts, index: int, int8: bool = False
) -> Tensor:
    """x (tokens, hidden_size) -> the same shape: as one operation where all parts are plain, else put together from
    single ones, parts that are not plain running their own forward."""
    drops = dropouts
    if (drops.attention, drops.hidden) != (parts.attention_p, parts.output_p):
        drops = copy(dropouts)
        drops.attention, drops.hidden = parts.attention_p, parts.output_p
    weights, numbers = _plain(parts, index, int8)
    if weights is not None and numbers is not None:
        whole = whole_layer(x, weights, numbers, batch, drops)
        if whole is not None:
            return whole
    projections = (parts.query, parts.key, parts.value)
    context = self_attention(x, projections, parts.heads, index, batch, drops)
    site = drops.tokens(Site.ATTENTION_OUTPUT, index, parts.attention_output_p)
    x = _add_norm(parts.attention_norm, parts.attention_output, context, x, site)
    inner = _widen(parts, x)
    if parts.inner_p:
        inner = F.dropout(inner, parts.inner_p)
    return _add_norm(parts.output_norm, parts.output, inner, x, drops.tokens(Site.FEED_FORWARD_OUTPUT, index))


def library_multiplies_bf16(parts: Iterable[LayerParts | None], tokens: int, dtype: torch.dtype, int8: bool) -> bool:
    """Whether torch's library would multiply bf16 in one of the layers at so many tokens, and not our kernels."""
    native = choose("encoder_layer", torch.device("cpu")) == "native"
    for index, layer in enumerate(parts):
        if layer is None:
            continue
        weights, _ = _plain(layer, index, int8)
        if weights is None or not native:
            return True
        if native_inference.element_of(tokens, dtype, weights, layer.heads, int8) is None:
            return True
    return False


def _plain(parts: LayerParts, index: int, int8: bool) -> tuple[LayerWeights | None, LayerNumbers | None]:
    """The layer's parameters and numbers, if nothing but them decides what it computes."""
    approximation = gelu_of(parts.activation)
    norms: tuple[Any, Any] = (parts.attention_norm, parts.output_norm)
    if approximation is None or parts.inner_p or parts.attention_output_p != parts.output_p:
        return None, None
    if not all(is_plain(linear) for linear in parts.linears) or not all(is_plain_norm(norm) for norm in norms):
        return None, None
    if norms[0].eps != norms[1].eps:
        return None, None
    return layer_weights(parts.linears, norms), LayerNumbers(
        parts.heads, index, norms[0].eps, approximation == "tanh", int8
    )


def _widen(parts: LayerParts, x: Tensor) -> Tensor:
    approximation = gelu_of(parts.activation)
    product, bias = project_apart(parts.intermediate, x)
    if approximation is None:
        return parts.activation(product if bias is None else product + bias.to(product.dtype))
    return ops.bias_gelu(product, bias, approximation)


def _add_norm(norm: Any, linear: nn.Module, inner: Tensor, residual: Tensor, dropout: Any) -> Tensor:
    """norm(dropout(linear(inner)) + residual)."""
    product, bias = project_apart(linear, inner)
    if is_plain_norm(norm):
        return ops.dropout_add_layer_norm(product, residual, norm.weight, norm.bias, norm.eps, dropout, x_bias=bias)
    product = product if bias is None else product + bias.to(product.dtype)
    normed: Tensor = norm((product if dropout is None else ops.dropout(product, dropout)) + residual)
    return normed
