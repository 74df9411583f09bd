"""Gradients of queries in positional attention: a program owns a tile of queries and loops over its keys.

The gradient of a query gathers those of its scores twice: times keys, and as distances (`query_distances`) times the
position keys of these. It is turned back before it is stored. delta (heads, tokens) fp32, for the other kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.dropout import kept
from fastbert.kernels.attention.positional.forward import RUNTIME
from fastbert.kernels.attention.positional.tiles import (
    add_distance_bias,
    add_products,
    content_to_position,
    key_range,
    load_rows,
    load_turned,
    locate,
    position_rows,
    position_to_content,
    product,
    query_distances,
    store_turned,
    visible_keys,
    zero_parts,
)
from fastbert.kernels.attention.tiles import load_statistic, store_delta
from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow


@triton.jit(do_not_specialize=RUNTIME)
def positional_queries(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, grad_ptr, lse_ptr, dq_ptr, delta_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr,
    rotary_ptr, positions_ptr, bias_ptr, position_keys_ptr, position_queries_ptr, buckets_ptr,
    tokens_q, tokens_k, positions, bias_distances, bias_stride, bucket_distances, rows, window, tiles,
    scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, GROUP: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ROTARY: tl.constexpr, DROPOUT: tl.constexpr, BIAS: tl.constexpr,
    POSITION_KEYS: tl.constexpr, POSITION_QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute delta and dq of a tile of queries; grid as in forward."""
    # Tiles without a mask have a loop of their own where the rest of its work does not hide the mask.
    SPLIT: tl.constexpr = not (CAUSAL or WINDOW or BIAS or POSITION_KEYS or POSITION_QUERIES)
    program = tl.program_id(0)
    first, head, sequence = program % tiles * BLOCK, (program // tiles) % HEADS, program // tiles // HEADS
    begin_q, length_q, begin_k, length_k = locate(cu_seqlens_q_ptr, cu_seqlens_k_ptr, sequence, tokens_q, tokens_k)
    if first < length_q:
        rotary, relative = (rotary_ptr, positions_ptr, positions), (buckets_ptr, bucket_distances, rows)
        bias = (bias_ptr, bias_stride, bias_distances)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        row, begin, length = tl.arange(0, BLOCK)[:, None], begin_q + first, length_q - first
        inside = row < length
        delta = store_delta(
            delta_ptr, out_ptr, rest_ptr, grad_ptr, begin, row, length, dropout_scale, head, tokens_q,
            HEADS, HEAD_DIM, BLOCK_D,
        )  # fmt: skip
        grad = load_rows(grad_ptr, begin, row, inside, HEADS * HEAD_DIM, head, HEAD_DIM, BLOCK_D, True)
        qa, qb = load_turned(q_ptr, begin, first, row, inside, STRIDE_Q, head, rotary, HEAD_DIM, WIDTH, ROTARY, True)
        lse = load_statistic(lse_ptr, begin, row, length, head, HEADS, tokens_q, float("inf"))
        start, full, end = key_range(first, length_q, length_k, window, CAUSAL, WINDOW, SPLIT, BLOCK)
        spans = (begin_k, length_k, first, length_k - length_q, window)
        tables = (position_keys_ptr, position_queries_ptr)
        dqa, dqb = zero_parts(BLOCK, WIDTH, ROTARY)
        if SPLIT:
            dqa, dqb = _add_keys(
                dqa, dqb, qa, qb, grad, lse, delta, k_ptr, v_ptr, start, full, spans, rotary, relative, tables, bias,
                dropout, dropout_scale, head, scale,
                HEADS, GROUP, STRIDE_K, STRIDE_V, CAUSAL, WINDOW, ROTARY, DROPOUT, BIAS, POSITION_KEYS,
                POSITION_QUERIES, HEAD_DIM, BLOCK_D, WIDTH, PRECISION, PTX, BLOCK, MASKED=False,
            )  # fmt: skip
        dqa, dqb = _add_keys(
            dqa, dqb, qa, qb, grad, lse, delta, k_ptr, v_ptr, full, end, spans, rotary, relative, tables, bias,
            dropout, dropout_scale, head, scale,
            HEADS, GROUP, STRIDE_K, STRIDE_V, CAUSAL, WINDOW, ROTARY, DROPOUT, BIAS, POSITION_KEYS,
            POSITION_QUERIES, HEAD_DIM, BLOCK_D, WIDTH, PRECISION, PTX, BLOCK, MASKED=True,
        )  # fmt: skip
        factor = scale * dropout_scale
        store_turned(
            dq_ptr, dqa * factor, dqb * factor, begin, first, row, inside, HEADS * HEAD_DIM, head, rotary,
            HEAD_DIM, WIDTH, ROTARY,
        )  # fmt: skip


@triton.jit
def _add_keys(
    dqa, dqb, qa, qb, grad, lse, delta, k_ptr, v_ptr, start, end, spans, rotary, relative, tables, bias,
    dropout, dropout_scale, head, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, ROTARY: tl.constexpr, DROPOUT: tl.constexpr, BIAS: tl.constexpr, POSITION_KEYS: tl.constexpr,
    POSITION_QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the keys from `start` to `end` to dq; MASKED: a tile may have invisible keys."""
    begin_k, length_k, first, shift, window = spans
    position_keys_ptr, position_queries_ptr = tables
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    position = first + shift + row
    low, high = visible_keys(position, length_k, window, CAUSAL, WINDOW)
    zero = tl.minimum(dropout_scale, 0.0)
    for here in range(start, end, BLOCK):
        left = length_k - here
        inside, unknown = row < left, left >> 31
        ka, kb = load_turned(
            k_ptr, begin_k + here, here, row, inside, STRIDE_K, head // GROUP, rotary, HEAD_DIM, WIDTH, ROTARY, MASKED
        )
        v = load_rows(v_ptr, begin_k + here, row, inside, STRIDE_V, head // GROUP, HEAD_DIM, BLOCK_D, MASKED)
        s = product(qa, qb, ka, kb, ROTARY, PRECISION)
        distance = here - first - shift
        if POSITION_QUERIES:
            near = position_rows(position_queries_ptr, relative, distance, head, HEADS, HEAD_DIM, BLOCK)
            s += position_to_content(ka, near, unknown, PRECISION, BLOCK)
        if POSITION_KEYS:
            near = position_rows(position_keys_ptr, relative, distance, head, HEADS, HEAD_DIM, BLOCK)
            s += content_to_position(qa, near, unknown, PRECISION, BLOCK)
        s *= scale * LOG2_E
        if BIAS:
            s = add_distance_bias(s, bias, here + column - position, head)
        p = tl.exp2(s - lse)
        if MASKED:
            p = tl.where((here + column >= low) & (here + column <= high), p, 0.0)
        dp = dot(grad, flip(v), PRECISION)
        kept_p = kept(p, dropout, here, first + row, head, zero, DROPOUT, PTX, BLOCK, BLOCK)
        # A query with one visible key has no gradient: its softmax is constant.
        ds = narrow(tl.where(low == high, zero, kept_p * dp - p * delta), ka.dtype)
        dqa, dqb = add_products(ds, ka, kb, dqa, dqb, ROTARY, PRECISION)
        if POSITION_KEYS:
            lower, upper = query_distances(ds, unknown, BLOCK)
            dqa = add_dot(lower, near[0], dqa, PRECISION)
            dqa = add_dot(upper, near[1], dqa, PRECISION)
    return dqa, dqb
