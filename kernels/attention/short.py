"""Attention of sequences of 33 to 128 tokens: whole rows of scores in registers, one pass forward, one backward.

q, k, v, out (tokens, heads, HEAD_DIM), lse and delta (heads, tokens) fp32. A program computes one head of a sequence,
64 queries at a time against all keys, 64 or 128 by the sequence's own length (the longer of queries and keys), so that
the result does not depend on the batch. Backward sums delta from the probabilities that it recomputes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.dropout import drop_and_narrow, kept
from fastbert.kernels.attention.tiles import (
    add_bias,
    gradient_factor,
    load_rows,
    load_statistic,
    reciprocal,
    score_gradient,
    softmax_row,
    store_output,
    store_rows,
    store_statistic,
)
from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow, sequence_span

# Rows of a tile: the fewest of a matmul's left operand on Hopper.
BLOCK_M = tl.constexpr(64)
RUNTIME = ["tokens_q", "tokens_k", "bias_rows", "bias_columns", "threshold", "site"]


@triton.jit(do_not_specialize=RUNTIME)
def forward_short(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, PTX: tl.constexpr, SHORT: tl.constexpr, MAX_SEQLEN: tl.constexpr,
):  # fmt: skip
    """Grid: sequences x heads."""
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    begin_q, length_q = sequence_span(cu_seqlens_q_ptr, sequence, tokens_q)
    begin_k, length_k = sequence_span(cu_seqlens_k_ptr, sequence, tokens_k)
    longest = tl.maximum(length_q, length_k)
    rows, strides = (begin_q, length_q, begin_k, length_k), (STRIDE_Q, STRIDE_K, STRIDE_V)
    bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
    dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
    if (longest > SHORT) & (longest <= 64):
        _forward(
            q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, rows, strides, bias, dropout, dropout_scale, tokens_q,
            head, scale, HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_N=64,
        )  # fmt: skip
    elif (longest > 64) & (longest <= MAX_SEQLEN):
        if MAX_SEQLEN > 64:
            _forward(
                q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, rows, strides, bias, dropout, dropout_scale, tokens_q,
                head, scale, HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_N=128,
            )  # fmt: skip


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, rows, strides, bias, dropout, dropout_scale, tokens_q, head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute one head of a sequence of up to BLOCK_N tokens."""
    begin_q, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    key_row, column = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_N)[None, :]
    k = load_rows(k_ptr, begin_k, key_row, length_k, stride_k, head, HEADS, HEAD_DIM, BLOCK_D)
    v = load_rows(v_ptr, begin_k, key_row, length_k, stride_v, head, HEADS, HEAD_DIM, BLOCK_D)
    for first in range(0, length_q, BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)[:, None]
        q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, HEADS, HEAD_DIM, BLOCK_D)
        s, factor = dot(q, flip(k), PRECISION), scale * LOG2_E
        if HAS_BIAS:
            s, factor = add_bias(s * factor, bias, head, HEADS, row, column), 1.0
        visible = column < length_k
        if CAUSAL:
            visible = visible & (column <= row + (length_k - length_q))
        p, total, lse = softmax_row(tl.where(visible, s, float("-inf")), factor)
        if DROPOUT:
            p = drop_and_narrow(p, dropout, 0, row, head, v.dtype, PTX, BLOCK_M, BLOCK_N)
        out = dot(narrow(p, v.dtype), v, PRECISION) * (dropout_scale * reciprocal(total))
        store_output(out_ptr, rest_ptr, out, begin_q, row, length_q, head, HEADS, HEAD_DIM, BLOCK_D)
        store_statistic(lse_ptr, lse, begin_q, row, length_q, head, HEADS, tokens_q)


