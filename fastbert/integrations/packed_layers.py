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
from fastbert.models.layers import Dropouts, LayerNumbers, self_attention, whole_layer
from fastbert.models.plain import holds_both, is_plain, project_apart, runs_as_written
from fastbert.ops import native_layer
from fastbert.ops.backend import choose
from fastbert.ops.dropout import Site
from fastbert.ops.encoder_layer import LayerWeights
from fastbert.packing import PackedBatch

# What transformers leaves on layers once hidden states or attentions were asked for: idle in every other call.
CAPTURING = "transformers.utils.output_capturing"
TANH_GELUS = ("NewGELUActivation", "GELUTanh", "FastGELUActivation")


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


def dropped(*modules: Any) -> list[float]:
    """With which probability these dropout modules drop now."""
    return [float(module.p) if module.training else 0.0 for module in modules]


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


def library_multiplies_bf16(parts: Iterable[LayerParts], tokens: int, dtype: torch.dtype, int8: bool) -> bool:
    """Whether torch's library would multiply bf16 in one of the layers at so many tokens, and not our kernels."""
    native = choose("encoder_layer", torch.device("cpu")) == "native"
    for index, layer in enumerate(parts):
        weights, _ = _plain(layer, index, int8)
        if weights is None or not native:
            return True
        if native_layer.element_of(tokens, dtype, weights, layer.heads, int8) is None:
            return True
    return False


def _plain(parts: LayerParts, index: int, int8: bool) -> tuple[LayerWeights | None, LayerNumbers | None]:
    """The layer's parameters and numbers, if nothing but them decides what it computes."""
    approximation = gelu_of(parts.activation)
    linears = (parts.query, parts.key, parts.value, parts.attention_output, parts.intermediate, parts.output)
    norms: tuple[Any, Any] = (parts.attention_norm, parts.output_norm)
    if approximation is None or parts.inner_p or parts.attention_output_p != parts.output_p:
        return None, None
    if not all(is_plain(linear) for linear in linears) or not all(is_plain_norm(norm) for norm in norms):
        return None, None
    if norms[0].eps != norms[1].eps:
        return None, None
    held: list[Any] = [linear._parameters for linear in linears]
    query, key, value, inside, widening, narrowing = held
    first, last = (norm._parameters for norm in norms)
    weights = LayerWeights(
        query=query["weight"],
        key=key["weight"],
        value=value["weight"],
        query_bias=query["bias"],
        key_bias=key["bias"],
        value_bias=value["bias"],
        attention_output=inside["weight"],
        attention_output_bias=inside["bias"],
        attention_norm=first["weight"],
        attention_norm_bias=first["bias"],
        intermediate=widening["weight"],
        intermediate_bias=widening["bias"],
        output=narrowing["weight"],
        output_bias=narrowing["bias"],
        output_norm=last["weight"],
        output_norm_bias=last["bias"],
    )
    return weights, LayerNumbers(parts.heads, index, norms[0].eps, approximation == "tanh", int8)


def gelu_of(activation: Any) -> str | None:
    """How an activation computes GELU, "none" (by erf) or "tanh"; None: it is another function."""
    if activation is F.gelu:
        return "none"
    if isinstance(activation, nn.Module) and has_hooks(activation):
        return None
    if type(activation) is nn.GELU:
        return activation.approximate
    home, name = type(activation).__module__, type(activation).__name__
    if home != "transformers.activations":
        return None
    return "none" if name == "GELUActivation" else "tanh" if name in TANH_GELUS else None


def is_plain_norm(module: nn.Module) -> bool:
    """Whether a LayerNorm is nothing but its weight, bias and epsilon, over one dimension."""
    return runs_as_written(module, nn.LayerNorm) and holds_both(module) and len(module.normalized_shape) == 1  # type: ignore[arg-type]


def has_hooks(module: nn.Module) -> bool:
    """Whether something wants to see the module run, apart from transformers' idle recorders."""
    seeing = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if not any(seeing):
        return False
    return any(getattr(hook, "__module__", None) != CAPTURING for hooks in seeing for hook in hooks.values())


def is_touched(module: nn.Module) -> bool:
    """Whether a module or one inside it has hooks: what they see then must be what they always saw."""
    # By hand: `modules()` remembers what it has seen, which costs a small batch several times as much as looking.
    waiting: list[nn.Module | None] = [module]
    while waiting:
        part = waiting.pop()
        if part is None:
            continue
        if has_hooks(part):
            return True
        waiting.extend(part._modules.values())
    return False


def _widen(parts: LayerParts, x: Tensor) -> Tensor:
    approximation = gelu_of(parts.activation)
    if approximation is None:
        product, bias = project_apart(parts.intermediate, x)
        return parts.activation(product if bias is None else product + bias.to(product.dtype))
    product, bias = project_apart(parts.intermediate, x)
    return ops.bias_gelu(product, bias, approximation)


def _add_norm(norm: Any, linear: nn.Module, inner: Tensor, residual: Tensor, dropout: Any) -> Tensor:
    """norm(dropout(linear(inner)) + residual)."""
    product, bias = project_apart(linear, inner)
    if is_plain_norm(norm):
        return ops.dropout_add_layer_norm(product, residual, norm.weight, norm.bias, norm.eps, dropout, x_bias=bias)
    product = product if bias is None else product + bias.to(product.dtype)
    normed: Tensor = norm((product if dropout is None else ops.dropout(product, dropout)) + residual)
    return normed
