"""A whole encoder layer on CPUs, forward and backward, of the C++ kernels: what `fastbert.kernels.encoder_layer` is on
GPUs, with the same tensors saved.

    qkv = x Wqkv + b          one product                      saved
    context, lse = attention(qkv)                              saved
    z1 = x + dropout(context Wo + bo);  y1 = LayerNorm(z1)     z1 and statistics saved, y1 unless it is recomputed
    u = y1 W1 + b1;  h = GELU(u)                               u saved, h never: backward computes it beside dGELU
    z2 = y1 + dropout(h W2 + b2);  y2 = LayerNorm(z2)          z2 and statistics saved

Weights are read from copies that are laid out for products, and for those of backward from transposed ones; both are
made anew when a weight changes. Gradients of weights are sums over the tokens in fp32 that nothing rounds. Where only
some tokens' outputs are wanted (`LayerSettings.rows`), everything behind attention is of these alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fastbert._C import PackedWeight
from fastbert.errors import UserError
from fastbert.ops.attention import native as native_attention
from fastbert.ops.dropout.op import Site
from fastbert.ops.native import buffers, caching_allocator, matmul, prepacked_weights, rowwise, rowwise_gradients
from fastbert.ops.native.buffers import DTYPES

if TYPE_CHECKING:
    from fastbert.ops.encoder_layer.op import LayerSettings, LayerWeights, Wanted


# Tokens whose widened vectors exist at a time: they stay in the last cache, and memory does not grow with them.
CHUNK = 2048


class _Products(NamedTuple):
    """The layer's weights as products read them."""

    projections: PackedWeight
    attention_output: PackedWeight
    intermediate: PackedWeight
    output: PackedWeight


def _products(weights: LayerWeights, dtype: torch.dtype, transposed: bool = False) -> _Products:
    w = weights
    matrices = (w.query, w.key, w.value, w.attention_output, w.intermediate, w.output)
    return _Products(*prepacked_weights.prepacked_group(matrices, (3, 1, 1, 1), DTYPES[dtype], transposed=transposed))