@triton.jit(do_not_specialize=RUNTIME)
def backward_short(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, PTX: tl.constexpr, SPACING: tl.constexpr, SHORT: tl.constexpr, MAX_SEQLEN: tl.constexpr,
):  # fmt: skip
    """Grid as in forward; SPACING: see `store_rows`."""
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    begin_q, length_q = sequence_span(cu_seqlens_q_ptr, sequence, tokens_q)
    begin_k, length_k = sequence_span(cu_seqlens_k_ptr, sequence, tokens_k)
    longest = tl.maximum(length_q, length_k)
    rows, strides = (begin_q, length_q, begin_k, length_k), (STRIDE_Q, STRIDE_K, STRIDE_V)
    bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
    dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
    if (longest > SHORT) & (longest <= 64):
        _backward(
            q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
            rows, strides, bias, dropout, dropout_scale, tokens_q, head, scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, SPACING,
        )  # fmt: skip
    elif (longest > 64) & (longest <= MAX_SEQLEN):
        if MAX_SEQLEN > 64:
            _backward_in_two_passes(
                q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
                rows, strides, bias, dropout, dropout_scale, tokens_q, head, scale,
                HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, SPACING,
            )  # fmt: skip


@triton.jit
def _tile(
    q, grad, k, v, lse, query, first, rows, bias, dropout, zero, head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    PTX: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return the probabilities of a tile, those after dropout, and the gradients of the latter."""
    _, length_q, _, length_k = rows
    column = first + tl.arange(0, BLOCK_N)[None, :]
    s, dp = dot(q, flip(k), PRECISION) * (scale * LOG2_E), dot(grad, flip(v), PRECISION)
    if HAS_BIAS:
        s = add_bias(s, bias, head, HEADS, query, column)
    # Queries beyond the sequence have an infinite lse.
    visible = column < length_k
    if CAUSAL:
        visible = visible & (column <= query + (length_k - length_q))
    p = tl.where(visible, tl.exp2(s - lse), 0.0)
    return p, kept(p, dropout, first, query, head, zero, DROPOUT, PTX, BLOCK_M, BLOCK_N), dp


@triton.jit
def _backward(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
    rows, strides, bias, dropout, dropout_scale, tokens_q, head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, SPACING: tl.constexpr,
):  # fmt: skip
    """Compute one head of a sequence of up to 64 tokens, in one tile.

    dk and dv have tokens as columns, because the left operand of a matmul has at least 64 rows on Hopper.
    """
    begin_q, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    row = tl.arange(0, BLOCK_M)[:, None]
    zero, factor = tl.minimum(dropout_scale, 0.0), gradient_factor(scale, dropout_scale, length_k)
    k = load_rows(k_ptr, begin_k, row, length_k, stride_k, head, HEADS, HEAD_DIM, BLOCK_D)
    v = load_rows(v_ptr, begin_k, row, length_k, stride_v, head, HEADS, HEAD_DIM, BLOCK_D)
    q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, HEADS, HEAD_DIM, BLOCK_D)
    grad = load_rows(grad_ptr, begin_q, row, length_q, HEADS * HEAD_DIM, head, HEADS, HEAD_DIM, BLOCK_D)
    lse = load_statistic(lse_ptr, begin_q, row, length_q, head, HEADS, tokens_q, float("inf"))
    p, kept_p, dp = _tile(
        q, grad, k, v, lse, row, 0, rows, bias, dropout, zero, head, scale,
        HEADS, CAUSAL, HAS_BIAS, DROPOUT, PRECISION, PTX, BLOCK_N=BLOCK_M,
    )  # fmt: skip
    dv = flip(dot(flip(grad), narrow(kept_p, v.dtype), PRECISION)) * dropout_scale
    store_rows(dv_ptr, dv, begin_k, row, length_k, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
    delta = tl.sum(kept_p * dp, 1, keep_dims=True)
    store_statistic(delta_ptr, delta, begin_q, row, length_q, head, HEADS, tokens_q)
    ds = narrow(score_gradient(kept_p, p, dp, delta, row, length_k - length_q, zero, CAUSAL), q.dtype)
    dk = flip(dot(flip(q), ds, PRECISION)) * factor
    store_rows(dk_ptr, dk, begin_k, row, length_k, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
    dq = dot(ds, k, PRECISION) * factor
    store_rows(dq_ptr, dq, begin_q, row, length_q, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)


@triton.jit
def _backward_in_two_passes(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
    rows, strides, bias, dropout, dropout_scale, tokens_q, head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, SPACING: tl.constexpr,
):  # fmt: skip
    """Compute one head of a sequence of up to 128 tokens: delta and dq by whole rows, then dk and dv.

    That is two matmuls more than in one pass, but registers suffice, and so short a sequence is bound by the bytes that
    are read once either way: neither the output nor partial sums are among them.
    """
    begin_q, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    shift = length_k - length_q
    zero, factor = tl.minimum(dropout_scale, 0.0), gradient_factor(scale, dropout_scale, length_k)
    key_row = tl.arange(0, 128)[:, None]
    k = load_rows(k_ptr, begin_k, key_row, length_k, stride_k, head, HEADS, HEAD_DIM, BLOCK_D)
    v = load_rows(v_ptr, begin_k, key_row, length_k, stride_v, head, HEADS, HEAD_DIM, BLOCK_D)
    for first in range(0, length_q, BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)[:, None]
        q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, HEADS, HEAD_DIM, BLOCK_D)
        grad = load_rows(grad_ptr, begin_q, row, length_q, HEADS * HEAD_DIM, head, HEADS, HEAD_DIM, BLOCK_D)
        lse = load_statistic(lse_ptr, begin_q, row, length_q, head, HEADS, tokens_q, float("inf"))
        p, kept_p, dp = _tile(
            q, grad, k, v, lse, row, 0, rows, bias, dropout, zero, head, scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, PRECISION, PTX, BLOCK_N=128,
        )  # fmt: skip
        delta = tl.sum(kept_p * dp, 1, keep_dims=True)
        store_statistic(delta_ptr, delta, begin_q, row, length_q, head, HEADS, tokens_q)
        ds = narrow(score_gradient(kept_p, p, dp, delta, row, shift, zero, CAUSAL), q.dtype)
        dq = dot(ds, k, PRECISION) * factor
        store_rows(dq_ptr, dq, begin_q, row, length_q, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
    # Threads read statistics that others wrote.
    tl.debug_barrier()
    for first_key in range(0, length_k, BLOCK_M):
        some_row = first_key + tl.arange(0, BLOCK_M)[:, None]
        some_k = load_rows(k_ptr, begin_k, some_row, length_k, stride_k, head, HEADS, HEAD_DIM, BLOCK_D)
        some_v = load_rows(v_ptr, begin_k, some_row, length_k, stride_v, head, HEADS, HEAD_DIM, BLOCK_D)
        dk = tl.zeros((BLOCK_D, BLOCK_M), tl.float32)
        dv = tl.zeros((BLOCK_D, BLOCK_M), tl.float32)
        for first in range(0, length_q, BLOCK_M):
            row = first + tl.arange(0, BLOCK_M)[:, None]
            q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, HEADS, HEAD_DIM, BLOCK_D)
            grad = load_rows(grad_ptr, begin_q, row, length_q, HEADS * HEAD_DIM, head, HEADS, HEAD_DIM, BLOCK_D)
            lse = load_statistic(lse_ptr, begin_q, row, length_q, head, HEADS, tokens_q, float("inf"))
            delta = load_statistic(delta_ptr, begin_q, row, length_q, head, HEADS, tokens_q, 0.0)
            p, kept_p, dp = _tile(
                q, grad, some_k, some_v, lse, row, first_key, rows, bias, dropout, zero, head, scale,
                HEADS, CAUSAL, HAS_BIAS, DROPOUT, PRECISION, PTX, BLOCK_N=BLOCK_M,
            )  # fmt: skip
            ds = narrow(score_gradient(kept_p, p, dp, delta, row, shift, zero, CAUSAL), q.dtype)
            dv = add_dot(flip(grad), narrow(kept_p, q.dtype), dv, PRECISION)
            dk = add_dot(flip(q), ds, dk, PRECISION)
        dv = flip(dv) * dropout_scale
        store_rows(dv_ptr, dv, begin_k, some_row, length_k, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
        dk = flip(dk) * factor
        store_rows(dk_ptr, dk, begin_k, some_row, length_k, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
