"""Gradients of keys and values in positional attention: a program owns a tile of keys, and loops over the heads of
queries that share them and over these queries, so that shared heads are summed in registers, in a fixed order.
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
    key_distances,
    load_rows,
    load_turned,
    locate,
    position_rows,
    position_to_content,
    product,
    query_range,
    store_turned,
    visible_keys,
    zero_parts,
)
from fastbert.kernels.attention.tiles import load_statistic, store_rows
from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow


@triton.jit(do_not_specialize=RUNTIME)
def positional_keys(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr,
    rotary_ptr, positions_ptr, bias_ptr, position_keys_ptr, position_queries_ptr, buckets_ptr,
    tokens_q, tokens_k, positions, bias_distances, bias_stride, bucket_distances, rows, window, tiles,
    scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, GROUP: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ROTARY: tl.constexpr, DROPOUT: tl.constexpr, BIAS: tl.constexpr,
    POSITION_KEYS: tl.constexpr, POSITION_QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: sequences x heads of keys x tiles of BLOCK up to the longest sequence."""
    GROUPS: tl.constexpr = HEADS // GROUP
    # Tiles without a mask have a loop of their own where the rest of its work does not hide the mask.
    SPLIT: tl.constexpr = not (CAUSAL or WINDOW or BIAS or POSITION_KEYS or POSITION_QUERIES)
    program = tl.program_id(0)
    first, group, sequence = program % tiles * BLOCK, (program // tiles) % GROUPS, program // tiles // GROUPS
    begin_q, length_q, begin_k, length_k = locate(cu_seqlens_q_ptr, cu_seqlens_k_ptr, sequence, tokens_q, tokens_k)
    if first < length_k:
        rotary, relative = (rotary_ptr, positions_ptr, positions), (buckets_ptr, bucket_distances, rows)
        bias = (bias_ptr, bias_stride, bias_distances)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        row, begin, length = tl.arange(0, BLOCK)[:, None], begin_k + first, length_k - first
        inside = row < length
        ka, kb = load_turned(k_ptr, begin, first, row, inside, STRIDE_K, group, rotary, HEAD_DIM, WIDTH, ROTARY, True)
        v = load_rows(v_ptr, begin, row, inside, STRIDE_V, group, HEAD_DIM, BLOCK_D, True)
        start, full, end = query_range(first, length_q, length_k, window, CAUSAL, WINDOW, SPLIT, BLOCK)
        spans = (begin_q, length_q, length_k, first, window, tokens_q)
        tables = (position_keys_ptr, position_queries_ptr)
        dka, dkb = zero_parts(BLOCK, WIDTH, ROTARY)
        dv = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        for head in range(group * GROUP, group * GROUP + GROUP):
            if SPLIT:
                dka, dkb, dv = _add_queries(
                    dka, dkb, dv, ka, kb, v, q_ptr, grad_ptr, lse_ptr, delta_ptr, start, full, spans, rotary, relative,
                    tables, bias, dropout, dropout_scale, head, scale,
                    HEADS, STRIDE_Q, CAUSAL, WINDOW, ROTARY, DROPOUT, BIAS, POSITION_KEYS, POSITION_QUERIES,
                    HEAD_DIM, BLOCK_D, WIDTH, PRECISION, PTX, BLOCK, MASKED=False,
                )  # fmt: skip
            dka, dkb, dv = _add_queries(
                dka, dkb, dv, ka, kb, v, q_ptr, grad_ptr, lse_ptr, delta_ptr, full, end, spans, rotary, relative,
                tables, bias, dropout, dropout_scale, head, scale,
                HEADS, STRIDE_Q, CAUSAL, WINDOW, ROTARY, DROPOUT, BIAS, POSITION_KEYS, POSITION_QUERIES,
                HEAD_DIM, BLOCK_D, WIDTH, PRECISION, PTX, BLOCK, MASKED=True,
            )  # fmt: skip
        store_rows(dv_ptr, dv * dropout_scale, begin, row, length, group, GROUPS, HEAD_DIM, BLOCK_D)
        factor = scale * dropout_scale
        store_turned(
            dk_ptr, dka * factor, dkb * factor, begin, first, row, inside, GROUPS * HEAD_DIM, group, rotary,
            HEAD_DIM, WIDTH, ROTARY,
        )  # fmt: skip


@triton.jit
def _add_queries(
    dka, dkb, dv, ka, kb, v, q_ptr, grad_ptr, lse_ptr, delta_ptr, start, end, spans, rotary, relative, tables, bias,
    dropout, dropout_scale, head, scale,
    HEADS: tl.constexpr, STRIDE_Q: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ROTARY: tl.constexpr,
    DROPOUT: tl.constexpr, BIAS: tl.constexpr, POSITION_KEYS: tl.constexpr, POSITION_QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add a head's queries from `start` to `end` to dk and dv; keys beyond the sequence are not stored.

    MASKED: a tile may have fewer queries, or some that attend to fewer keys.
    """
    begin_q, length_q, length_k, first, window, tokens_q = spans
    position_keys_ptr, position_queries_ptr = tables
    row, column = tl.arange(0, BLOCK)[:, None], first + tl.arange(0, BLOCK)[None, :]
    shift = length_k - length_q
    zero = tl.minimum(dropout_scale, 0.0)
    for here in range(start, end, BLOCK):
        left, begin = length_q - here, begin_q + here
        inside, position, unknown = row < left, here + shift + row, left >> 31
        qa, qb = load_turned(q_ptr, begin, here, row, inside, STRIDE_Q, head, rotary, HEAD_DIM, WIDTH, ROTARY, MASKED)
        grad = load_rows(grad_ptr, begin, row, inside, HEADS * HEAD_DIM, head, HEAD_DIM, BLOCK_D, MASKED)
        lse = load_statistic(lse_ptr, begin, row, left, head, HEADS, tokens_q, float("inf"))
        delta = load_statistic(delta_ptr, begin, row, left, head, HEADS, tokens_q, 0.0)
        s = product(qa, qb, ka, kb, ROTARY, PRECISION)
        distance = first - here - shift
        if POSITION_KEYS:
            near = position_rows(position_keys_ptr, relative, distance, head, HEADS, HEAD_DIM, BLOCK)
            s += content_to_position(qa, near, unknown, PRECISION, BLOCK)
        if POSITION_QUERIES:
            near = position_rows(position_queries_ptr, relative, distance, head, HEADS, HEAD_DIM, BLOCK)
            s += position_to_content(ka, near, unknown, PRECISION, BLOCK)
        s *= scale * LOG2_E
        if BIAS:
            s = add_distance_bias(s, bias, column - position, head)
        p = tl.exp2(s - lse)
        low, high = visible_keys(position, length_k, window, CAUSAL, WINDOW)
        if CAUSAL or WINDOW:
            p = tl.where((column >= low) & (column <= high), p, 0.0)
        dp = dot(grad, flip(v), PRECISION)
        kept_p = kept(p, dropout, first, here + row, head, zero, DROPOUT, PTX, BLOCK, BLOCK)
        ds = narrow(tl.where(low == high, zero, kept_p * dp - p * delta), qa.dtype)
        dv = add_dot(flip(narrow(kept_p, v.dtype)), grad, dv, PRECISION)
        dka, dkb = add_products(flip(ds), qa, qb, dka, dkb, ROTARY, PRECISION)
        if POSITION_QUERIES:
            lower, upper = key_distances(ds, unknown, BLOCK)
            dka = add_dot(flip(lower), near[0], dka, PRECISION)
            dka = add_dot(flip(upper), near[1], dka, PRECISION)
    return dka, dkb, dv
