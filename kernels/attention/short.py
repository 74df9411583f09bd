"""Attention of sequences of up to 128 tokens: whole rows of scores in registers, one pass forward, one backward.

q, k, v, out (tokens, heads, HEAD_DIM), lse and delta (heads, tokens) fp32. A program computes one sequence, in a tile
chosen by the sequence's own length (the longer of queries and keys), so that the result does not depend on the batch:
up to 32 tokens several heads (BLOCK_ROWS rows in all), up to 64 one head, up to 128 one head in blocks. Heads rather
than sequences share a program: they need no sorting by length, and the heads of a token are contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.tiles import (
    add_bias,
    after_dropout,
    keep_mask,
    keep_mask_heads,
    load_rows,
    load_statistic,
    probability_gradient,
    reciprocal,
    softmax_row,
    store_rows,
    store_statistic,
)
from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow, sequence_span

RUNTIME = ["tokens_q", "tokens_k", "heads", "groups", "bias_rows", "bias_columns", "threshold", "site"]


@triton.jit(do_not_specialize=RUNTIME)
def forward_short(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_q, stride_k, stride_v, stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, heads, groups, scale, dropout_scale, threshold, site,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, MAX_SEQLEN: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Grid: sequences x groups; a group has as many heads as fit in the tile of the launch's longest sequence."""
    sequence, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    begin_q, length_q = sequence_span(cu_seqlens_q_ptr, sequence, tokens_q)
    begin_k, length_k = sequence_span(cu_seqlens_k_ptr, sequence, tokens_k)
    longest = tl.maximum(length_q, length_k)
    rows, strides = (begin_q, length_q, begin_k, length_k), (stride_q, stride_k, stride_v)
    bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
    dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold, dropout_scale)
    if length_q > 0:
        if longest <= 16:
            _forward_heads(
                q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows, strides, bias, dropout, tokens_q, heads,
                group * (BLOCK_ROWS // 16), scale, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION,
                HEADS=BLOCK_ROWS // 16, TOKENS=16,
            )  # fmt: skip
        elif longest <= 32:
            _forward_heads(
                q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows, strides, bias, dropout, tokens_q, heads,
                group * (BLOCK_ROWS // 32), scale, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION,
                HEADS=BLOCK_ROWS // 32, TOKENS=32,
            )  # fmt: skip
        elif longest <= 64:
            if MAX_SEQLEN >= 64:
                _forward_head(
                    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows, strides, bias, dropout, tokens_q, heads, group, scale,
                    CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, BLOCK_N=64,
                )  # fmt: skip
        elif longest <= 128:
            if MAX_SEQLEN >= 128:
                _forward_head(
                    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows, strides, bias, dropout, tokens_q, heads, group, scale,
                    CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, BLOCK_N=128,
                )  # fmt: skip


@triton.jit
def _forward_heads(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows, strides, bias, dropout, tokens_q, heads, first_head, scale,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Compute HEADS heads of a sequence of up to TOKENS tokens."""
    begin_q, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    key, site, threshold, dropout_scale = dropout
    if first_head < heads:
        head = first_head + tl.arange(0, HEADS)[:, None, None]
        row, key_row = tl.arange(0, TOKENS)[None, :, None], tl.arange(0, TOKENS)[None, None, :]
        q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, heads, HEAD_DIM, BLOCK_D)
        k = load_rows(k_ptr, begin_k, row, length_k, stride_k, head, heads, HEAD_DIM, BLOCK_D)
        v = load_rows(v_ptr, begin_k, row, length_k, stride_v, head, heads, HEAD_DIM, BLOCK_D)
        s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
        if HAS_BIAS:
            s = add_bias(s, bias, head, heads, row, key_row)
        visible = key_row < length_k
        if CAUSAL:
            visible = visible & (key_row <= row + (length_k - length_q))
        p, total, lse = softmax_row(tl.where(visible, s, float("-inf")))
        if DROPOUT:
            p = tl.where(keep_mask_heads(key, row, head, site, threshold, HEADS, TOKENS, TOKENS), p, 0.0)
        out = dot(narrow(p, v.dtype), v, PRECISION) * (dropout_scale * reciprocal(total))
        store_rows(out_ptr, out, begin_q, row, length_q, head, heads, HEAD_DIM, BLOCK_D)
        store_statistic(lse_ptr, lse, begin_q, row, length_q, head, heads, tokens_q)


@triton.jit
def _forward_head(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows, strides, bias, dropout, tokens_q, heads, head, scale,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute one head of a sequence of up to BLOCK_N tokens, 64 queries at a time."""
    begin_q, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    key, site, threshold, dropout_scale = dropout
    BLOCK_M: tl.constexpr = 64
    if head < heads:
        key_row = tl.arange(0, BLOCK_N)[:, None]
        k = load_rows(k_ptr, begin_k, key_row, length_k, stride_k, head, heads, HEAD_DIM, BLOCK_D)
        v = load_rows(v_ptr, begin_k, key_row, length_k, stride_v, head, heads, HEAD_DIM, BLOCK_D)
        key_row = tl.arange(0, BLOCK_N)[None, :]
        for first in range(0, length_q, BLOCK_M):
            row = first + tl.arange(0, BLOCK_M)[:, None]
            q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, heads, HEAD_DIM, BLOCK_D)
            s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
            if HAS_BIAS:
                s = add_bias(s, bias, head, heads, row, key_row)
            visible = key_row < length_k
            if CAUSAL:
                visible = visible & (key_row <= row + (length_k - length_q))
            p, total, lse = softmax_row(tl.where(visible, s, float("-inf")))
            if DROPOUT:
                p = tl.where(keep_mask(key, 0, row, head, site, threshold, BLOCK_M, BLOCK_N), p, 0.0)
            out = dot(narrow(p, v.dtype), v, PRECISION) * (dropout_scale * reciprocal(total))
            store_rows(out_ptr, out, begin_q, row, length_q, head, heads, HEAD_DIM, BLOCK_D)
            store_statistic(lse_ptr, lse, begin_q, row, length_q, head, heads, tokens_q)


@triton.jit(do_not_specialize=RUNTIME)
def backward_short(
    q_ptr, k_ptr, v_ptr, out_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_q, stride_k, stride_v, stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, heads, groups, scale, dropout_scale, threshold, site,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, SPACING: tl.constexpr, MAX_SEQLEN: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Grid as in forward. `delta_ptr` may be None: only the bias gradient reads it. SPACING: see `store_rows`."""
    sequence, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    begin_q, length_q = sequence_span(cu_seqlens_q_ptr, sequence, tokens_q)
    begin_k, length_k = sequence_span(cu_seqlens_k_ptr, sequence, tokens_k)
    longest = tl.maximum(length_q, length_k)
    rows, strides = (begin_q, length_q, begin_k, length_k), (stride_q, stride_k, stride_v)
    bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
    dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold, dropout_scale)
    if longest <= 16:
        _backward_heads(
            q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
            rows, strides, bias, dropout, tokens_q, heads, group * (BLOCK_ROWS // 16), scale,
            CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, SPACING, HEADS=BLOCK_ROWS // 16, TOKENS=16,
        )  # fmt: skip
    elif longest <= 32:
        _backward_heads(
            q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
            rows, strides, bias, dropout, tokens_q, heads, group * (BLOCK_ROWS // 32), scale,
            CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, SPACING, HEADS=BLOCK_ROWS // 32, TOKENS=32,
        )  # fmt: skip
    elif longest <= 64:
        if MAX_SEQLEN >= 64:
            _backward_head(
                q_ptr, k_ptr, v_ptr, out_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
                rows, strides, bias, dropout, tokens_q, heads, group, scale,
                CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, SPACING,
                BLOCK_M=64, BLOCK_N=64 if BLOCK_D <= 64 else 32,
            )  # fmt: skip
    elif longest <= 128:
        if MAX_SEQLEN >= 128:
            _backward_head(
                q_ptr, k_ptr, v_ptr, out_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
                rows, strides, bias, dropout, tokens_q, heads, group, scale,
                CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, SPACING, BLOCK_M=128, BLOCK_N=32,
            )  # fmt: skip


@triton.jit
def _backward_heads(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
    rows, strides, bias, dropout, tokens_q, heads, first_head, scale,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, SPACING: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Compute HEADS heads of a sequence of up to TOKENS tokens."""
    begin_q, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    key, site, threshold, dropout_scale = dropout
    if first_head < heads:
        head = first_head + tl.arange(0, HEADS)[:, None, None]
        row, key_row = tl.arange(0, TOKENS)[None, :, None], tl.arange(0, TOKENS)[None, None, :]
        q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, heads, HEAD_DIM, BLOCK_D)
        k = load_rows(k_ptr, begin_k, row, length_k, stride_k, head, heads, HEAD_DIM, BLOCK_D)
        v = load_rows(v_ptr, begin_k, row, length_k, stride_v, head, heads, HEAD_DIM, BLOCK_D)
        grad = load_rows(grad_ptr, begin_q, row, length_q, heads * HEAD_DIM, head, heads, HEAD_DIM, BLOCK_D)
        lse = load_statistic(lse_ptr, begin_q, row, length_q, head, heads, tokens_q, float("inf"))
        s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
        if HAS_BIAS:
            s = add_bias(s, bias, head, heads, row, key_row)
        # Queries beyond the sequence have an infinite lse.
        visible = key_row < length_k
        if CAUSAL:
            visible = visible & (key_row <= row + (length_k - length_q))
        p = tl.where(visible, tl.exp2(s - lse), 0.0)
        if DROPOUT:
            p = tl.where(keep_mask_heads(key, row, head, site, threshold, HEADS, TOKENS, TOKENS), p, -p)
        dv = dot(flip(narrow(after_dropout(p, DROPOUT), v.dtype)), grad, PRECISION) * dropout_scale
        store_rows(dv_ptr, dv, begin_k, row, length_k, head, heads, HEAD_DIM, BLOCK_D, SPACING)
        dp = dot(grad, flip(v), PRECISION)
        dp, p = probability_gradient(dp, p, dropout_scale, DROPOUT)
        delta = tl.sum(p * dp, 2, keep_dims=True)
        if delta_ptr is not None:
            store_statistic(delta_ptr, delta, begin_q, row, length_q, head, heads, tokens_q)
        ds = narrow(p * (dp - delta), q.dtype)
        dk = dot(flip(ds), q, PRECISION) * scale
        store_rows(dk_ptr, dk, begin_k, row, length_k, head, heads, HEAD_DIM, BLOCK_D, SPACING)
        dq = dot(ds, k, PRECISION) * scale
        store_rows(dq_ptr, dq, begin_q, row, length_q, head, heads, HEAD_DIM, BLOCK_D, SPACING)


@triton.jit
def _backward_head(
    q_ptr, k_ptr, v_ptr, out_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
    rows, strides, bias, dropout, tokens_q, heads, head, scale,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, SPACING: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute one head of a sequence of up to BLOCK_M tokens: all queries at once, BLOCK_N keys at a time.

    dk and dv of a block are complete after the block, so only dq is accumulated across blocks. They are computed with
    tokens as columns, because the left operand of a matmul has at least 64 rows on Hopper.
    """
    begin_q, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    key, site, threshold, dropout_scale = dropout
    if head < heads:
        row = tl.arange(0, BLOCK_M)[:, None]
        q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, heads, HEAD_DIM, BLOCK_D)
        grad = load_rows(grad_ptr, begin_q, row, length_q, heads * HEAD_DIM, head, heads, HEAD_DIM, BLOCK_D)
        lse = load_statistic(lse_ptr, begin_q, row, length_q, head, heads, tokens_q, float("inf"))
        delta = tl.zeros((BLOCK_M, 1), tl.float32)
        if BLOCK_M > BLOCK_N:
            out = load_rows(out_ptr, begin_q, row, length_q, heads * HEAD_DIM, head, heads, HEAD_DIM, BLOCK_D)
            delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1, keep_dims=True)
        dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        for first in range(0, BLOCK_M, BLOCK_N):
            key_row, column = first + tl.arange(0, BLOCK_N)[:, None], first + tl.arange(0, BLOCK_N)[None, :]
            k = load_rows(k_ptr, begin_k, key_row, length_k, stride_k, head, heads, HEAD_DIM, BLOCK_D)
            v = load_rows(v_ptr, begin_k, key_row, length_k, stride_v, head, heads, HEAD_DIM, BLOCK_D)
            s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
            if HAS_BIAS:
                s = add_bias(s, bias, head, heads, row, column)
            # Queries beyond the sequence have an infinite lse.
            visible = column < length_k
            if CAUSAL:
                visible = visible & (column <= row + (length_k - length_q))
            p = tl.where(visible, tl.exp2(s - lse), 0.0)
            if DROPOUT:
                p = tl.where(keep_mask(key, first, row, head, site, threshold, BLOCK_M, BLOCK_N), p, -p)
            dv = flip(dot(flip(grad), narrow(after_dropout(p, DROPOUT), v.dtype), PRECISION)) * dropout_scale
            store_rows(dv_ptr, dv, begin_k, key_row, length_k, head, heads, HEAD_DIM, BLOCK_D, SPACING)
            dp = dot(grad, flip(v), PRECISION)
            dp, p = probability_gradient(dp, p, dropout_scale, DROPOUT)
            if BLOCK_M == BLOCK_N:
                delta = tl.sum(p * dp, 1, keep_dims=True)
            ds = narrow(p * (dp - delta), q.dtype)
            dk = flip(dot(flip(q), ds, PRECISION)) * scale
            store_rows(dk_ptr, dk, begin_k, key_row, length_k, head, heads, HEAD_DIM, BLOCK_D, SPACING)
            dq = add_dot(ds, k, dq, PRECISION)
        store_rows(dq_ptr, dq * scale, begin_q, row, length_q, head, heads, HEAD_DIM, BLOCK_D, SPACING)
        if delta_ptr is not None:
            store_statistic(delta_ptr, delta, begin_q, row, length_q, head, heads, tokens_q)