def forward(
    x: Tensor, weights: LayerWeights, settings: LayerSettings, dtype: torch.dtype, tf32: bool, save: int
) -> list[Tensor]:
    """[y2] and, unless nothing is saved: qkv, context, lse, z1, mean1, rstd1, u, z2, mean2, rstd2, and y1 if all is."""
    from fastbert.ops.encoder_layer.op import SAVE_ALL, SAVE_NOTHING

    w, keep = weights, save != SAVE_NOTHING
    packed = _products(weights, dtype)
    buffers.address("x", x)
    rows = matmul.row_contiguous(x)
    tokens, width = x.shape
    biases = (w.query_bias, w.key_bias, w.value_bias)
    for one in biases:
        buffers.address("a bias of the projections", one)  # torch would read it
    bias = torch.cat(biases)
    qkv = _product(rows, packed.projections, bias, dtype=dtype)
    context, lse = native_attention.forward(settings.problem(_split(qkv, settings), tf32), with_lse=keep)
    context = context.view(tokens, width)
    y1, z1, mean1, rstd1 = rowwise.norm_forward(
        _product(settings.outputs(context), packed.attention_output), w.attention_output_bias,
        settings.outputs(rows).to(dtype), w.attention_norm, w.attention_norm_bias, settings.eps,
        settings.hidden_dropout(Site.ATTENTION_OUTPUT), keep,
    )  # fmt: skip
    u, f = _feed_forward(y1, packed, w.intermediate_bias, settings, keep)
    y2, z2, mean2, rstd2 = rowwise.norm_forward(
        f, w.output_bias, y1, w.output_norm, w.output_norm_bias, settings.eps,
        settings.hidden_dropout(Site.FEED_FORWARD_OUTPUT), keep,
    )  # fmt: skip
    if not keep:
        return [y2]
    assert u is not None
    saved = [qkv, context, lse, z1, mean1, rstd1, u, z2, mean2, rstd2]
    return [y2, *saved, *([y1] if save == SAVE_ALL else [])]


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
    buffers.address("x", x)
    qkv, context, u, *kept = (matmul.row_contiguous(tensor) for tensor in (qkv, context, u, *kept))
    w, packed = weights, _products(weights, dtype, transposed=True)
    _check_unchanged([qkv, context, u, z1, z2, *kept], x, lse, w, packed, settings, dtype)
    y1 = kept[0] if kept else _normed_again(z1, w, settings)
    df, dz2, sums2 = rowwise_gradients.norm_gradients(
        grad.to(dtype), None, z2, mean2, rstd2, w.output_norm, settings.hidden_dropout(Site.FEED_FORWARD_OUTPUT),
        x_bias=True, residual=True,
    )  # fmt: skip
    dy1, dw1, db1, dw2 = _feed_forward_backward(df, dz2, u, y1, w, packed, settings.tanh, wanted)
    del df, dz2
    do, dz1, sums1 = rowwise_gradients.norm_gradients(
        dy1, None, z1, mean1, rstd1, w.attention_norm, settings.hidden_dropout(Site.ATTENTION_OUTPUT),
        x_bias=True, residual=True,
    )  # fmt: skip
    dwo = _weight_gradient(do, settings.outputs(context), w.attention_output, wanted.attention_output)[0]
    problem = settings.problem(_split(qkv, settings), tf32)
    shape, dcontext = (
        problem.q.shape,
        settings.spread(_product(do, packed.attention_output), len(x), caching_allocator.zeros),
    )
    dqkv = native_attention.backward_joined(problem, context.view(shape), lse, dcontext.view(shape)).flatten(1)
    rows = matmul.row_contiguous(x).to(dtype)
    dw, db = _weight_gradient(dqkv, rows, w.query, wanted.projections, sums=wanted.projection_biases)
    if not wanted.x:
        return [_none(x), dw, db, dwo, sums1, dw1, db1, dw2, sums2]
    dx = settings.spread(do if dz1 is None else dz1, len(x), caching_allocator.zeros)
    dx = _product_onto(dx, dqkv, packed.projections).to(x.dtype)
    return [dx, dw, db, dwo, sums1, dw1, db1, dw2, sums2]


def _check_unchanged(
    saved: list[Tensor],
    x: Tensor,
    lse: Tensor,
    weights: LayerWeights,
    packed: _Products,
    settings: LayerSettings,
    dtype: torch.dtype,
) -> None:
    """Refuse what has another shape than forward had it: torch does not see a new `.data`, and kernels would read
    beyond the end."""
    qkv, context, u, z1, z2, *kept = saved
    (rows, width), inner, tokens = z1.shape, u.shape[1], lse.shape[1]
    shapes = [tuple(tensor.shape) for tensor in (x, qkv, context, u, z2, *kept)]
    wanted = [(tokens, width), (tokens, 3 * width), (tokens, width), (rows, inner), (rows, width)]
    copies = [(copy.columns, copy.depth) for copy in packed]
    vectors = (weights.attention_norm, weights.attention_norm_bias, weights.output_norm)
    same = (
        shapes == wanted + [(rows, width)] * len(kept)
        and copies == [(width, 3 * width), (width, width), (width, inner), (inner, width)]
        and all(vector.shape == (width,) for vector in vectors)
        and all(tensor.dtype == dtype for tensor in saved)
    )
    if not same:
        raise UserError(
            f"x, a weight or what was saved of layer {settings.layer} changed its shape or dtype between forward and"
            " backward: run forward again"
        )


def _parts(tokens: int) -> list[slice]:
    """The tokens in parts of CHUNK; without any one part, from which gradients of zero come."""
    return [slice(first, min(tokens, first + CHUNK)) for first in range(0, max(tokens, 1), CHUNK)]


