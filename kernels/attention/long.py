"""Attention of longer sequences: tiles of queries against tiles of keys, with the running softmax of FlashAttention.

q, k, v, out (tokens, heads, WIDTH), lse and delta (heads, tokens) fp32. Dao 2023, "FlashAttention-2", algorithms 1 and
2; backward, one kernel walks over keys for dq and another over queries for dk and dv: two more products than adding dq
up in memory, and the same bits every time. Tiles do not depend on the length, and sequences of the short path are
passed over.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.tiles import (
    add_bias,
    kept,
    load_full_rows,
    load_rows,
    load_statistic,
    reciprocal,
    score_gradient,
    store_rows,
    store_statistic,
    surviving,
)
from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow, place

# A row's maximum before it has seen a key: finite, so that hidden keys (-inf) are 0 relative to it, and below every
# score, because those behind the hidden ones may all lie far below 0.
LOWEST = tl.constexpr(-3e38)
RUNTIME = ["tokens_q", "tokens_k", "heads", "tiles", "bias_rows", "bias_columns", "threshold", "site"]


@triton.jit
def _place_tile(cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, heads, tiles):
    """Tile, head and sequence of this program, and where the sequence lies."""
    program = tl.program_id(0)
    tile, head, sequence = program % tiles, (program // tiles) % heads, program // tiles // heads
    begin_q, length_q = place(cu_seqlens_q_ptr, sequence, tokens_q)
    begin_k, length_k = place(cu_seqlens_k_ptr, sequence, tokens_k)
    return tile, head, sequence, begin_q, length_q, begin_k, length_k


@triton.jit
def _key_range(first, length_q, length_k, CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """For queries from `first` on: keys before the first number are seen by all, keys from the second on by none."""
    if CAUSAL:
        seen_by_first = first + length_k - length_q + 1
        end = tl.maximum(tl.minimum(length_k, seen_by_first + QUERIES - 1), 0)
        return tl.maximum(tl.minimum(seen_by_first, length_k), 0) // KEYS * KEYS, end
    else:
        return length_k // KEYS * KEYS, length_k


@triton.jit(do_not_specialize=RUNTIME)
def forward_long(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_q, stride_k, stride_v, stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, heads, tiles, scale, keep_scale, threshold, site,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    SHORT: tl.constexpr, PRECISION: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Grid: sequences x heads x tiles of QUERIES up to the longest sequence."""
    tile, head, sequence, begin_q, length_q, begin_k, length_k = _place_tile(
        cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, heads, tiles
    )
    first = tile * QUERIES
    if (first < length_q) & (tl.maximum(length_q, length_k) > SHORT):
        strides = (stride_k, stride_v)
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        row = tl.arange(0, QUERIES)[:, None]
        q = load_rows(q_ptr, begin_q + first, row, length_q - first, stride_q, head, heads, WIDTH, PADDED)
        full, end = _key_range(first, length_q, length_k, CAUSAL, QUERIES, KEYS)
        state = (
            tl.zeros((QUERIES, PADDED), tl.float32),
            tl.full((QUERIES, 1), LOWEST, tl.float32),
            tl.zeros((QUERIES, 1), tl.float32),
        )
        rows = (begin_k, length_k, first, length_k - length_q)
        state = _walk_keys(
            state, q, k_ptr, v_ptr, 0, full, rows, strides, bias, dropout, head, heads, scale,
            CAUSAL, HAS_BIAS, DROPOUT, WIDTH, PADDED, PRECISION, QUERIES, KEYS, MASKED=False,
        )  # fmt: skip
        state = _walk_keys(
            state, q, k_ptr, v_ptr, full, end, rows, strides, bias, dropout, head, heads, scale,
            CAUSAL, HAS_BIAS, DROPOUT, WIDTH, PADDED, PRECISION, QUERIES, KEYS, MASKED=True,
        )  # fmt: skip
        out, highest, total = state
        out *= keep_scale * reciprocal(total)
        lse = tl.where(total == 0.0, 0.0, highest + tl.log2(total))
        store_rows(out_ptr, out, begin_q + first, row, length_q - first, head, heads, WIDTH, PADDED)
        store_statistic(lse_ptr, lse, begin_q + first, row, length_q - first, head, heads, tokens_q)


