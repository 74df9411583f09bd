"""Attention of longer sequences: tiles of queries against tiles of keys, with the running softmax of FlashAttention.

q, k, v, out (tokens, heads, HEAD_DIM), lse and delta (heads, tokens) fp32. Dao 2023, "FlashAttention-2", algorithms 1
and 2; backward, one kernel loops over keys for dq and another over queries for dk and dv: two more matmuls than with
atomic additions, and the same bits on every run. Tiles do not depend on the length; sequences of the short path are
skipped.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.dropout import drop_and_narrow, kept
from fastbert.kernels.attention.tiles import (
    add_bias,
    gradient_factor,
    load_pair,
    load_rows,
    load_statistic,
    load_statistics,
    reciprocal,
    score_gradient,
    store_delta,
    store_output,
    store_rows,
    store_statistic,
)
from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow, sequence_span

# A row's maximum before the first key: finite, so that masked keys (-inf) are 0 relative to it, and below every score,
# because the scores after the masked ones may all be far below 0.
LOWEST = tl.constexpr(-3e38)
RUNTIME = ["tokens_q", "tokens_k", "tiles", "bias_rows", "bias_columns", "threshold", "site"]


@triton.jit
def _locate_tile(cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, tiles, HEADS: tl.constexpr):
    """Return tile, head and sequence of this program, and the sequence's first tokens and lengths."""
    program = tl.program_id(0)
    tile, head, sequence = program % tiles, (program // tiles) % HEADS, program // tiles // HEADS
    begin_q, length_q = sequence_span(cu_seqlens_q_ptr, sequence, tokens_q)
    begin_k, length_k = sequence_span(cu_seqlens_k_ptr, sequence, tokens_k)
    return tile, head, sequence, begin_q, length_q, begin_k, length_k


@triton.jit
def _key_range(first, length_q, length_k, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return, for queries from `first` on, the keys that all attend to and the end of those that any attends to."""
    if CAUSAL:
        visible_to_first = first + length_k - length_q + 1
        end = tl.maximum(tl.minimum(length_k, visible_to_first + BLOCK_M - 1), 0)
        return tl.maximum(tl.minimum(visible_to_first, length_k), 0) // BLOCK_N * BLOCK_N, end
    else:
        return length_k // BLOCK_N * BLOCK_N, length_k


@triton.jit(do_not_specialize=RUNTIME)
def forward_long(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, tiles, scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, PTX: tl.constexpr, SHORT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: sequences x heads x tiles of BLOCK_M up to the longest sequence."""
    tile, head, sequence, begin_q, length_q, begin_k, length_k = _locate_tile(
        cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, tiles, HEADS
    )
    first = tile * BLOCK_M
    if (first < length_q) & (tl.maximum(length_q, length_k) > SHORT):
        strides = (STRIDE_K, STRIDE_V)
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        row = tl.arange(0, BLOCK_M)[:, None]
        q = load_rows(q_ptr, begin_q + first, row, length_q - first, STRIDE_Q, head, HEADS, HEAD_DIM, BLOCK_D)
        full, end = _key_range(first, length_q, length_k, CAUSAL, BLOCK_M, BLOCK_N)
        # The sums are of every eighth probability, so that no threads exchange them in the loop.
        state = (
            tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
            tl.full((BLOCK_M, 1), LOWEST, tl.float32),
            tl.zeros((BLOCK_M, 8), tl.float32),
        )
        rows = (begin_k, length_k, first, length_k - length_q)
        state = _attend(
            state, q, k_ptr, v_ptr, 0, full, rows, strides, bias, dropout, head, scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_M, BLOCK_N, MASKED=False,
        )  # fmt: skip
        state = _attend(
            state, q, k_ptr, v_ptr, full, end, rows, strides, bias, dropout, head, scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_M, BLOCK_N, MASKED=True,
        )  # fmt: skip
        out, highest, total = state
        total = tl.sum(total, 1, keep_dims=True)
        out *= dropout_scale * reciprocal(total)
        lse = tl.where(total == 0.0, 0.0, highest + tl.log2(total))
        store_output(out_ptr, rest_ptr, out, begin_q + first, row, length_q - first, head, HEADS, HEAD_DIM, BLOCK_D)
        store_statistic(lse_ptr, lse, begin_q + first, row, length_q - first, head, HEADS, tokens_q)


@triton.jit
def _attend(
    state, q, k_ptr, v_ptr, start, end, rows, strides, bias, dropout, head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Continue the running softmax over keys from `start` to `end`; MASKED: a tile may have invisible keys."""
    out, highest, total = state
    begin_k, length_k, first, shift = rows
    stride_k, stride_v = strides
    key_row, column = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_N)[None, :]
    query = first + tl.arange(0, BLOCK_M)[:, None]
    k_ptr += tl.cast(begin_k + start, tl.int64) * stride_k + head * HEAD_DIM
    v_ptr += tl.cast(begin_k + start, tl.int64) * stride_v + head * HEAD_DIM
    for here in range(start, end, BLOCK_N):
        k, v = load_pair(k_ptr, v_ptr, key_row, length_k - here, strides, HEADS, HEAD_DIM, BLOCK_D, MASKED)
        s = dot(q, flip(k), PRECISION)
        if HAS_BIAS:
            s = add_bias(s * (scale * LOG2_E), bias, head, HEADS, query, here + column)
        if MASKED:
            visible = here + column < length_k
            if CAUSAL:
                visible = visible & (here + column <= query + shift)
            s = tl.where(visible, s, float("-inf"))
        new = tl.max(s, 1, keep_dims=True)
        if HAS_BIAS:
            new = tl.maximum(highest, new)
            p = tl.exp2(s - new)
        else:
            # The scale is positive, so it may follow the maximum and join the difference in one instruction.
            new = tl.maximum(highest, new * (scale * LOG2_E))
            p = tl.exp2(s * (scale * LOG2_E) - new)
        decay = tl.exp2(highest - new)
        total = total * decay + tl.sum(tl.reshape(p, (BLOCK_M, BLOCK_N // 8, 8)), 1)
        if DROPOUT:
            p = drop_and_narrow(p, dropout, here, query, head, v.dtype, PTX, BLOCK_M, BLOCK_N)
        out = add_dot(narrow(p, v.dtype), v, out * decay, PRECISION)
        highest = new
        k_ptr += BLOCK_N * stride_k
        v_ptr += BLOCK_N * stride_v
    return out, highest, total


@triton.jit(do_not_specialize=RUNTIME)
def backward_queries(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, grad_ptr, lse_ptr, dq_ptr, delta_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, tiles, scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, PTX: tl.constexpr, SPACING: tl.constexpr, SHORT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute delta and dq of a tile of queries; grid as in forward."""
    tile, head, sequence, begin_q, length_q, begin_k, length_k = _locate_tile(
        cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, tiles, HEADS
    )
    first = tile * BLOCK_M
    if (first < length_q) & (tl.maximum(length_q, length_k) > SHORT):
        strides = (STRIDE_K, STRIDE_V)
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        row, length, begin = tl.arange(0, BLOCK_M)[:, None], length_q - first, begin_q + first
        delta = store_delta(
            delta_ptr, out_ptr, rest_ptr, grad_ptr, begin, row, length, dropout_scale, head, tokens_q,
            HEADS, HEAD_DIM, BLOCK_D,
        )  # fmt: skip
        grad = load_rows(grad_ptr, begin, row, length, HEADS * HEAD_DIM, head, HEADS, HEAD_DIM, BLOCK_D)
        q = load_rows(q_ptr, begin, row, length, STRIDE_Q, head, HEADS, HEAD_DIM, BLOCK_D)
        lse = load_statistic(lse_ptr, begin, row, length, head, HEADS, tokens_q, float("inf"))
        full, end = _key_range(first, length_q, length_k, CAUSAL, BLOCK_M, BLOCK_N)
        rows = (begin_k, length_k, first, length_k - length_q)
        dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        dq = _query_gradient(
            dq, q, grad, lse, delta, k_ptr, v_ptr, 0, full, rows, strides, bias, dropout, dropout_scale, head, scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_M, BLOCK_N, MASKED=False,
        )  # fmt: skip
        dq = _query_gradient(
            dq, q, grad, lse, delta, k_ptr, v_ptr, full, end, rows, strides, bias, dropout, dropout_scale, head, scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_M, BLOCK_N, MASKED=True,
        )  # fmt: skip
        dq *= gradient_factor(scale, dropout_scale, length_k)
        store_rows(dq_ptr, dq, begin, row, length, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)


@triton.jit
def _query_gradient(
    dq, q, grad, lse, delta, k_ptr, v_ptr, start, end, rows, strides, bias, dropout, dropout_scale, head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add the keys from `start` to `end` to dq; MASKED: a tile may have invisible keys."""
    begin_k, length_k, first, shift = rows
    stride_k, stride_v = strides
    key_row, column = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_N)[None, :]
    query = first + tl.arange(0, BLOCK_M)[:, None]
    zero = tl.minimum(dropout_scale, 0.0)
    k_ptr += tl.cast(begin_k + start, tl.int64) * stride_k + head * HEAD_DIM
    v_ptr += tl.cast(begin_k + start, tl.int64) * stride_v + head * HEAD_DIM
    for here in range(start, end, BLOCK_N):
        k, v = load_pair(k_ptr, v_ptr, key_row, length_k - here, strides, HEADS, HEAD_DIM, BLOCK_D, MASKED)
        s, dp = dot(q, flip(k), PRECISION) * (scale * LOG2_E), dot(grad, flip(v), PRECISION)
        if HAS_BIAS:
            s = add_bias(s, bias, head, HEADS, query, here + column)
        p = tl.exp2(s - lse)
        if MASKED:
            visible = here + column < length_k
            if CAUSAL:
                visible = visible & (here + column <= query + shift)
            p = tl.where(visible, p, 0.0)
        kept_p = kept(p, dropout, here, query, head, zero, DROPOUT, PTX, BLOCK_M, BLOCK_N)
        ds = score_gradient(kept_p, p, dp, delta, query, shift, zero, CAUSAL & MASKED)
        dq = add_dot(narrow(ds, k.dtype), k, dq, PRECISION)
        k_ptr += BLOCK_N * stride_k
        v_ptr += BLOCK_N * stride_v
    return dq


@triton.jit(do_not_specialize=RUNTIME)
def backward_keys(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, tiles, scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, PTX: tl.constexpr, SPACING: tl.constexpr, SHORT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of a tile of keys, with tokens as columns, because the left operand of a matmul has at least 64
    rows on Hopper; keys beyond the sequence are not stored.

    Grid: sequences x heads x tiles of BLOCK_N up to the longest sequence.
    """
    tile, head, sequence, begin_q, length_q, begin_k, length_k = _locate_tile(
        cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, tiles, HEADS
    )
    first = tile * BLOCK_N
    if (first < length_k) & (tl.maximum(length_q, length_k) > SHORT):
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        key_row, length = tl.arange(0, BLOCK_N)[:, None], length_k - first
        k = load_rows(k_ptr, begin_k + first, key_row, length, STRIDE_K, head, HEADS, HEAD_DIM, BLOCK_D)
        v = load_rows(v_ptr, begin_k + first, key_row, length, STRIDE_V, head, HEADS, HEAD_DIM, BLOCK_D)
        start, full = 0, length_q // BLOCK_M * BLOCK_M
        if CAUSAL:
            start = tl.maximum(first - (length_k - length_q), 0) // BLOCK_M * BLOCK_M
        rows = (begin_q, length_q, first, length_k - length_q, tokens_q)
        strides = (STRIDE_Q, HEADS * HEAD_DIM)
        sums = (tl.zeros((BLOCK_D, BLOCK_N), tl.float32), tl.zeros((BLOCK_D, BLOCK_N), tl.float32))
        sums = _key_gradients(
            sums, k, v, q_ptr, grad_ptr, lse_ptr, delta_ptr, start, full, rows, strides, bias, dropout, dropout_scale,
            head, scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_M, BLOCK_N, MASKED=False,
        )  # fmt: skip
        dk, dv = _key_gradients(
            sums, k, v, q_ptr, grad_ptr, lse_ptr, delta_ptr, tl.maximum(start, full), length_q, rows, strides, bias,
            dropout, dropout_scale, head, scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_M, BLOCK_N, MASKED=True,
        )  # fmt: skip
        dv = flip(dv) * dropout_scale
        store_rows(dv_ptr, dv, begin_k + first, key_row, length, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
        dk = flip(dk) * gradient_factor(scale, dropout_scale, length_k)
        store_rows(dk_ptr, dk, begin_k + first, key_row, length, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)


@triton.jit
def _key_gradients(
    sums, k, v, q_ptr, grad_ptr, lse_ptr, delta_ptr, start, end, rows, strides, bias, dropout, dropout_scale,
    head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add the queries from `start` to `end` to dk and dv, (BLOCK_D, BLOCK_N); MASKED: a tile may have fewer queries."""
    dk, dv = sums
    begin_q, length_q, first, shift, tokens_q = rows
    stride_q, stride_grad = strides
    row, column = tl.arange(0, BLOCK_M)[:, None], first + tl.arange(0, BLOCK_N)[None, :]
    zero = tl.minimum(dropout_scale, 0.0)
    q_ptr += tl.cast(begin_q + start, tl.int64) * stride_q + head * HEAD_DIM
    grad_ptr += tl.cast(begin_q + start, tl.int64) * stride_grad + head * HEAD_DIM
    lse_ptr += head * tl.cast(tokens_q, tl.int64) + begin_q + start
    delta_ptr += head * tl.cast(tokens_q, tl.int64) + begin_q + start
    for here in range(start, end, BLOCK_M):
        query, left = here + row, length_q - here
        q, grad = load_pair(q_ptr, grad_ptr, row, left, strides, HEADS, HEAD_DIM, BLOCK_D, MASKED)
        lse, delta = load_statistics(lse_ptr, delta_ptr, row, left, tokens_q, MASKED)
        s, dp = dot(q, flip(k), PRECISION) * (scale * LOG2_E), dot(grad, flip(v), PRECISION)
        if HAS_BIAS:
            s = add_bias(s, bias, head, HEADS, query, column)
        p = tl.exp2(s - lse)
        if CAUSAL:
            p = tl.where(column <= query + shift, p, 0.0)
        kept_p = kept(p, dropout, first, query, head, zero, DROPOUT, PTX, BLOCK_M, BLOCK_N)
        ds = score_gradient(kept_p, p, dp, delta, query, shift, zero, CAUSAL)
        dv = add_dot(flip(grad), narrow(kept_p, v.dtype), dv, PRECISION)
        dk = add_dot(flip(q), narrow(ds, q.dtype), dk, PRECISION)
        q_ptr += BLOCK_M * stride_q
        grad_ptr += BLOCK_M * stride_grad
        lse_ptr += BLOCK_M
        delta_ptr += BLOCK_M
    return dk, dv