def _feed_forward(
    y1: Tensor, packed: _Products, bias: Tensor, settings: LayerSettings, keep: bool
) -> tuple[Tensor | None, Tensor]:
    """u, what GELU is computed of, where it is to be kept, and h W2; the tokens' h exist by parts."""
    tokens, inner = y1.shape[0], packed.intermediate.columns
    u = caching_allocator.empty((tokens, inner), y1.dtype) if keep else None
    f, h = caching_allocator.empty(y1.shape, y1.dtype), caching_allocator.empty((min(tokens, CHUNK), inner), y1.dtype)
    activation = "gelu_tanh" if settings.tanh else "gelu"
    for part in _parts(tokens):
        own, before = h[: part.stop - part.start], None if u is None else u[part]
        matmul.matmul_unchecked(y1[part], packed.intermediate, own, bias, activation=activation, pre_activation=before)
        matmul.matmul_unchecked(own, packed.output, f[part])
    return u, f


def _feed_forward_backward(
    df: Tensor,
    dz2: Tensor | None,
    u: Tensor,
    y1: Tensor,
    weights: LayerWeights,
    packed: _Products,
    tanh: bool,
    wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of y1, W1, b1 and W2, where a token's du and h exist by parts.

    Without dropout the gradient of the residual connection, `dz2`, is None: it is df itself. That of y1 is written over
    it, a part behind the part's last use.
    """
    tokens, inner = u.shape
    dy1 = df if dz2 is None else dz2
    du, h = (caching_allocator.empty((min(tokens, CHUNK), inner), u.dtype) for _ in range(2))
    dw1 = caching_allocator.empty(weights.intermediate.shape if wanted.intermediate else (0,), torch.float32)
    dw2 = caching_allocator.empty(weights.output.shape if wanted.output else (0,), torch.float32)
    db1, sums = caching_allocator.zeros((inner,), torch.float32), caching_allocator.empty((inner,), torch.float32)
    for part in _parts(tokens):
        count, again = part.stop - part.start, part.start > 0
        own, inside = du[:count], h[:count]
        matmul.matmul_gelu_backward_unchecked(df[part], packed.output, u[part], tanh, own, inside)
        if wanted.output:
            matmul.weight_gradient_unchecked(df[part], inside, dw2, None, again)
        if wanted.intermediate:
            matmul.weight_gradient_unchecked(own, y1[part], dw1, sums, again)
            db1 += sums
        else:
            db1 += own.sum(0, dtype=torch.float32)
        _product_onto(dy1[part], own, packed.intermediate)
    return dy1, dw1.to(weights.intermediate.dtype), db1, dw2.to(weights.output.dtype)


def _split(qkv: Tensor, settings: LayerSettings) -> Tensor:
    return qkv.view(qkv.shape[0], 3, settings.heads, qkv.shape[1] // (3 * settings.heads))


def _product(
    x: Tensor, weight: PackedWeight, bias: Tensor | None = None, *, dtype: torch.dtype | None = None
) -> Tensor:
    out = caching_allocator.empty((x.shape[0], weight.columns), x.dtype if dtype is None else dtype)
    return matmul.matmul_unchecked(x, weight, out, bias)


def _product_onto(total: Tensor, x: Tensor, weight: PackedWeight) -> Tensor:
    """total + x weight^T, written over `total`."""
    return matmul.matmul_unchecked(x, weight, total, residual=total)


def _weight_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, wanted: bool, sums: bool = False
) -> tuple[Tensor, Tensor]:
    """grad^T x in the weight's dtype, empty unless `wanted`, and with `sums` those of the columns of `grad`, fp32."""
    if not wanted:
        return _none(weight), grad.sum(0, dtype=torch.float32) if sums else grad.new_empty(0, dtype=torch.float32)
    found = caching_allocator.empty((grad.shape[1], x.shape[1]), torch.float32)
    columns = caching_allocator.empty((grad.shape[1] if sums else 0,), torch.float32)
    matmul.weight_gradient_unchecked(grad, x, found, columns if sums else None)
    return found.to(weight.dtype), columns


def _normed_again(z1: Tensor, weights: LayerWeights, settings: LayerSettings) -> Tensor:
    w = weights
    return rowwise.norm_forward(z1, None, None, w.attention_norm, w.attention_norm_bias, settings.eps, None, False)[0]


def _none(like: Tensor) -> Tensor:
    return like.new_empty(0)
