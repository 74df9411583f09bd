"""A whole encoder layer on CPUs, forward and backward, by the C++ kernels; it saves the tensors that `triton.py` saves.

    qkv = x Wqkv + b          one matmul                       saved
    context, lse = attention(qkv)                              saved
    z1 = x + dropout(context Wo + bo);  y1 = LayerNorm(z1)     z1 and statistics saved, y1 unless it is recomputed
    u = y1 W1 + b1;  h = GELU(u)                               u saved, h never: backward computes it beside dGELU
    z2 = y1 + dropout(h W2 + b2);  y2 = LayerNorm(z2)          z2 and statistics saved

Weights are prepacked, transposed ones for backward, and repacked when they change. Gradients of weights are sums over
the tokens in fp32 that nothing rounds. With `LayerBatch.token_indices`, everything behind attention is computed of
these tokens alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastbert._C import PrepackedWeight
from fastbert.errors import UserError
from fastbert.ops.attention.op import ATTENTION
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.encoder_layer.arguments import (
    SAVE_ALL,
    SAVE_NOTHING,
    EncoderLayerArguments,
    GradMask,
    LayerParameters,
)
from fastbert.ops.native import buffers, caching_allocator, matmul, prepacked_weights
from fastbert.ops.norm.arguments import LayerNormArguments
from fastbert.ops.norm.op import LAYER_NORM

_ATTENTION, _NORM = ATTENTION.backend("native"), LAYER_NORM.backend("native")
# Tokens whose intermediate vectors exist at a time: they stay in the last-level cache, and memory does not grow.
CHUNK = 2048


class _Matrices(NamedTuple):
    """The prepacked weights of a layer."""

    projections: PrepackedWeight
    attention_output: PrepackedWeight
    intermediate: PrepackedWeight
    output: PrepackedWeight


def _prepacked(arguments: EncoderLayerArguments, transposed: bool = False) -> _Matrices:
    matrices, element = arguments.parameters.matrices, buffers.DTYPES[arguments.dtype]
    return _Matrices(*prepacked_weights.prepacked_group(matrices, (3, 1, 1, 1), element, transposed=transposed))


def forward(arguments: EncoderLayerArguments, save: int) -> list[Tensor]:
    """Return [y2] and, unless nothing is saved: qkv, context, lse, z1, mean1, rstd1, u, z2, mean2, rstd2, and y1 if
    everything is."""
    x, w, spec, batch, index, dtype, *_ = arguments
    keep, matrices = save != SAVE_NOTHING, _prepacked(arguments)
    buffers.address("x", x)
    rows = matmul.row_contiguous(x)
    tokens, width = x.shape
    biases = (w.query_bias, w.key_bias, w.value_bias)
    for bias in biases:
        buffers.address("a bias of the projections", bias)  # torch would read it
    qkv = _matmul(rows, matrices.projections, torch.cat(biases), dtype=dtype)
    context, lse = _ATTENTION.forward(arguments.attention(qkv), keep)
    context = context.view(tokens, width)
    total = LayerNormArguments(
        _matmul(batch.gather(context), matrices.attention_output), w.attention_output_bias,
        batch.gather(rows).to(dtype), w.attention_norm, w.attention_norm_bias, arguments.eps,
        batch.row_dropout(Site.ATTENTION_OUTPUT, index),
    )  # fmt: skip
    y1, z1, mean1, rstd1 = _NORM.forward_rows(total, keep)
    u, f = _feed_forward(y1, matrices, w.intermediate_bias, spec.feed_forward.activation, keep)
    total = LayerNormArguments(
        f, w.output_bias, y1, w.output_norm, w.output_norm_bias, arguments.eps,
        batch.row_dropout(Site.FEED_FORWARD_OUTPUT, index),
    )  # fmt: skip
    y2, z2, mean2, rstd2 = _NORM.forward_rows(total, keep)
    if not keep:
        return [y2]
    assert u is not None
    saved = [qkv, context, lse, z1, mean1, rstd1, u, z2, mean2, rstd2]
    return [y2, *saved, *([y1] if save == SAVE_ALL else [])]


def backward(arguments: EncoderLayerArguments, grad: Tensor, saved: list[Tensor], mask: GradMask) -> list[Tensor]:
    """Return the gradients in the order of `GradMask`; matrices that are not computed are empty."""
    x, w, _, batch, index, dtype, *_ = arguments
    qkv, context, lse, z1, mean1, rstd1, u, z2, mean2, rstd2, *rest = saved
    buffers.address("x", x)
    qkv, context, u, *rest = (matmul.row_contiguous(tensor) for tensor in (qkv, context, u, *rest))
    matrices = _prepacked(arguments, transposed=True)
    _check_unchanged([qkv, context, u, z1, z2, *rest], lse, matrices, arguments)
    if rest:
        y1 = rest[0]
    else:
        norm = LayerNormArguments(z1, None, None, w.attention_norm, w.attention_norm_bias, arguments.eps, None)
        y1 = _NORM.forward_rows(norm, False)[0]
    df, dz2, sums2 = _NORM.backward(
        grad.to(dtype), None, z2, mean2, rstd2, w.output_norm, batch.row_dropout(Site.FEED_FORWARD_OUTPUT, index),
        x_bias=True, residual=True,
    )  # fmt: skip
    dy1, dw1, db1, dw2 = _feed_forward_backward(df, dz2, u, y1, w, matrices, arguments.tanh, mask)
    del df, dz2
    do, dz1, sums1 = _NORM.backward(
        dy1, None, z1, mean1, rstd1, w.attention_norm, batch.row_dropout(Site.ATTENTION_OUTPUT, index),
        x_bias=True, residual=True,
    )  # fmt: skip
    dwo = _weight_gradient(do, batch.gather(context), w.attention_output, mask.attention_output)[0]
    attention = arguments.attention(qkv)
    shape = attention.q.shape
    dcontext = batch.scatter(_matmul(do, matrices.attention_output), len(x), caching_allocator.zeros)
    dqkv = _ATTENTION.backward_joined(attention, context.view(shape), lse, dcontext.view(shape)).flatten(1)
    rows = matmul.row_contiguous(x).to(dtype)
    dw, db = _weight_gradient(dqkv, rows, w.query, mask.projections, sums=mask.projection_biases)
    if not mask.x:
        return [x.new_empty(0), dw, db, dwo, sums1, dw1, db1, dw2, sums2]
    dx = batch.scatter(do if dz1 is None else dz1, len(x), caching_allocator.zeros)
    dx = _add_matmul(dx, dqkv, matrices.projections).to(x.dtype)
    return [dx, dw, db, dwo, sums1, dw1, db1, dw2, sums2]


def _check_unchanged(saved: list[Tensor], lse: Tensor, matrices: _Matrices, arguments: EncoderLayerArguments) -> None:
    """Raise UserError for a shape or dtype that is not forward's: torch does not notice a new `.data`, and kernels
    would read beyond the end."""
    qkv, context, u, z1, z2, *rest = saved
    (rows, width), inner, tokens = z1.shape, u.shape[1], lse.shape[1]
    shapes = [tuple(tensor.shape) for tensor in (arguments.x, qkv, context, u, z2, *rest)]
    expected = [(tokens, width), (tokens, 3 * width), (tokens, width), (rows, inner), (rows, width)]
    prepacked = [(matrix.columns, matrix.depth) for matrix in matrices]
    w = arguments.parameters
    unchanged = (
        shapes == expected + [(rows, width)] * len(rest)
        and prepacked == [(width, 3 * width), (width, width), (width, inner), (inner, width)]
        and all(vector.shape == (width,) for vector in (w.attention_norm, w.attention_norm_bias, w.output_norm))
        and all(tensor.dtype == arguments.dtype for tensor in saved)
    )
    if not unchanged:
        raise UserError(
            f"x, a parameter or a saved tensor of layer {arguments.layer_index} changed its shape or dtype between"
            " forward and backward: run forward again"
        )


def _chunks(tokens: int) -> list[slice]:
    """Return the tokens in chunks of CHUNK; without tokens one empty chunk, which makes gradients of zero."""
    return [slice(first, min(tokens, first + CHUNK)) for first in range(0, max(tokens, 1), CHUNK)]


def _feed_forward(
    y1: Tensor, matrices: _Matrices, bias: Tensor, activation: str, keep: bool
) -> tuple[Tensor | None, Tensor]:
    """Return u, the input of GELU, with `keep`, and h W2; h exists for one chunk of tokens at a time."""
    tokens, inner = y1.shape[0], matrices.intermediate.columns
    u = caching_allocator.empty((tokens, inner), y1.dtype) if keep else None
    f, h = caching_allocator.empty(y1.shape, y1.dtype), caching_allocator.empty((min(tokens, CHUNK), inner), y1.dtype)
    for chunk in _chunks(tokens):
        h_chunk, u_chunk = h[: chunk.stop - chunk.start], None if u is None else u[chunk]
        matmul.matmul_unchecked(
            y1[chunk], matrices.intermediate, h_chunk, bias, activation=activation, pre_activation=u_chunk
        )
        matmul.matmul_unchecked(h_chunk, matrices.output, f[chunk])
    return u, f


def _feed_forward_backward(
    df: Tensor,
    dz2: Tensor | None,
    u: Tensor,
    y1: Tensor,
    parameters: LayerParameters,
    matrices: _Matrices,
    tanh: bool,
    mask: GradMask,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of y1, W1, b1 and W2; du and h exist for one chunk of tokens at a time.

    Without dropout the gradient of the residual connection, `dz2`, is None: it is df itself. The gradient of y1 is
    written over it, each chunk after its last use.
    """
    tokens, inner = u.shape
    dy1 = df if dz2 is None else dz2
    du, h = (caching_allocator.empty((min(tokens, CHUNK), inner), u.dtype) for _ in range(2))
    dw1 = caching_allocator.empty(parameters.intermediate.shape if mask.intermediate else (0,), torch.float32)
    dw2 = caching_allocator.empty(parameters.output.shape if mask.output else (0,), torch.float32)
    db1, sums = caching_allocator.zeros((inner,), torch.float32), caching_allocator.empty((inner,), torch.float32)
    for chunk in _chunks(tokens):
        count, accumulate = chunk.stop - chunk.start, chunk.start > 0
        du_chunk, h_chunk = du[:count], h[:count]
        matmul.matmul_gelu_backward_unchecked(df[chunk], matrices.output, u[chunk], tanh, du_chunk, h_chunk)
        if mask.output:
            matmul.weight_gradient_unchecked(df[chunk], h_chunk, dw2, None, accumulate)
        if mask.intermediate:
            matmul.weight_gradient_unchecked(du_chunk, y1[chunk], dw1, sums, accumulate)
            db1 += sums
        else:
            db1 += du_chunk.sum(0, dtype=torch.float32)
        _add_matmul(dy1[chunk], du_chunk, matrices.intermediate)
    return dy1, dw1.to(parameters.intermediate.dtype), db1, dw2.to(parameters.output.dtype)


def _matmul(
    x: Tensor, weight: PrepackedWeight, bias: Tensor | None = None, *, dtype: torch.dtype | None = None
) -> Tensor:
    out = caching_allocator.empty((x.shape[0], weight.columns), x.dtype if dtype is None else dtype)
    return matmul.matmul_unchecked(x, weight, out, bias)


def _add_matmul(total: Tensor, x: Tensor, weight: PrepackedWeight) -> Tensor:
    """Return total + x weight^T, written over `total`."""
    return matmul.matmul_unchecked(x, weight, total, residual=total)


def _weight_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, needed: bool, sums: bool = False
) -> tuple[Tensor, Tensor]:
    """Return grad^T x in the weight's dtype, empty unless `needed`, and with `sums` the fp32 sums of grad's columns."""
    if not needed:
        columns = grad.sum(0, dtype=torch.float32) if sums else grad.new_empty(0, dtype=torch.float32)
        return weight.new_empty(0), columns
    gradient = caching_allocator.empty((grad.shape[1], x.shape[1]), torch.float32)
    columns = caching_allocator.empty((grad.shape[1] if sums else 0,), torch.float32)
    matmul.weight_gradient_unchecked(grad, x, gradient, columns if sums else None)
    return gradient.to(weight.dtype), columns
