"""A whole encoder layer, forward and backward: products by torch's library or ours, and between them one pass each.

    qkv = x Wqkv + b          one product                      saved
    context, lse = attention(qkv)                              saved
    z1 = x + dropout(context Wo + bo);  y1 = LayerNorm(z1)     z1 and statistics saved, y1 unless it is recomputed
    u = y1 W1 + b1;  h = GELU(u)                               u saved, h never: backward computes it beside dGELU
    z2 = y1 + dropout(h W2 + b2);  y2 = LayerNorm(z2)          z2 and statistics saved

Backward of a residual connection is an addition, and the products that end in it add: dy1 = dz2 + du W1 and
dx = dz1 + dqkv Wqkv are one call each, and no pass over the tokens only adds.

Where only some tokens' outputs are wanted (`LayerSettings.rows`), everything behind attention is of these alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.kernels.attention import launchers
from fastbert.kernels.gelu import bias_gelu
from fastbert.kernels.linear import linear
from fastbert.kernels.norm import layer_norm
from fastbert.ops.attention.arguments import check_offsets
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.dropout.triton import kernel_inputs
from fastbert.ops.encoder_layer.op import SAVE_ALL, SAVE_NOTHING, LayerSettings, LayerWeights, Wanted
from fastbert.ops.linear.mixed_matmul import accumulate, product


def forward(
    x: Tensor, weights: LayerWeights, settings: LayerSettings, dtype: torch.dtype, tf32: bool, save: int
) -> list[Tensor]:
    """[y2] and, unless nothing is saved: qkv, context, lse, z1, mean1, rstd1, u, z2, mean2, rstd2, and y1 if all is."""
    keep = save != SAVE_NOTHING
    rows = x.to(dtype)
    qkv = F.linear(rows, _joined(weights, dtype), _joined_bias(weights, dtype))
    problem = settings.problem(_split(qkv, settings), tf32)
    check_offsets(problem)
    context, lse = launchers.forward(problem)
    context = context.flatten(1)
    y1, z1, mean1, rstd1 = layer_norm.forward(
        settings.outputs(context) @ weights.attention_output.to(dtype).t(),
        weights.attention_output_bias,
        settings.outputs(x),
        weights.attention_norm,
        weights.attention_norm_bias,
        settings.eps,
        kernel_inputs(settings.hidden_dropout(Site.ATTENTION_OUTPUT)),
        keep,
    )
    h, u = widen(y1, weights, settings.tanh, keep)
    y2, z2, mean2, rstd2 = layer_norm.forward(
        h @ weights.output.to(dtype).t(),
        weights.output_bias,
        y1,
        weights.output_norm,
        weights.output_norm_bias,
        settings.eps,
        kernel_inputs(settings.hidden_dropout(Site.FEED_FORWARD_OUTPUT)),
        keep,
    )
    if not keep:
        return [y2]
    saved = [qkv, context, lse, z1, mean1, rstd1, u, z2, mean2, rstd2]
    return [y2, *saved, *([y1] if save == SAVE_ALL else [])]


def _joined(weights: LayerWeights, dtype: torch.dtype) -> Tensor:
    """The three projections as one (3 x width, width)."""
    return torch.cat((weights.query, weights.key, weights.value)).to(dtype)


def _joined_bias(weights: LayerWeights, dtype: torch.dtype) -> Tensor:
    return torch.cat((weights.query_bias, weights.key_bias, weights.value_bias)).to(dtype)


def _split(qkv: Tensor, settings: LayerSettings) -> Tensor:
    return qkv.view(qkv.shape[0], 3, settings.heads, qkv.shape[1] // (3 * settings.heads))


def _own(x: Tensor, weights: LayerWeights) -> bool:
    """Whether the widening product and its gradient are ours, with GELU in their epilogues."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    return half and all(size % 16 == 0 for size in weights.intermediate.shape) and linear.prefers_own(x)


def widen(y1: Tensor, weights: LayerWeights, tanh: bool, keep: bool) -> tuple[Tensor, Tensor]:
    """h = GELU(u) and u, the widening product with its bias; u may be empty unless it is kept."""
    weight, bias = weights.intermediate.to(y1.dtype), weights.intermediate_bias
    if _own(y1, weights):
        return linear.linear_gelu(y1, weight, bias, tanh, keep)
    u = F.linear(y1, weight, bias.to(y1.dtype))
    return bias_gelu.forward(u, None, tanh), u


def narrow_backward(df: Tensor, u: Tensor, weights: LayerWeights, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradient of the narrowing product: that of u, h once more, and the sums of the former, fp32."""
    weight = weights.output.to(df.dtype)
    if _own(df, weights):
        return linear.gelu_gradient_product(df, weight, u, tanh)
    return bias_gelu.backward_again(df @ weight, u, tanh)


def backward(
    grad: Tensor,
    saved: list[Tensor],
    x: Tensor,
    weights: LayerWeights,
    settings: LayerSettings,
    dtype: torch.dtype,
    tf32: bool,
    wanted: Wanted,
) -> list[Tensor]:
    """What `Wanted` names, in its order; the large ones are empty where they are not wanted."""
    qkv, context, lse, z1, mean1, rstd1, u, z2, mean2, rstd2, *kept = saved
    w = weights
    y1 = kept[0] if kept else _normalized(z1, w.attention_norm, w.attention_norm_bias, settings.eps)
    df, dy1, sums2 = layer_norm.backward(
        grad.to(dtype), None, z2, mean2, rstd2, w.output_norm,
        kernel_inputs(settings.hidden_dropout(Site.FEED_FORWARD_OUTPUT)), x_bias=True, residual=True,
    )  # fmt: skip
    du, h, db1 = narrow_backward(df, u, w, settings.tanh)
    dw2 = product(df.t(), h, w.output.dtype) if wanted.output else _none(w.output)
    dw1 = product(du.t(), y1, w.intermediate.dtype) if wanted.intermediate else _none(w.intermediate)
    del h
    # Without dropout that gradient is df itself, of which nothing else is wanted from here on.
    dy1 = accumulate(df if dy1 is None else dy1, du, w.intermediate.to(dtype))
    do, dx, sums1 = layer_norm.backward(
        dy1, None, z1, mean1, rstd1, w.attention_norm,
        kernel_inputs(settings.hidden_dropout(Site.ATTENTION_OUTPUT)), x_bias=True, residual=True,
    )  # fmt: skip
    wo, of_wo = w.attention_output, wanted.attention_output
    dwo = product(do.t(), settings.outputs(context), wo.dtype) if of_wo else _none(wo)
    dcontext = settings.spread(do @ wo.to(dtype), len(x))
    problem = settings.problem(_split(qkv, settings), tf32)
    shape = problem.q.shape
    dqkv = launchers.backward_joined(problem, context.view(shape), lse, dcontext.view(shape)).flatten(1)
    dw = product(dqkv.t(), x.to(dtype), w.query.dtype) if wanted.projections else _none(w.query)
    db = dqkv.sum(0, dtype=torch.float32) if wanted.projection_biases else _none(db1)
    if wanted.x:
        dx = accumulate(settings.spread(do if dx is None else dx, len(x)), dqkv, _joined(w, dtype)).to(x.dtype)
    else:
        dx = _none(x)
    return [dx, dw, db, dwo, sums1, dw1, db1, dw2, sums2]


def _normalized(z: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layer_norm.forward(z, None, None, weight, bias, eps, None, False)[0]


def _none(like: Tensor) -> Tensor:
    return like.new_empty(0)
