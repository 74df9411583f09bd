"""Forward of positional attention: tiles of queries against the tiles of keys that they attend to.

q, k, v, out (tokens, heads, HEAD_DIM), lse (heads, tokens) fp32 in units of log2; k and v may have fewer heads. As
`fastbert.kernels.attention.long`, for all lengths; the steps of positions are in `tiles`. With a window the loop visits
2 window / BLOCK + 2 tiles at most, so that cost is linear in length.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.attention.dropout import drop_and_narrow
from fastbert.kernels.attention.positional.tiles import (
    add_distance_bias,
    content_to_position,
    key_range,
    load_rows,
    load_turned,
    locate,
    position_rows,
    position_to_content,
    product,
    visible_keys,
)
from fastbert.kernels.attention.tiles import reciprocal, store_output, store_statistic
from fastbert.kernels.common import LOG2_E, add_dot, narrow

# Below every score, and finite, so that masked keys (-inf) are 0 relative to it.
LOWEST = tl.constexpr(-3e38)
RUNTIME = [
    "tokens_q", "tokens_k", "positions", "bias_distances", "bias_stride", "bucket_distances", "rows", "window", "tiles",
    "threshold", "site",
]  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME)
def positional_forward(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, key_ptr,
    rotary_ptr, positions_ptr, bias_ptr, position_keys_ptr, position_queries_ptr, buckets_ptr,
    tokens_q, tokens_k, positions, bias_distances, bias_stride, bucket_distances, rows, window, tiles,
    scale, dropout_scale, threshold, site,
    HEADS: tl.constexpr, GROUP: tl.constexpr, STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ROTARY: tl.constexpr, DROPOUT: tl.constexpr, BIAS: tl.constexpr,
    POSITION_KEYS: tl.constexpr, POSITION_QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: sequences x heads x tiles of BLOCK up to the longest sequence."""
    # Tiles without a mask have a loop of their own where the rest of its work does not hide the mask.
    SPLIT: tl.constexpr = not (CAUSAL or WINDOW or BIAS or POSITION_KEYS or POSITION_QUERIES)
    program = tl.program_id(0)
    first, head, sequence = program % tiles * BLOCK, (program // tiles) % HEADS, program // tiles // HEADS
    begin_q, length_q, begin_k, length_k = locate(cu_seqlens_q_ptr, cu_seqlens_k_ptr, sequence, tokens_q, tokens_k)
    if first < length_q:
        rotary, relative = (rotary_ptr, positions_ptr, positions), (buckets_ptr, bucket_distances, rows)
        bias = (bias_ptr, bias_stride, bias_distances)
        dropout = (tl.load(key_ptr + sequence) if DROPOUT else 0, site, threshold)
        row = tl.arange(0, BLOCK)[:, None]
        qa, qb = load_turned(
            q_ptr, begin_q + first, first, row, row < length_q - first, STRIDE_Q, head, rotary,
            HEAD_DIM, WIDTH, ROTARY, True,
        )  # fmt: skip
        start, full, end = key_range(first, length_q, length_k, window, CAUSAL, WINDOW, SPLIT, BLOCK)
        # The sums are of every eighth probability, so that no threads exchange them in the loop.
        state = (
            tl.zeros((BLOCK, BLOCK_D), tl.float32),
            tl.full((BLOCK, 1), LOWEST, tl.float32),
            tl.zeros((BLOCK, 8), tl.float32),
        )
        spans = (begin_k, length_k, first, length_k - length_q, window)
        tables = (position_keys_ptr, position_queries_ptr)
        if SPLIT:
            state = _attend(
                state, qa, qb, k_ptr, v_ptr, start, full, spans, rotary, relative, tables, bias, dropout, head, scale,
                HEADS, GROUP, STRIDE_K, STRIDE_V, CAUSAL, WINDOW, ROTARY, DROPOUT, BIAS, POSITION_KEYS,
                POSITION_QUERIES, HEAD_DIM, BLOCK_D, WIDTH, PRECISION, PTX, BLOCK, MASKED=False,
            )  # fmt: skip
        out, highest, total = _attend(
            state, qa, qb, k_ptr, v_ptr, full, end, spans, rotary, relative, tables, bias, dropout, head, scale,
            HEADS, GROUP, STRIDE_K, STRIDE_V, CAUSAL, WINDOW, ROTARY, DROPOUT, BIAS, POSITION_KEYS,
            POSITION_QUERIES, HEAD_DIM, BLOCK_D, WIDTH, PRECISION, PTX, BLOCK, MASKED=True,
        )  # fmt: skip
        total = tl.sum(total, 1, keep_dims=True)
        out *= dropout_scale * reciprocal(total)
        lse = tl.where(total == 0.0, 0.0, highest + tl.log2(total))
        store_output(out_ptr, rest_ptr, out, begin_q + first, row, length_q - first, head, HEADS, HEAD_DIM, BLOCK_D)
        store_statistic(lse_ptr, lse, begin_q + first, row, length_q - first, head, HEADS, tokens_q)


@triton.jit
def _attend(
    state, qa, qb, k_ptr, v_ptr, start, end, spans, rotary, relative, tables, bias, dropout, head, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, ROTARY: tl.constexpr, DROPOUT: tl.constexpr, BIAS: tl.constexpr, POSITION_KEYS: tl.constexpr,
    POSITION_QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr, PTX: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Continue the running softmax over keys from `start` to `end`; MASKED: a tile may have invisible keys."""
    out, highest, total = state
    begin_k, length_k, first, shift, window = spans
    position_keys_ptr, position_queries_ptr = tables
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    position = first + shift + row
    low, high = visible_keys(position, length_k, window, CAUSAL, WINDOW)
    for here in range(start, end, BLOCK):
        left = length_k - here
        inside, unknown = row < left, left >> 31
        ka, kb = load_turned(
            k_ptr, begin_k + here, here, row, inside, STRIDE_K, head // GROUP, rotary, HEAD_DIM, WIDTH, ROTARY, MASKED
        )
        v = load_rows(v_ptr, begin_k + here, row, inside, STRIDE_V, head // GROUP, HEAD_DIM, BLOCK_D, MASKED)
        s = product(qa, qb, ka, kb, ROTARY, PRECISION)
        distance = here - first - shift
        if POSITION_KEYS:
            near = position_rows(position_keys_ptr, relative, distance, head, HEADS, HEAD_DIM, BLOCK)
            s += content_to_position(qa, near, unknown, PRECISION, BLOCK)
        if POSITION_QUERIES:
            near = position_rows(position_queries_ptr, relative, distance, head, HEADS, HEAD_DIM, BLOCK)
            s += position_to_content(ka, near, unknown, PRECISION, BLOCK)
        if BIAS:
            s = add_distance_bias(s * (scale * LOG2_E), bias, here + column - position, head)
        if MASKED:
            s = tl.where((here + column >= low) & (here + column <= high), s, float("-inf"))
        new = tl.max(s, 1, keep_dims=True)
        if BIAS:
            new = tl.maximum(highest, new)
            p = tl.exp2(s - new)
        else:
            # The scale is positive, so it may follow the maximum and join the difference in one instruction.
            new = tl.maximum(highest, new * (scale * LOG2_E))
            p = tl.exp2(s * (scale * LOG2_E) - new)
        decay = tl.exp2(highest - new)
        total = total * decay + tl.sum(tl.reshape(p, (BLOCK, BLOCK // 8, 8)), 1)
        if DROPOUT:
            p = drop_and_narrow(p, dropout, here, first + row, head, v.dtype, PTX, BLOCK, BLOCK)
        out = add_dot(narrow(p, v.dtype), v, out * decay, PRECISION)
        highest = new
    return out, highest, total
