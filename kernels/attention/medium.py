"""Backward of attention for sequences of 129 to 512 tokens: a program computes a whole head of a sequence.

q, k, v, out (tokens, heads, HEAD_DIM), lse and delta (heads, tokens) fp32. The program loops over tiles of keys, and
within over tiles of queries: the scores are recomputed and the dropout mask drawn once, for five matmuls, two fewer
than in a kernel for dq and one for dk and dv. dk and dv stay in registers; dq is accumulated in fp32 in memory (from
the L2 cache, most of it), which only this program reads and writes, so sums have one order and no atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.dropout import kept
from fastbert.kernels.attention.tiles import (
    add_bias,
    gradient_factor,
    load_pair,
    load_rows,
    load_statistics,
    score_gradient,
    store_delta,
    store_rows,
)
from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow, sequence_span

RUNTIME = ["tokens_q", "tokens_k", "bias_rows", "bias_columns", "threshold", "site"]


@triton.jit
def _sum_offsets(BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the offsets of a tile of dq (BLOCK_M, BLOCK_D) in memory, as (BLOCK_D // 4 * BLOCK_M, 4).

    Two axes, because triton 3.6.0 would spread three over the threads in another order.
    """
    return tl.arange(0, BLOCK_D // 4 * BLOCK_M)[:, None] * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def _load_sum(x_ptr, exists, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load what `_store_sum` stored: (BLOCK_M, BLOCK_D) fp32, zeros unless it `exists`."""
    x = tl.load(x_ptr + _sum_offsets(BLOCK_M, BLOCK_D), mask=exists, other=0.0)
    x = tl.reshape(x, (BLOCK_D // 8, BLOCK_M // 16, 8, 4, 2, 2))
    return tl.reshape(tl.trans(x, 1, 4, 2, 0, 3, 5), (BLOCK_M, BLOCK_D))


@triton.jit
def _store_sum(x_ptr, x, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store x (BLOCK_M, BLOCK_D) fp32 in the order of a matmul's accumulator: each thread 16 bytes at a time."""
    x = tl.trans(tl.reshape(x, (BLOCK_M // 16, 2, 8, BLOCK_D // 8, 4, 2)), 3, 0, 2, 4, 1, 5)
    tl.store(x_ptr + _sum_offsets(BLOCK_M, BLOCK_D), tl.reshape(x, (BLOCK_D // 4 * BLOCK_M, 4)))


@triton.jit
def _key_tile(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, sum_ptr, dk_ptr, dv_ptr, delta_ptr,
    first, rows, strides, bias, dropout, dropout_scale, tokens_q, head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, SPACING: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of the keys from `first` on, and add their part of dq. MASKED: the tile has fewer keys."""
    _, length_q, begin_k, length_k = rows
    stride_q, stride_k, stride_v = strides
    key_row, length = tl.arange(0, BLOCK_N)[:, None], length_k - first
    k = load_rows(k_ptr, begin_k + first, key_row, length, stride_k, head, HEADS, HEAD_DIM, BLOCK_D)
    v = load_rows(v_ptr, begin_k + first, key_row, length, stride_v, head, HEADS, HEAD_DIM, BLOCK_D)
    start = 0
    if CAUSAL:
        # The first tile of keys begins the sums of all queries.
        start = tl.where(first > 0, tl.maximum(first - (length_k - length_q), 0) // BLOCK_M * BLOCK_M, 0)
    full = length_q // BLOCK_M * BLOCK_M
    sums = (tl.zeros((BLOCK_D, BLOCK_N), tl.float32), tl.zeros((BLOCK_D, BLOCK_N), tl.float32))
    sums = _add_queries(
        sums, k, v, q_ptr, grad_ptr, lse_ptr, sum_ptr, delta_ptr,
        start, full, first, rows, stride_q, bias, dropout, dropout_scale, tokens_q, head, scale,
        HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_M, BLOCK_N, MASKED, FEWER=False,
    )  # fmt: skip
    dk, dv = _add_queries(
        sums, k, v, q_ptr, grad_ptr, lse_ptr, sum_ptr, delta_ptr,
        tl.maximum(start, full), length_q, first, rows, stride_q, bias, dropout, dropout_scale, tokens_q, head, scale,
        HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, BLOCK_M, BLOCK_N, MASKED, FEWER=True,
    )  # fmt: skip
    dv = flip(dv) * dropout_scale
    store_rows(dv_ptr, dv, begin_k + first, key_row, length, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
    dk = flip(dk) * gradient_factor(scale, dropout_scale, length_k)
    store_rows(dk_ptr, dk, begin_k + first, key_row, length, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)


@triton.jit
def _add_queries(
    sums, k, v, q_ptr, grad_ptr, lse_ptr, sum_ptr, delta_ptr,
    start, end, first, rows, stride_q, bias, dropout, dropout_scale, tokens_q, head, scale,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr, FEWER: tl.constexpr,
):  # fmt: skip
    """Add the queries from `start` to `end` to dk and dv, and their part of dq. FEWER: the last tile has fewer."""
    dk, dv = sums
    begin_q, length_q, _, length_k = rows
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    zero = tl.minimum(dropout_scale, 0.0)
    length, strides = length_k - first, (stride_q, HEADS * HEAD_DIM)
    q_ptr += tl.cast(begin_q + start, tl.int64) * stride_q + head * HEAD_DIM
    grad_ptr += tl.cast(begin_q + start, tl.int64) * (HEADS * HEAD_DIM) + head * HEAD_DIM
    lse_ptr += head * tl.cast(tokens_q, tl.int64) + begin_q + start
    delta_ptr += head * tl.cast(tokens_q, tl.int64) + begin_q + start
    sum_ptr += start * BLOCK_D
    # Values that leave the loop would take registers that it needs.
    for here in tl.range(start, end, BLOCK_M, disable_licm=True):
        left = length_q - here
        q, grad = load_pair(q_ptr, grad_ptr, row, left, strides, HEADS, HEAD_DIM, BLOCK_D, FEWER)
        lse, delta = load_statistics(lse_ptr, delta_ptr, row, left, tokens_q, FEWER)
        s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
        if HAS_BIAS:
            s = add_bias(s, bias, head, HEADS, here + row, first + column)
        p = tl.exp2(s - lse)
        if CAUSAL:
            p = tl.where(first + column <= here + row + (length_k - length_q), p, 0.0)
        if MASKED:
            p = tl.where(column < length, p, 0.0)
        kept_p = kept(p, dropout, first, here + row, head, zero, DROPOUT, PTX, BLOCK_M, BLOCK_N)
        dv = add_dot(flip(grad), narrow(kept_p, v.dtype), dv, PRECISION)
        dp = dot(grad, flip(v), PRECISION)
        ds = score_gradient(kept_p, p, dp, delta, here + row, length_k - length_q, zero, CAUSAL)
        ds = narrow(ds, q.dtype)
        dk = add_dot(flip(q), ds, dk, PRECISION)
        dq = _load_sum(sum_ptr, first > 0, BLOCK_M, BLOCK_D)
        dq = add_dot(ds, k, dq, PRECISION)
        _store_sum(sum_ptr, dq, BLOCK_M, BLOCK_D)
        q_ptr += BLOCK_M * stride_q
        grad_ptr += BLOCK_M * (HEADS * HEAD_DIM)
        lse_ptr += BLOCK_M
        delta_ptr += BLOCK_M
        sum_ptr += BLOCK_M * BLOCK_D
    return dk, dv


@triton.jit(do_not_specialize=RUNTIME)
def backward_medium(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, grad_ptr, lse_ptr, sum_ptr, dq_ptr, dk_ptr, dv_ptr, delta_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, PTX: tl.constexpr, SPACING: tl.constexpr, SHORT: tl.constexpr, MAX_MEDIUM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: sequences x heads. sum (tokens_q + sequences * BLOCK_M) * HEADS * BLOCK_D fp32 holds partial sums of dq."""
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    begin_q, length_q = sequence_span(cu_seqlens_q_ptr, sequence, tokens_q)
    begin_k, length_k = sequence_span(cu_seqlens_k_ptr, sequence, tokens_k)
    longest = tl.maximum(length_q, length_k)
    if (longest > SHORT) & (longest <= MAX_MEDIUM):
        bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        factor = gradient_factor(scale, dropout_scale, length_k)
        row = tl.arange(0, BLOCK_M)[:, None]
        # Each head has whole tiles of its own.
        sum_ptr += (tl.cast(begin_q + sequence * BLOCK_M, tl.int64) * HEADS + head * (length_q + BLOCK_M)) * BLOCK_D
        for here in range(0, length_q, BLOCK_M):
            store_delta(
                delta_ptr, out_ptr, rest_ptr, grad_ptr, begin_q + here, row, length_q - here, dropout_scale, head,
                tokens_q, HEADS, HEAD_DIM, BLOCK_D,
            )  # fmt: skip
        # Threads read statistics that others wrote.
        tl.debug_barrier()
        rows, strides = (begin_q, length_q, begin_k, length_k), (STRIDE_Q, STRIDE_K, STRIDE_V)
        full = length_k // BLOCK_N * BLOCK_N
        for first in range(0, full, BLOCK_N):
            _key_tile(
                q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, sum_ptr, dk_ptr, dv_ptr, delta_ptr,
                first, rows, strides, bias, dropout, dropout_scale, tokens_q, head, scale,
                HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, SPACING, BLOCK_M, BLOCK_N,
                MASKED=False,
            )  # fmt: skip
        if full < length_k:
            _key_tile(
                q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, sum_ptr, dk_ptr, dv_ptr, delta_ptr,
                full, rows, strides, bias, dropout, dropout_scale, tokens_q, head, scale,
                HEADS, CAUSAL, HAS_BIAS, DROPOUT, HEAD_DIM, BLOCK_D, PRECISION, PTX, SPACING, BLOCK_M, BLOCK_N,
                MASKED=True,
            )  # fmt: skip
        tl.debug_barrier()
        for here in range(0, length_q, BLOCK_M):
            dq = _load_sum(sum_ptr + here * BLOCK_D, length_k > 0, BLOCK_M, BLOCK_D) * factor
            store_rows(dq_ptr, dq, begin_q + here, row, length_q - here, head, HEADS, HEAD_DIM, BLOCK_D, SPACING)