@triton.jit
def _walk_keys(
    state, q, k_ptr, v_ptr, start, end, rows, strides, bias, dropout, head, heads, scale,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    PRECISION: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The running softmax over keys from `start` to `end`; MASKED, where not every query sees every key of a tile."""
    out, highest, total = state
    begin_k, length_k, first, shift = rows
    stride_k, stride_v = strides
    key, site, threshold = dropout
    row, key_row, column = tl.arange(0, QUERIES)[:, None], tl.arange(0, KEYS)[:, None], tl.arange(0, KEYS)[None, :]
    query = first + row
    for here in range(start, end, KEYS):
        if MASKED:
            k = load_rows(k_ptr, begin_k + here, key_row, length_k - here, stride_k, head, heads, WIDTH, PADDED)
            v = load_rows(v_ptr, begin_k + here, key_row, length_k - here, stride_v, head, heads, WIDTH, PADDED)
        else:
            k = load_full_rows(k_ptr, begin_k + here, key_row, stride_k, head, WIDTH, PADDED)
            v = load_full_rows(v_ptr, begin_k + here, key_row, stride_v, head, WIDTH, PADDED)
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
            p = tl.where(kept(key, here, query, head, site, threshold, QUERIES, KEYS), p, 0.0)
        out = add_dot(narrow(p, v.dtype), v, out * decay, PRECISION)
        highest = new
    return out, highest, total


@triton.jit(do_not_specialize=RUNTIME)
def backward_queries(
    q_ptr, k_ptr, v_ptr, out_ptr, grad_ptr, lse_ptr, dq_ptr, delta_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_q, stride_k, stride_v, stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, heads, tiles, scale, keep_scale, threshold, site,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    SHORT: tl.constexpr, PRECISION: tl.constexpr, APART: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """delta and dq of a tile of queries; grid as forward."""
    tile, head, sequence, begin_q, length_q, begin_k, length_k = _place_tile(
        cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, heads, tiles
    )
    first = tile * QUERIES
    if (first < length_q) & (tl.maximum(length_q, length_k) > SHORT):
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        key = tl.load(key_ptr + sequence) if DROPOUT else 0
        row, length = tl.arange(0, QUERIES)[:, None], length_q - first
        key_row, column = tl.arange(0, KEYS)[:, None], tl.arange(0, KEYS)[None, :]
        begin = begin_q + first
        out = load_rows(out_ptr, begin, row, length, heads * WIDTH, head, heads, WIDTH, PADDED)
        grad = load_rows(grad_ptr, begin, row, length, heads * WIDTH, head, heads, WIDTH, PADDED)
        delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1, keep_dims=True)
        store_statistic(delta_ptr, delta, begin, row, length, head, heads, tokens_q)
        q = load_rows(q_ptr, begin, row, length, stride_q, head, heads, WIDTH, PADDED)
        lse = load_statistic(lse_ptr, begin, row, length, head, heads, tokens_q, float("inf"))
        dq = tl.zeros((QUERIES, PADDED), tl.float32)
        end = _key_range(first, length_q, length_k, CAUSAL, QUERIES, KEYS)[1]
        for here in range(0, end, KEYS):
            k = load_rows(k_ptr, begin_k + here, key_row, length_k - here, stride_k, head, heads, WIDTH, PADDED)
            v = load_rows(v_ptr, begin_k + here, key_row, length_k - here, stride_v, head, heads, WIDTH, PADDED)
            s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
            if HAS_BIAS:
                s = add_bias(s, bias, head, heads, first + row, here + column)
            visible = here + column < length_k
            if CAUSAL:
                visible = visible & (here + column <= first + row + (length_k - length_q))
            p = tl.where(visible, tl.exp2(s - lse), 0.0)
            if DROPOUT:
                p = tl.where(kept(key, here, first + row, head, site, threshold, QUERIES, KEYS), p, -p)
            dp = dot(grad, flip(v), PRECISION)
            ds = score_gradient(p, dp, delta, keep_scale, DROPOUT)
            dq = add_dot(narrow(ds, k.dtype), k, dq, PRECISION)
        store_rows(dq_ptr, dq * scale, begin, row, length, head, heads, WIDTH, PADDED, APART)


@triton.jit(do_not_specialize=RUNTIME)
def backward_keys(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_q, stride_k, stride_v, stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, heads, tiles, scale, keep_scale, threshold, site,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    SHORT: tl.constexpr, PRECISION: tl.constexpr, APART: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of keys; grid: sequences x heads x tiles of KEYS up to the longest sequence.

    Without dropout, scores have keys as rows: probabilities and gradients are then left operands as they stand. With it
    they have queries as rows, where the draws come out in place, and are turned round on their way.
    """
    tile, head, sequence, begin_q, length_q, begin_k, length_k = _place_tile(
        cu_seqlens_q_ptr, cu_seqlens_k_ptr, tokens_q, tokens_k, heads, tiles
    )
    first = tile * KEYS
    if (first < length_k) & (tl.maximum(length_q, length_k) > SHORT):
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        key = tl.load(key_ptr + sequence) if DROPOUT else 0
        row, key_row, length = tl.arange(0, QUERIES)[:, None], tl.arange(0, KEYS)[:, None], length_k - first
        k = load_rows(k_ptr, begin_k + first, key_row, length, stride_k, head, heads, WIDTH, PADDED)
        v = load_rows(v_ptr, begin_k + first, key_row, length, stride_v, head, heads, WIDTH, PADDED)
        dk = tl.zeros((KEYS, PADDED), tl.float32)
        dv = tl.zeros((KEYS, PADDED), tl.float32)
        if DROPOUT:
            query, column = row, tl.arange(0, KEYS)[None, :]
        else:
            query, column = tl.arange(0, QUERIES)[None, :], key_row
        start = 0
        if CAUSAL:
            start = tl.maximum(first - (length_k - length_q), 0) // QUERIES * QUERIES
        for here in range(start, length_q, QUERIES):
            left = length_q - here
            q = load_rows(q_ptr, begin_q + here, row, left, stride_q, head, heads, WIDTH, PADDED)
            grad = load_rows(grad_ptr, begin_q + here, row, left, heads * WIDTH, head, heads, WIDTH, PADDED)
            lse = load_statistic(lse_ptr, begin_q + here, query, left, head, heads, tokens_q, float("inf"))
            delta = load_statistic(delta_ptr, begin_q + here, query, left, head, heads, tokens_q, 0.0)
            if DROPOUT:
                s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
            else:
                s = dot(k, flip(q), PRECISION) * (scale * LOG2_E)
            if HAS_BIAS:
                s = add_bias(s, bias, head, heads, here + query, first + column)
            # Queries that do not exist have an infinite lse, and keys that do not are not stored.
            p = tl.exp2(s - lse)
            if CAUSAL:
                p = tl.where(first + column <= here + query + (length_k - length_q), p, 0.0)
            if DROPOUT:
                p = tl.where(kept(key, first, here + row, head, site, threshold, QUERIES, KEYS), p, -p)
                dv = add_dot(flip(narrow(surviving(p, DROPOUT), v.dtype)), grad, dv, PRECISION)
                dp = dot(grad, flip(v), PRECISION)
                ds = score_gradient(p, dp, delta, keep_scale, DROPOUT)
                dk = add_dot(flip(narrow(ds, q.dtype)), q, dk, PRECISION)
            else:
                dv = add_dot(narrow(p, v.dtype), grad, dv, PRECISION)
                dp = dot(v, flip(grad), PRECISION)
                ds = score_gradient(p, dp, delta, keep_scale, DROPOUT)
                dk = add_dot(narrow(ds, q.dtype), q, dk, PRECISION)
        store_rows(dv_ptr, dv * keep_scale, begin_k + first, key_row, length, head, heads, WIDTH, PADDED, APART)
        store_rows(dk_ptr, dk * scale, begin_k + first, key_row, length, head, heads, WIDTH, PADDED, APART)
