"""The steps that attention kernels share, on tiles of one head (rows, columns) or several (heads, rows, columns).

Scores and their logarithms are in units of log2, because a GPU's exponential is exp2. The helpers take `query` and
`key_row` tiles that broadcast against each other in either orientation, so scores may have queries or keys as rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import DROPOUT_ROUNDS, LOG2_E, narrow


@triton.jit
def _row_offsets(row, stride, head, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Offsets of (rows, PADDED) or (heads, rows, PADDED) from a tile's first row, in 32 bits, and which exist."""
    column = tl.arange(0, PADDED)
    if len(row.shape) == 2:
        return row * stride + column[None, :], column[None, :] < WIDTH
    else:
        return row * stride + (head * WIDTH + column[None, None, :]), column[None, None, :] < WIDTH


@triton.jit
def _first(x_ptr, token, stride, row, head, WIDTH: tl.constexpr):
    """The address of a token's row, with 64-bit arithmetic; of its head too when the tile is of one head."""
    x_ptr += tl.cast(token, tl.int64) * stride
    if len(row.shape) == 2:
        return x_ptr + head * WIDTH
    else:
        return x_ptr


@triton.jit
def _inside(row, length, head, heads, real, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Which elements of a tile exist; a tile of one head is only asked for when that head does."""
    inside = row < length
    if len(row.shape) == 3:
        inside = inside & (head < heads)
    if WIDTH != PADDED:
        inside = inside & real
    return inside


@triton.jit
def load_rows(x_ptr, first, row, length, stride, head, heads, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows of a tile that begins at token `first`: (rows, PADDED) or (heads, rows, PADDED); `length` rows exist."""
    offset, real = _row_offsets(row, stride, head, WIDTH, PADDED)
    inside = _inside(row, length, head, heads, real, WIDTH, PADDED)
    return tl.load(_first(x_ptr, first, stride, row, head, WIDTH) + offset, mask=inside, other=0.0)


@triton.jit
def load_full_rows(x_ptr, first, row, stride, head, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """The same for one head where all rows exist."""
    offset, real = _row_offsets(row, stride, head, WIDTH, PADDED)
    x_ptr = _first(x_ptr, first, stride, row, head, WIDTH)
    if WIDTH != PADDED:
        return tl.load(x_ptr + offset, mask=real, other=0.0)
    else:
        return tl.load(x_ptr + offset)


@triton.jit
def store_rows(
    x_ptr, x, first, row, length, head, heads, WIDTH: tl.constexpr, PADDED: tl.constexpr, APART: tl.constexpr = 1
):  # fmt: skip
    """The way back, into (tokens, heads, WIDTH) whose tokens lie APART times their size apart."""
    stride = heads * (WIDTH * APART)
    offset, real = _row_offsets(row, stride, head, WIDTH, PADDED)
    inside = _inside(row, length, head, heads, real, WIDTH, PADDED)
    x = narrow(x, x_ptr.dtype.element_ty)
    tl.store(_first(x_ptr, first, stride, row, head, WIDTH) + offset, x, mask=inside)


@triton.jit
def load_statistic(x_ptr, first, row, length, head, heads, tokens, OUTSIDE: tl.constexpr):
    """lse or delta of rows, from (heads, tokens) fp32; OUTSIDE where there is no row.

    inf for lse makes all probabilities of such a row 0, whatever a bias says at its place.
    """
    offset = head * tl.cast(tokens, tl.int64) + first + row
    return tl.load(x_ptr + offset, mask=(row < length) & (head < heads), other=OUTSIDE)


@triton.jit
def store_statistic(x_ptr, x, first, row, length, head, heads, tokens):
    """The way back."""
    offset = head * tl.cast(tokens, tl.int64) + first + row
    tl.store(x_ptr + offset, x, mask=(row < length) & (head < heads))


@triton.jit
def add_bias(s, bias, head, heads, query, key_row):
    """s + bias in units of log2; `bias` is pointer, rows, columns, strides, and counts as zero outside of its shape."""
    bias_ptr, rows, columns, stride_head, stride_row, stride_column = bias
    offset = query.to(tl.int64) * stride_row + key_row.to(tl.int64) * stride_column
    offset += tl.cast(head, tl.int64) * stride_head
    inside = (query < rows) & (key_row < columns) & (head < heads)
    return s + tl.load(bias_ptr + offset, mask=inside, other=0.0).to(tl.float32) * LOG2_E


@triton.jit
def softmax_row(s):
    """Of whole rows of scores: probabilities before their division, their sum, and log2 of the sum of exponentials.

    A row without a visible key (all scores -inf) has probabilities, sum and logarithm 0.
    """
    highest = tl.max(s, len(s.shape) - 1, keep_dims=True)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    p = tl.exp2(s - highest)
    total = tl.sum(p, len(s.shape) - 1, keep_dims=True)
    return p, total, tl.where(total == 0.0, 0.0, highest + tl.log2(total))


@triton.jit
def reciprocal(total):
    """1 / total, and 0 for a row without a visible key; NaN stays NaN."""
    return tl.where(total == 0.0, 0.0, 1.0 / total)


@triton.jit
def kept(key, first_key, query, head, site, threshold, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Dropout of attention probabilities: bool (QUERIES, KEYS), True where an element is kept.

    `first_key`, a multiple of 32, is the first column; `query` is (QUERIES, 1). The order of a block's eight draws is
    that of a product's accumulator, so a thread computes just the blocks that its own elements need.
    """
    block = first_key // 8 + tl.arange(0, KEYS // 8)[None, :]
    w0, w1, w2, w3 = tl.philox(key, block, query, head, site, DROPOUT_ROUNDS)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    words = tl.trans(tl.reshape(words, (QUERIES, KEYS // 32, 4, 4)), 0, 1, 3, 2)
    # Comparing whole words with the threshold in the upper half ignores the lower half.
    draws = tl.reshape(tl.join(words << 16, words), (QUERIES, KEYS))
    return draws >= (threshold.to(tl.uint32) << 16)


@triton.jit
def kept_heads(key, query, head, site, threshold, HEADS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """The same for several heads: bool (HEADS, QUERIES, KEYS), from key 0 on; KEYS is 16 or 32."""
    block = tl.arange(0, 4)[None, None, :]
    w0, w1, w2, w3 = tl.philox(key, block, query, head, site, DROPOUT_ROUNDS)
    if KEYS == 16:
        words = tl.join(w0, w1)
    else:
        words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (HEADS, QUERIES, 4, 4))
    words = tl.trans(words, 0, 1, 3, 2)
    draws = tl.reshape(tl.join(words << 16, words), (HEADS, QUERIES, KEYS))
    return draws >= (threshold.to(tl.uint32) << 16)


@triton.jit
def surviving(p, DROPOUT: tl.constexpr):
    """Probabilities after dropout, before its scale, when the sign of `p` says what is dropped."""
    if DROPOUT:
        return tl.maximum(p, 0.0)
    else:
        return p


@triton.jit
def probability_gradient(dp, p, keep_scale, DROPOUT: tl.constexpr):
    """The gradient before dropout from the one behind it, and the probabilities without their sign."""
    if DROPOUT:
        return tl.where(p > 0.0, dp * keep_scale, 0.0), tl.abs(p)
    else:
        return dp, p


@triton.jit
def score_gradient(p, dp, delta, keep_scale, DROPOUT: tl.constexpr):
    """The gradient of the scores: p * (dp - delta), where delta is the sum over a row of p * dp."""
    dp, p = probability_gradient(dp, p, keep_scale, DROPOUT)
    return p * (dp - delta)
