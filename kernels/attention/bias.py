"""The gradient of an additive bias: the gradients of the scores, summed over all sequences of a packed batch.

bias (heads, rows, columns); partial (parts, heads, rows, columns) fp32. A program owns a tile of the bias and loops
over every `parts`-th sequence, so the sum has a fixed order without atomic additions; the parts are summed afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.dropout import kept
from fastbert.kernels.attention.tiles import (
    add_bias,
    gradient_factor,
    load_rows,
    load_statistic,
    score_gradient,
)
from fastbert.kernels.common import LOG2_E, dot, flip, sequence_span

RUNTIME = ["tokens_q", "tokens_k", "sequences", "parts", "bias_rows", "bias_columns", "threshold", "site"]


@triton.jit(do_not_specialize=RUNTIME)
def backward_bias(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, partial_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr, bias_ptr,
    stride_bias_head, stride_bias_row, stride_bias_column, bias_rows, bias_columns,
    tokens_q, tokens_k, sequences, parts, scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, PTX: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of columns x tiles of rows x (parts x heads)."""
    first_key, first_query = tl.program_id(0) * BLOCK_N, tl.program_id(1) * BLOCK_M
    part, head = tl.program_id(2) // HEADS, tl.program_id(2) % HEADS
    bias = (bias_ptr, bias_rows, bias_columns, stride_bias_head, stride_bias_row, stride_bias_column)
    row, key_row, column = (
        tl.arange(0, BLOCK_M)[:, None],
        tl.arange(0, BLOCK_N)[:, None],
        tl.arange(0, BLOCK_N)[None, :],
    )
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for sequence in range(part, sequences, parts):
        begin_q, length_q = sequence_span(cu_seqlens_q_ptr, sequence, tokens_q)
        begin_k, length_k = sequence_span(cu_seqlens_k_ptr, sequence, tokens_k)
        left_q, left_k = length_q - first_query, length_k - first_key
        if (left_q > 0) & (left_k > 0):
            begin_q += first_query
            q = load_rows(q_ptr, begin_q, row, left_q, STRIDE_Q, head, HEADS, HEAD_DIM, BLOCK_D)
            grad = load_rows(grad_ptr, begin_q, row, left_q, HEADS * HEAD_DIM, head, HEADS, HEAD_DIM, BLOCK_D)
            k = load_rows(k_ptr, begin_k + first_key, key_row, left_k, STRIDE_K, head, HEADS, HEAD_DIM, BLOCK_D)
            v = load_rows(v_ptr, begin_k + first_key, key_row, left_k, STRIDE_V, head, HEADS, HEAD_DIM, BLOCK_D)
            lse = load_statistic(lse_ptr, begin_q, row, left_q, head, HEADS, tokens_q, float("inf"))
            delta = load_statistic(delta_ptr, begin_q, row, left_q, head, HEADS, tokens_q, 0.0)
            s = dot(q, flip(k), PRECISION) * (scale * LOG2_E)
            s = add_bias(s, bias, head, HEADS, first_query + row, first_key + column)
            visible = (row < left_q) & (column < left_k)
            if CAUSAL:
                visible = visible & (first_key + column <= first_query + row + (length_k - length_q))
            p = tl.where(visible, tl.exp2(s - lse), 0.0)
            dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
            zero = tl.minimum(dropout_scale, 0.0)
            query = first_query + row
            kept_p = kept(p, dropout, first_key, query, head, zero, DROPOUT, PTX, BLOCK_M, BLOCK_N)
            dp = dot(grad, flip(v), PRECISION)
            ds = score_gradient(kept_p, p, dp, delta, query, length_k - length_q, zero, CAUSAL)
            total += ds * gradient_factor(1.0, dropout_scale, length_k)
    query, column = first_query + row, first_key + column
    offset = (tl.program_id(2).to(tl.int64) * bias_rows + query) * bias_columns + column
    tl.store(partial_ptr + offset, total, mask=(query < bias_rows) & (column < bias_columns))
