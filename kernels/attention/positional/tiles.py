"""Steps of the positional attention kernels, on square tiles of BLOCK queries and BLOCK keys of one head.

The position of a query is its index plus `length_k - length_q`; a distance is that of a key minus that of a query.

**Rotary embeddings** turn dim i against dim i + ROTARY / 2. A tile is therefore loaded as two parts (rows, WIDTH) whose
columns are turned against each other: no value is exchanged between threads, a dot product is the sum of two of half
the depth, and gradients are turned back the same way before they are stored. Dims that are not turned are split evenly
between the parts. Without rotary embeddings there is one part of the whole width, and the second is the first again.

**Relative positions** (He et al. 2021, equation 4): a tile has 2 BLOCK - 1 distances, and a product with as many rows
of a table holds all of its terms: that of query i and key j in column j - i + BLOCK - 1. The rows come as a lower and
an upper half of BLOCK. A query needs the columns from BLOCK - 1 - i on of the lower and those before of the upper half,
so both products merge into one tile, which each row then rotates by its own amount (`tl.gather`, in shared memory).

Counted per score and head dim, the forward pass takes 1 + 2 + 2 + 1 multiply-adds where plain attention takes two, and
no memory beyond the tables. Products of all tokens with all rows of both tables (512 in DeBERTa) would instead write
and read 2 x 12 x 512 half-precision values per token with 12 heads, 49 KB forward alone: on an H100, 15 ns per token
beside about 0.025 ns per token and key of tensor cores and shared memory here, so more time up to 512 keys, and
backward would need atomic additions, because buckets of neighbouring distances coincide.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import LOG2_E, add_dot, dot, flip, narrow


@triton.jit
def locate(cu_seqlens_q_ptr, cu_seqlens_k_ptr, sequence, tokens_q, tokens_k):
    """Return the first query, the number of queries, the first key and the number of keys of a sequence, clamped to the
    tokens that exist."""
    begin_q = tl.minimum(tl.maximum(tl.load(cu_seqlens_q_ptr + sequence), 0), tokens_q)
    end_q = tl.minimum(tl.maximum(tl.load(cu_seqlens_q_ptr + sequence + 1), begin_q), tokens_q)
    begin_k = tl.minimum(tl.maximum(tl.load(cu_seqlens_k_ptr + sequence), 0), tokens_k)
    end_k = tl.minimum(tl.maximum(tl.load(cu_seqlens_k_ptr + sequence + 1), begin_k), tokens_k)
    return begin_q, end_q - begin_q, begin_k, end_k - begin_k


@triton.jit
def visible_keys(position, length_k, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Return the first and the last key that the query at `position` attends to."""
    low, high = tl.zeros_like(position), tl.zeros_like(position) + (length_k - 1)
    if WINDOW:
        low, high = tl.maximum(position - window, 0), tl.minimum(high, position + window)
    if CAUSAL:
        high = tl.minimum(high, position)
    return low, high


