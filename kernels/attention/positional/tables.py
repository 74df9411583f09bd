"""Gradients of what is added to scores by distance: distance biases, position keys and position queries.

The tiles of one diagonal, whose keys lie `offset` after their queries, have the same distances at the same places. A
program owns a diagonal of a head, loops over every `parts`-th sequence and the tiles in it, and sums

- for the bias, the gradients of the scores, (BLOCK, BLOCK), and in the end along its diagonals: (2, BLOCK);
- for the position keys, the product of these gradients, as distances, with the queries, and for the position queries
  that with the keys: (2, BLOCK, HEAD_DIM) each;

of the lower half of distances, from offset - BLOCK + 1 on, and of the upper, from offset + 1 on. The launcher adds
halves, parts and what falls into a bucket, in a fixed order: no atomic additions, memory linear in length.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.dropout import kept
from fastbert.kernels.attention.positional.forward import RUNTIME
from fastbert.kernels.attention.positional.tiles import (
    add_distance_bias,
    content_to_position,
    key_distances,
    load_rows,
    load_turned,
    locate,
    position_rows,
    position_to_content,
    product,
    query_distances,
    store_sums,
    visible_keys,
)
from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow


@triton.jit(do_not_specialize=[*RUNTIME, "sequences", "parts"])
def positional_tables(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dbias_ptr, dkeys_ptr, dqueries_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr,
    rotary_ptr, positions_ptr, bias_ptr, position_keys_ptr, position_queries_ptr, buckets_ptr,
    tokens_q, tokens_k, positions, bias_distances, bias_stride, bucket_distances, rows, window, tiles,
    scale, dropout_scale, threshold, site, sequences, parts,
    HEADS: tl.constexpr, GROUP: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ROTARY: tl.constexpr, DROPOUT: tl.constexpr, BIAS: tl.constexpr,
    POSITION_KEYS: tl.constexpr, POSITION_QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: diagonals x heads x parts; diagonal `tiles` is that of offset 0. Gradients without a pointer are left out.

    dbias (parts, heads, diagonals, 2, BLOCK), dkeys and dqueries (parts, heads, diagonals, 2, BLOCK, HEAD_DIM), fp32.
    """
    offset, head, part = (tl.program_id(0) - tiles) * BLOCK, tl.program_id(1), tl.program_id(2)
    rotary, relative = (rotary_ptr, positions_ptr, positions), (buckets_ptr, bucket_distances, rows)
    bias = (bias_ptr, bias_stride, bias_distances)
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    zero = tl.minimum(dropout_scale, 0.0)
    total = tl.zeros((BLOCK, BLOCK), tl.float32) if dbias_ptr is not None else tl.zeros((1, 1), tl.float32)
    lower_keys = tl.zeros((BLOCK, BLOCK_D if dkeys_ptr is not None else 1), tl.float32)
    upper_keys = tl.zeros((BLOCK, BLOCK_D if dkeys_ptr is not None else 1), tl.float32)
    lower_queries = tl.zeros((BLOCK, BLOCK_D if dqueries_ptr is not None else 1), tl.float32)
    upper_queries = tl.zeros((BLOCK, BLOCK_D if dqueries_ptr is not None else 1), tl.float32)
    if POSITION_KEYS:
        near_keys = position_rows(position_keys_ptr, relative, offset, head, HEADS, HEAD_DIM, BLOCK)
    if POSITION_QUERIES:
        near_queries = position_rows(position_queries_ptr, relative, offset, head, HEADS, HEAD_DIM, BLOCK)
    for sequence in range(part, sequences, parts):
        begin_q, length_q, begin_k, length_k = locate(cu_seqlens_q_ptr, cu_seqlens_k_ptr, sequence, tokens_q, tokens_k)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        shift = length_k - length_q
        # Positions of queries and keys begin at multiples of BLOCK, as the blocks of dropout require of keys.
        start = tl.maximum(shift - (shift & (BLOCK - 1)), -offset)
        for here in range(start, tl.minimum(length_k, length_k - offset), BLOCK):
            first, first_key = here - shift, here + offset
            query, key, position = first + row, first_key + column, here + row
            inside = (query >= 0) & (query < length_q)
            left = length_k - first_key
            inside_k, unknown = row < left, left >> 31
            qa, qb = load_turned(
                q_ptr, begin_q + first, first, row, inside, STRIDE_Q, head, rotary, HEAD_DIM, WIDTH, ROTARY, True
            )
            ka, kb = load_turned(
                k_ptr, begin_k + first_key, first_key, row, inside_k, STRIDE_K, head // GROUP, rotary,
                HEAD_DIM, WIDTH, ROTARY, True,
            )  # fmt: skip
            v = load_rows(v_ptr, begin_k + first_key, row, inside_k, STRIDE_V, head // GROUP, HEAD_DIM, BLOCK_D, True)
            grad = load_rows(grad_ptr, begin_q + first, row, inside, HEADS * HEAD_DIM, head, HEAD_DIM, BLOCK_D, True)
            statistic = head * tl.cast(tokens_q, tl.int64) + begin_q + query
            lse = tl.load(lse_ptr + statistic, mask=inside, other=float("inf"))
            delta = tl.load(delta_ptr + statistic, mask=inside, other=0.0)
            s = product(qa, qb, ka, kb, ROTARY, PRECISION)
            if POSITION_KEYS:
                s += content_to_position(qa, near_keys, unknown, PRECISION, BLOCK)
            if POSITION_QUERIES:
                s += position_to_content(ka, near_queries, unknown, PRECISION, BLOCK)
            s *= scale * LOG2_E
            if BIAS:
                s = add_distance_bias(s, bias, key - position, head)
            low, high = visible_keys(position, length_k, window, CAUSAL, WINDOW)
            p = tl.where((key >= low) & (key <= high), tl.exp2(s - lse), 0.0)
            dp = dot(grad, flip(v), PRECISION)
            kept_p = kept(p, dropout, first_key, query, head, zero, DROPOUT, PTX, BLOCK, BLOCK)
            ds = tl.where(low == high, zero, kept_p * dp - p * delta)
            if dbias_ptr is not None:
                total += ds
            ds = narrow(ds, qa.dtype)
            if dkeys_ptr is not None:
                lower, upper = query_distances(ds, unknown, BLOCK)
                lower_keys = add_dot(flip(lower), qa, lower_keys, PRECISION)
                upper_keys = add_dot(flip(upper), qa, upper_keys, PRECISION)
            if dqueries_ptr is not None:
                lower, upper = key_distances(ds, unknown, BLOCK)
                lower_queries = add_dot(lower, ka, lower_queries, PRECISION)
                upper_queries = add_dot(upper, ka, upper_queries, PRECISION)
    halves = ((part * HEADS + head) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * 2
    if dbias_ptr is not None:
        lower, upper = query_distances(total, 0, BLOCK)
        dbias_ptr += halves * BLOCK + tl.arange(0, BLOCK)
        tl.store(dbias_ptr, tl.sum(lower, 0) * dropout_scale)
        tl.store(dbias_ptr + BLOCK, tl.sum(upper, 0) * dropout_scale)
    factor = scale * dropout_scale
    if dkeys_ptr is not None:
        store_sums(dkeys_ptr, lower_keys * factor, halves, HEAD_DIM, BLOCK_D, BLOCK)
        store_sums(dkeys_ptr, upper_keys * factor, halves + 1, HEAD_DIM, BLOCK_D, BLOCK)
    if dqueries_ptr is not None:
        store_sums(dqueries_ptr, lower_queries * factor, halves, HEAD_DIM, BLOCK_D, BLOCK)
        store_sums(dqueries_ptr, upper_queries * factor, halves + 1, HEAD_DIM, BLOCK_D, BLOCK)
