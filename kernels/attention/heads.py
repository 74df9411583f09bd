"""Attention of sequences of up to 32 tokens: a program computes several heads of a sequence.

q, k, v, out (tokens, heads, HEAD_DIM), lse and delta (heads, tokens) fp32. Heads rather than sequences share a program:
they need no sorting by length, and the heads of a token are contiguous. The tile is chosen by the sequence's own length
(the longer of queries and keys), so that the result does not depend on the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.dropout import keep_mask_heads
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
from fastbert.kernels.common import LOG2_E, dot, flip, narrow, sequence_span

RUNTIME = ["tokens_q", "tokens_k", "groups", "bias_rows", "bias_columns", "threshold", "site"]


@triton.jit(do_not_specialize=RUNTIME)
def forward_heads(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, groups, scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Grid: sequences x groups; a group has as many heads as fit in the tile of the launch's longest sequence."""
    sequence, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    begin_q, length_q = sequence_span(cu_seqlens_q_ptr, sequence, tokens_q)
    begin_k, length_k = sequence_span(cu_seqlens_k_ptr, sequence, tokens_k)
    longest = tl.maximum(length_q, length_k)
    rows, strides = (begin_q, length_q, begin_k, length_k), (STRIDE_Q, STRIDE_K, STRIDE_V)
    bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
    dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
    if length_q > 0:
        if longest <= 16:
            _forward(
                q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, rows, strides, bias, dropout, dropout_scale, tokens_q,
                group * (BLOCK_ROWS // 16), scale, HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION,
                BLOCK_H=BLOCK_ROWS // 16, TOKENS=16,
            )  # fmt: skip
        elif longest <= 32:
            _forward(
                q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, rows, strides, bias, dropout, dropout_scale, tokens_q,
                group * (BLOCK_ROWS // 32), scale, HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION,
                BLOCK_H=BLOCK_ROWS // 32, TOKENS=32,
            )  # fmt: skip


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, rows, strides, bias, dropout, dropout_scale, tokens_q, first_head,
    scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, BLOCK_H: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_H heads of a sequence of up to TOKENS tokens."""
    begin_q, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    if first_head < HEADS:
        head = first_head + tl.arange(0, BLOCK_H)[:, None, None]
        row, key_row = tl.arange(0, TOKENS)[None, :, None], tl.arange(0, TOKENS)[None, None, :]
        q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, HEADS, HEAD_DIM, BLOCK_D)
        k = load_rows(k_ptr, begin_k, row, length_k, stride_k, head, HEADS, HEAD_DIM, BLOCK_D)
        v = load_rows(v_ptr, begin_k, row, length_k, stride_v, head, HEADS, HEAD_DIM, BLOCK_D)
        s, factor = dot(q, flip(k), PRECISION), scale * LOG2_E
        if HAS_BIAS:
            s, factor = add_bias(s * factor, bias, head, HEADS, row, key_row), 1.0
        visible = key_row < length_k
        if CAUSAL:
            visible = visible & (key_row <= row + (length_k - length_q))
        p, total, lse = softmax_row(tl.where(visible, s, float("-inf")), factor)
        if DROPOUT:
            p = tl.where(keep_mask_heads(dropout, row, head, BLOCK_H, TOKENS, TOKENS), p, 0.0)
        out = dot(narrow(p, v.dtype), v, PRECISION) * (dropout_scale * reciprocal(total))
        store_output(out_ptr, rest_ptr, out, begin_q, row, length_q, head, HEADS, HEAD_DIM, BLOCK_D)
        store_statistic(lse_ptr, lse, begin_q, row, length_q, head, HEADS, tokens_q)


@triton.jit(do_not_specialize=RUNTIME)
def backward_heads(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, groups, scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, SPACING: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Grid as in forward. `delta_ptr` may be None: only the bias gradient reads it. SPACING: see `store_rows`."""
    sequence, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    begin_q, length_q = sequence_span(cu_seqlens_q_ptr, sequence, tokens_q)
    begin_k, length_k = sequence_span(cu_seqlens_k_ptr, sequence, tokens_k)
    longest = tl.maximum(length_q, length_k)
    rows, strides = (begin_q, length_q, begin_k, length_k), (STRIDE_Q, STRIDE_K, STRIDE_V)
    bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
    dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
    if longest <= 16:
        _backward(
            q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
            rows, strides, bias, dropout, dropout_scale, tokens_q, group * (BLOCK_ROWS // 16), scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, SPACING,
            BLOCK_H=BLOCK_ROWS // 16, TOKENS=16,
        )  # fmt: skip
    elif longest <= 32:
        _backward(
            q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
            rows, strides, bias, dropout, dropout_scale, tokens_q, group * (BLOCK_ROWS // 32), scale,
            HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, SPACING,
            BLOCK_H=BLOCK_ROWS // 32, TOKENS=32,
        )  # fmt: skip


@triton.jit
def _backward(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
    rows, strides, bias, dropout, dropout_scale, tokens_q, first_head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, SPACING: tl.constexpr, BLOCK_H: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_H heads of a sequence of up to TOKENS tokens."""
    begin_q, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    if first_head < HEADS:
        head = first_head + tl.arange(0, BLOCK_H)[:, None, None]
        row, key_row = tl.arange(0, TOKENS)[None, :, None], tl.arange(0, TOKENS)[None, None, :]
        q = load_rows(q_ptr, begin_q, row, length_q, stride_q, head, HEADS, HEAD_DIM, BLOCK_D)
        k = load_rows(k_ptr, begin_k, row, length_k, stride_k, head, HEADS, HEAD_DIM, BLOCK_D)
        v = load_rows(v_ptr, begin_k, row, length_k, stride_v, head, HEADS, HEAD_DIM, BLOCK_D)
        grad = load_rows(grad_ptr, begin_q, row, length_q, HEADS * HEAD_DIM, head, HEADS, HEAD_DIM, BLOCK_D)
        lse = load_statistic(lse_ptr, begin_q, row, length_q, head, HEADS, tokens_q, float("inf"))
        s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
        if HAS_BIAS:
            s = add_bias(s, bias, head, HEADS, row, key_row)
        # Queries beyond the sequence have an infinite lse.
        visible = key_row < length_k
        if CAUSAL:
            visible = visible & (key_row <= row + (length_k - length_q))
        p = tl.where(visible, tl.exp2(s - lse), 0.0)
        kept = p
        if DROPOUT:
            kept = tl.where(keep_mask_heads(dropout, row, head, BLOCK_H, TOKENS, TOKENS), p, 0.0)
        dv = dot(flip(narrow(kept, v.dtype)), grad, PRECISION) * dropout_scale
        store_rows(dv_ptr, dv, begin_k, row, length_k, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
        dp = dot(grad, flip(v), PRECISION)
        delta = tl.sum(kept * dp, 2, keep_dims=True)
        if delta_ptr is not None:
            store_statistic(delta_ptr, delta, begin_q, row, length_q, head, HEADS, tokens_q)
        ds = narrow(score_gradient(kept, p, dp, delta, row, length_k - length_q, 0.0, CAUSAL), q.dtype)
        factor = gradient_factor(scale, dropout_scale, length_k)
        dk = dot(flip(ds), q, PRECISION) * factor
        store_rows(dk_ptr, dk, begin_k, row, length_k, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
        dq = dot(ds, k, PRECISION) * factor
        store_rows(dq_ptr, dq, begin_q, row, length_q, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