@triton.jit
def key_range(
    first, length_q, length_k, window,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return, for the tile of queries from `first` on, the first key tile, the first with a mask, and the end."""
    last = tl.minimum(first + BLOCK, length_q) - 1
    start, full, end = 0, length_k // BLOCK * BLOCK, length_k
    if WINDOW:
        start = tl.maximum(first + (length_k - length_q) - window, 0) // BLOCK * BLOCK
        end = tl.minimum(end, last + (length_k - length_q) + window + 1)
    if CAUSAL:
        end = tl.minimum(end, last + (length_k - length_q) + 1)
    if not SPLIT:
        full = start
    return start, full, end


@triton.jit
def query_range(
    first, length_q, length_k, window,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return, for the tile of keys from `first` on, the first query tile, the first with a mask, and the end."""
    shift = length_k - length_q
    start, full, end = 0, length_q // BLOCK * BLOCK, length_q
    if CAUSAL:
        start = tl.maximum(first - shift, 0) // BLOCK * BLOCK
    elif WINDOW:
        start = tl.maximum(first - window - shift, 0) // BLOCK * BLOCK
    if WINDOW:
        end = tl.minimum(end, tl.minimum(first + BLOCK, length_k) - shift + window)
    if not SPLIT:
        full = start
    return start, full, end


@triton.jit
def _columns(HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr, WIDTH: tl.constexpr):
    """Return the columns of both parts, those that exist, and those that are turned."""
    column = tl.arange(0, WIDTH)[None, :]
    if ROTARY == 0:
        return column, column, column < HEAD_DIM, column < 0
    else:
        HALF: tl.constexpr = HEAD_DIM // 2
        TURNED: tl.constexpr = ROTARY // 2
        if TURNED == HALF:
            return column, column + HALF, column < HALF, column < HALF
        else:
            turned = column < TURNED
            first = tl.where(turned, column, column + TURNED)
            return first, first + tl.where(turned, TURNED, HALF - TURNED), column < HALF, turned


@triton.jit
def _load(x_ptr, column, real, inside, HEAD_DIM: tl.constexpr, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(x_ptr + column, mask=inside & real, other=0.0)
    elif HEAD_DIM & (HEAD_DIM - 1):
        return tl.load(x_ptr + column, mask=real, other=0.0)
    else:
        return tl.load(x_ptr + column)


@triton.jit
def load_rows(
    x_ptr, first, row, inside, stride, head,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load whole rows (rows, BLOCK_D) from token `first` on, zeros where not `inside` if MASKED."""
    column = tl.arange(0, BLOCK_D)[None, :]
    x_ptr += tl.cast(first, tl.int64) * stride + head * HEAD_DIM
    return _load(x_ptr + row.to(tl.int64) * stride, column, column < HEAD_DIM, inside, HEAD_DIM, MASKED)


@triton.jit
def _angles(rotary, first, index, row, inside, turned, ROTARY: tl.constexpr, WIDTH: tl.constexpr):
    """Return cosines and sines (rows, WIDTH) of tokens, 1 and 0 in columns that are not turned."""
    rotary_ptr, positions_ptr, positions = rotary
    if positions_ptr is None:
        position = index + row
    else:
        position = tl.load(positions_ptr + tl.cast(first, tl.int64) + row, mask=inside, other=0).to(tl.int32)
    position = tl.minimum(tl.maximum(position, 0), positions - 1)
    rotary_ptr += position.to(tl.int64) * ROTARY
    column = tl.arange(0, WIDTH)[None, :]
    cosine = tl.load(rotary_ptr + column, mask=turned, other=1.0)
    return cosine, tl.load(rotary_ptr + (ROTARY // 2) + column, mask=turned, other=0.0)


@triton.jit
def _settled(x, dtype: tl.constexpr):
    """Return x in `dtype`, behind a reduction of one value: compilers for matrix units that read registers would
    otherwise turn a tile once per operand that it is, and hold its fp32 parts for each."""
    return narrow(tl.max(tl.expand_dims(x, 2), 2), dtype)


@triton.jit
def load_turned(
    x_ptr, first, index, row, inside, stride, head, rotary,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, ROTARY: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load two parts (rows, WIDTH) from token `first` on, the `index`-th of its sequence, and turn them."""
    column, other, real, turned = _columns(HEAD_DIM, ROTARY, WIDTH)
    x_ptr += tl.cast(first, tl.int64) * stride + head * HEAD_DIM
    x_ptr += row.to(tl.int64) * stride
    a = _load(x_ptr, column, real, inside, HEAD_DIM, MASKED)
    if ROTARY == 0:
        return a, a
    else:
        b = _load(x_ptr, other, real, inside, HEAD_DIM, MASKED)
        cosine, sine = _angles(rotary, first, index, row, inside, turned, ROTARY, WIDTH)
        wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
        return _settled(wide_a * cosine - wide_b * sine, a.dtype), _settled(wide_b * cosine + wide_a * sine, b.dtype)


@triton.jit
def store_turned(
    x_ptr, a, b, first, index, row, inside, stride, head, rotary,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Turn the gradients of two parts back and store them; the inverse of `load_turned`."""
    column, other, real, turned = _columns(HEAD_DIM, ROTARY, WIDTH)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x_ptr += tl.cast(first, tl.int64) * stride + head * HEAD_DIM
    x_ptr += row.to(tl.int64) * stride
    if ROTARY == 0:
        tl.store(x_ptr + column, narrow(a, dtype), mask=inside & real)
    else:
        cosine, sine = _angles(rotary, first, index, row, inside, turned, ROTARY, WIDTH)
        tl.store(x_ptr + column, narrow(a * cosine + b * sine, dtype), mask=inside & real)
        tl.store(x_ptr + other, narrow(b * cosine - a * sine, dtype), mask=inside & real)


@triton.jit
def product(a, b, c, d, ROTARY: tl.constexpr, PRECISION: tl.constexpr):
    """Return the product of rows in parts (a, b) with rows in parts (c, d)."""
    if ROTARY == 0:
        return dot(a, flip(c), PRECISION)
    else:
        return add_dot(b, flip(d), dot(a, flip(c), PRECISION), PRECISION)


@triton.jit
def add_products(x, a, b, sum_a, sum_b, ROTARY: tl.constexpr, PRECISION: tl.constexpr):
    """Return sum_a + x @ a and, with rotary embeddings, sum_b + x @ b."""
    sum_a = add_dot(x, a, sum_a, PRECISION)
    if ROTARY != 0:
        sum_b = add_dot(x, b, sum_b, PRECISION)
    return sum_a, sum_b


@triton.jit
def zero_parts(ROWS: tl.constexpr, WIDTH: tl.constexpr, ROTARY: tl.constexpr):
    """Return the sums that `add_products` begins with."""
    a = tl.zeros((ROWS, WIDTH), tl.float32)
    if ROTARY == 0:
        return a, tl.zeros((1, 1), tl.float32)
    else:
        return a, tl.zeros((ROWS, WIDTH), tl.float32)


@triton.jit
def _position_half(table_ptr, relative, distance, head, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Return the rows of a table (rows, HEADS, HEAD_DIM) for distances (BLOCK, 1)."""
    buckets_ptr, distances, rows = relative
    distance = tl.minimum(tl.maximum(distance + distances // 2, 0), distances - 1)
    bucket = tl.minimum(tl.maximum(tl.load(buckets_ptr + distance), 0), rows - 1)
    table_ptr += bucket.to(tl.int64) * (HEADS * HEAD_DIM) + head * HEAD_DIM
    return tl.load(table_ptr + tl.arange(0, HEAD_DIM)[None, :])


@triton.jit
def position_rows(
    table_ptr, relative, distance, head, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the rows of a table for all distances of the tile whose first query and key are `distance` apart: the
    lower half and the upper."""
    distance = distance - (BLOCK - 1) + tl.arange(0, BLOCK)[:, None]
    lower = _position_half(table_ptr, relative, distance, head, HEADS, HEAD_DIM)
    return lower, _position_half(table_ptr, relative, distance + BLOCK, head, HEADS, HEAD_DIM)


@triton.jit
def content_to_position(q, rows, zero, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    """Return the products of queries with the position keys of their distances, (queries, keys)."""
    query, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    lower, upper = dot(q, flip(rows[0]), PRECISION), dot(q, flip(rows[1]), PRECISION)
    return tl.gather(tl.where(column >= BLOCK - 1 - query, lower, upper), (column - query - 1 + zero) & (BLOCK - 1), 1)


@triton.jit
def position_to_content(k, rows, zero, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    """Return the products of keys with the position queries of their distances, (queries, keys)."""
    row, key = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    lower, upper = dot(rows[0], flip(k), PRECISION), dot(rows[1], flip(k), PRECISION)
    return tl.gather(tl.where(row >= key, lower, upper), (key - row - 1 + zero) & (BLOCK - 1), 0)


@triton.jit
def query_distances(ds, zero, BLOCK: tl.constexpr):
    """Return gradients of scores (queries, keys) as (queries, distances): those of the lower half, and the upper's."""
    query, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    ds = tl.gather(ds, (column + query + 1 + zero) & (BLOCK - 1), 1)
    lower = column >= BLOCK - 1 - query
    return tl.where(lower, ds, 0.0).to(ds.dtype), tl.where(lower, 0.0, ds).to(ds.dtype)


@triton.jit
def key_distances(ds, zero, BLOCK: tl.constexpr):
    """Return gradients of scores (queries, keys) as (distances, keys): those of the lower half, and the upper's."""
    row, key = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    ds = tl.gather(ds, (key - row - 1 + zero) & (BLOCK - 1), 0)
    return tl.where(row >= key, ds, 0.0).to(ds.dtype), tl.where(row >= key, 0.0, ds).to(ds.dtype)


@triton.jit
def add_distance_bias(s, distance_bias, distance, head):
    """Return s + the bias of distances (queries, keys), in units of log2; 0 beyond the table."""
    bias_ptr, stride, distances = distance_bias
    column = distance + distances // 2
    bias_ptr += tl.cast(head, tl.int64) * stride
    inside = (column >= 0) & (column < distances)
    return s + tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32) * LOG2_E


@triton.jit
def store_sums(x_ptr, x, block, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr):
    """Store sums as the `block`-th (BLOCK, HEAD_DIM)."""
    column = tl.arange(0, BLOCK_D)[None, :]
    x_ptr += block * (BLOCK * HEAD_DIM) + tl.arange(0, BLOCK)[:, None] * HEAD_DIM
    tl.store(x_ptr + column, x, mask=column < HEAD_DIM)
