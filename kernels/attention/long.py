"""Attention of longer sequences: tiles of queries against tiles of keys, with the running softmax of FlashAttention.

q, k, v, out (tokens, heads, HEAD_DIM), lse and delta (heads, tokens) fp32. Dao 2023, "FlashAttention-2", algorithms 1
and 2; backward, one kernel loops over keys for dq and another over queries for dk and dv: two more matmuls than with
atomic additions, and the same bits on every run. Tiles do not depend on the length; sequences of the short path are
skipped.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.tiles import (
    add_bias,
    after_dropout,
    keep_mask,
    load_full_rows,
    load_rows,
    load_statistic,
    reciprocal,
    score_gradient,
    store_rows,
    store_statistic,
)
from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow, sequence_span

# A row's maximum before the first key: finite, so that masked keys (-inf) are 0 relative to it, and below every score,
# because the scores after the masked ones may all be far below 0.
LOWEST = tl.constexpr(-3e38)
RUNTIME = ["tokens_q", "tokens_k", "heads", "tiles", "bias_rows", "bias_columns", "threshold", "site"]


@triton.jit
def _locate_tile(cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, heads, tiles):
    """Return tile, head and sequence of this program, and the sequence's first tokens and lengths."""
    program = tl.program_id(0)
    tile, head, sequence = program % tiles, (program // tiles) % heads, program // tiles // heads
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
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_q, stride_k, stride_v, stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, heads, tiles, scale, dropout_scale, threshold, site,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    SHORT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: sequences x heads x tiles of BLOCK_M up to the longest sequence."""
    tile, head, sequence, begin_q, length_q, begin_k, length_k = _locate_tile(
        cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, heads, tiles
    )
    first = tile * BLOCK_M
    if (first < length_q) & (tl.maximum(length_q, length_k) > SHORT):
        strides = (stride_k, stride_v)
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        row = tl.arange(0, BLOCK_M)[:, None]
        q = load_rows(q_ptr, begin_q + first, row, length_q - first, stride_q, head, heads, HEAD_DIM, BLOCK_D)
        full, end = _key_range(first, length_q, length_k, CAUSAL, BLOCK_M, BLOCK_N)
        state = (
            tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
            tl.full((BLOCK_M, 1), LOWEST, tl.float32),
            tl.zeros((BLOCK_M, 1), tl.float32),
        )
        rows = (begin_k, length_k, first, length_k - length_q)
        state = _attend(
            state, q, k_ptr, v_ptr, 0, full, rows, strides, bias, dropout, head, heads, scale,
            CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, BLOCK_M, BLOCK_N, MASKED=False,
        )  # fmt: skip
        state = _attend(
            state, q, k_ptr, v_ptr, full, end, rows, strides, bias, dropout, head, heads, scale,
            CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, BLOCK_M, BLOCK_N, MASKED=True,
        )  # fmt: skip
        out, highest, total = state
        out *= dropout_scale * reciprocal(total)
        lse = tl.where(total == 0.0, 0.0, highest + tl.log2(total))
        store_rows(out_ptr, out, begin_q + first, row, length_q - first, head, heads, HEAD_DIM, BLOCK_D)
        store_statistic(lse_ptr, lse, begin_q + first, row, length_q - first, head, heads, tokens_q)


@triton.jit
def _attend(
    state, q, k_ptr, v_ptr, start, end, rows, strides, bias, dropout, head, heads, scale,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Continue the running softmax over keys from `start` to `end`; MASKED: a tile may have invisible keys."""
    out, highest, total = state
    begin_k, length_k, first, shift = rows
    stride_k, stride_v = strides
    key, site, threshold = dropout
    row, key_row, column = (
        tl.arange(0, BLOCK_M)[:, None],
        tl.arange(0, BLOCK_N)[:, None],
        tl.arange(0, BLOCK_N)[None, :],
    )
    query = first + row
    for here in range(start, end, BLOCK_N):
        if MASKED:
            k = load_rows(k_ptr, begin_k + here, key_row, length_k - here, stride_k, head, heads, HEAD_DIM, BLOCK_D)
            v = load_rows(v_ptr, begin_k + here, key_row, length_k - here, stride_v, head, heads, HEAD_DIM, BLOCK_D)
        else:
            k = load_full_rows(k_ptr, begin_k + here, key_row, stride_k, head, HEAD_DIM, BLOCK_D)
            v = load_full_rows(v_ptr, begin_k + here, key_row, stride_v, head, HEAD_DIM, BLOCK_D)
        s = dot(q, flip(k), PRECISION)
        if HAS_BIAS:
            s = add_bias(s * (scale * LOG2_E), bias, head, heads, query, here + column)
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
        total = total * decay + tl.sum(p, 1, keep_dims=True)
        if DROPOUT:
            p = tl.where(keep_mask(key, here, query, head, site, threshold, BLOCK_M, BLOCK_N), p, 0.0)
        out = add_dot(narrow(p, v.dtype), v, out * decay, PRECISION)
        highest = new
    return out, highest, total


@triton.jit(do_not_specialize=RUNTIME)
def backward_queries(
    q_ptr, k_ptr, v_ptr, out_ptr, grad_ptr, lse_ptr, dq_ptr, delta_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_q, stride_k, stride_v, stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, heads, tiles, scale, dropout_scale, threshold, site,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    SHORT: tl.constexpr, PRECISION: tl.constexpr, SPACING: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute delta and dq of a tile of queries; grid as in forward."""
    tile, head, sequence, begin_q, length_q, begin_k, length_k = _locate_tile(
        cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, heads, tiles
    )
    first = tile * BLOCK_M
    if (first < length_q) & (tl.maximum(length_q, length_k) > SHORT):
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        key = tl.load(key_ptr + sequence) if DROPOUT else 0
        row, length = tl.arange(0, BLOCK_M)[:, None], length_q - first
        key_row, column = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_N)[None, :]
        begin = begin_q + first
        out = load_rows(out_ptr, begin, row, length, heads * HEAD_DIM, head, heads, HEAD_DIM, BLOCK_D)
        grad = load_rows(grad_ptr, begin, row, length, heads * HEAD_DIM, head, heads, HEAD_DIM, BLOCK_D)
        delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1, keep_dims=True)
        store_statistic(delta_ptr, delta, begin, row, length, head, heads, tokens_q)
        q = load_rows(q_ptr, begin, row, length, stride_q, head, heads, HEAD_DIM, BLOCK_D)
        lse = load_statistic(lse_ptr, begin, row, length, head, heads, tokens_q, float("inf"))
        dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        end = _key_range(first, length_q, length_k, CAUSAL, BLOCK_M, BLOCK_N)[1]
        for here in range(0, end, BLOCK_N):
            k = load_rows(k_ptr, begin_k + here, key_row, length_k - here, stride_k, head, heads, HEAD_DIM, BLOCK_D)
            v = load_rows(v_ptr, begin_k + here, key_row, length_k - here, stride_v, head, heads, HEAD_DIM, BLOCK_D)
            s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
            if HAS_BIAS:
                s = add_bias(s, bias, head, heads, first + row, here + column)
            visible = here + column < length_k
            if CAUSAL:
                visible = visible & (here + column <= first + row + (length_k - length_q))
            p = tl.where(visible, tl.exp2(s - lse), 0.0)
            if DROPOUT:
                p = tl.where(keep_mask(key, here, first + row, head, site, threshold, BLOCK_M, BLOCK_N), p, -p)
            dp = dot(grad, flip(v), PRECISION)
            ds = score_gradient(p, dp, delta, dropout_scale, DROPOUT)
            dq = add_dot(narrow(ds, k.dtype), k, dq, PRECISION)
        store_rows(dq_ptr, dq * scale, begin, row, length, head, heads, HEAD_DIM, BLOCK_D, SPACING)


@triton.jit(do_not_specialize=RUNTIME)
def backward_keys(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_q, stride_k, stride_v, stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, heads, tiles, scale, dropout_scale, threshold, site,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    SHORT: tl.constexpr, PRECISION: tl.constexpr, SPACING: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of a tile of keys; grid: sequences x heads x tiles of BLOCK_N up to the longest sequence.

    Without dropout, scores have keys as rows, so that probabilities and gradients are left operands as they are. With
    dropout they have queries as rows, in the order of the draws, and are transposed before the matmul.
    """
    tile, head, sequence, begin_q, length_q, begin_k, length_k = _locate_tile(
        cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, heads, tiles
    )
    first = tile * BLOCK_N
    if (first < length_k) & (tl.maximum(length_q, length_k) > SHORT):
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        key = tl.load(key_ptr + sequence) if DROPOUT else 0
        row, key_row, length = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[:, None], length_k - first
        k = load_rows(k_ptr, begin_k + first, key_row, length, stride_k, head, heads, HEAD_DIM, BLOCK_D)
        v = load_rows(v_ptr, begin_k + first, key_row, length, stride_v, head, heads, HEAD_DIM, BLOCK_D)
        dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        if DROPOUT:
            query, column = row, tl.arange(0, BLOCK_N)[None, :]
        else:
            query, column = tl.arange(0, BLOCK_M)[None, :], key_row
        start = 0
        if CAUSAL:
            start = tl.maximum(first - (length_k - length_q), 0) // BLOCK_M * BLOCK_M
        for here in range(start, length_q, BLOCK_M):
            left = length_q - here
            q = load_rows(q_ptr, begin_q + here, row, left, stride_q, head, heads, HEAD_DIM, BLOCK_D)
            grad = load_rows(grad_ptr, begin_q + here, row, left, heads * HEAD_DIM, head, heads, HEAD_DIM, BLOCK_D)
            lse = load_statistic(lse_ptr, begin_q + here, query, left, head, heads, tokens_q, float("inf"))
            delta = load_statistic(delta_ptr, begin_q + here, query, left, head, heads, tokens_q, 0.0)
            if DROPOUT:
                s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
            else:
                s = dot(k, flip(q), PRECISION) * (scale * LOG2_E)
            if HAS_BIAS:
                s = add_bias(s, bias, head, heads, here + query, first + column)
            # Queries beyond the sequence have an infinite lse, and keys beyond it are not stored.
            p = tl.exp2(s - lse)
            if CAUSAL:
                p = tl.where(first + column <= here + query + (length_k - length_q), p, 0.0)
            if DROPOUT:
                p = tl.where(keep_mask(key, first, here + row, head, site, threshold, BLOCK_M, BLOCK_N), p, -p)
                dv = add_dot(flip(narrow(after_dropout(p, DROPOUT), v.dtype)), grad, dv, PRECISION)
                dp = dot(grad, flip(v), PRECISION)
                ds = score_gradient(p, dp, delta, dropout_scale, DROPOUT)
                dk = add_dot(flip(narrow(ds, q.dtype)), q, dk, PRECISION)
            else:
                dv = add_dot(narrow(p, v.dtype), grad, dv, PRECISION)
                dp = dot(v, flip(grad), PRECISION)
                ds = score_gradient(p, dp, delta, dropout_scale, DROPOUT)
                dk = add_dot(narrow(ds, q.dtype), q, dk, PRECISION)
        store_rows(
            dv_ptr, dv * dropout_scale, begin_k + first, key_row, length, head, heads, HEAD_DIM, BLOCK_D, SPACING
        )
        store_rows(dk_ptr, dk * scale, begin_k + first, key_row, length, head, heads, HEAD_DIM, BLOCK_D, SPACING)
