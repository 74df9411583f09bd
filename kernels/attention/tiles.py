"""Steps of the attention kernels, on tiles of one head (rows, columns) or several (heads, rows, columns).

Scores and their logarithms are in units of log2, because the exponential of a GPU is exp2. `query` and `key_row` tiles
broadcast against each other in either orientation, so scores may have queries or keys as rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import DROPOUT_ROUNDS, LOG2_E, narrow


@triton.jit
def _row_offsets(row, stride, head, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return 32-bit offsets (rows, BLOCK_D) or (heads, rows, BLOCK_D) from the first row, and the columns' mask."""
    column = tl.arange(0, BLOCK_D)
    if len(row.shape) == 2:
        return row * stride + column[None, :], column[None, :] < HEAD_DIM
    else:
        return row * stride + (head * HEAD_DIM + column[None, None, :]), column[None, None, :] < HEAD_DIM


@triton.jit
def _first(x_ptr, token, stride, row, head, HEAD_DIM: tl.constexpr):
    """Return the address of a token's row, by 64-bit arithmetic, and of its head when the tile is of one head."""
    x_ptr += tl.cast(token, tl.int64) * stride
    if len(row.shape) == 2:
        return x_ptr + head * HEAD_DIM
    else:
        return x_ptr


@triton.jit
def _inside(row, length, head, heads, real, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the mask of a tile's elements that exist; the head of a tile of one head always does."""
    inside = row < length
    if len(row.shape) == 3:
        inside = inside & (head < heads)
    if HEAD_DIM != BLOCK_D:
        inside = inside & real
    return inside


@triton.jit
def load_rows(x_ptr, first, row, length, stride, head, heads, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load the tile from token `first` on: (rows, BLOCK_D) or (heads, rows, BLOCK_D); `length` rows exist."""
    offset, real = _row_offsets(row, stride, head, HEAD_DIM, BLOCK_D)
    inside = _inside(row, length, head, heads, real, HEAD_DIM, BLOCK_D)
    return tl.load(_first(x_ptr, first, stride, row, head, HEAD_DIM) + offset, mask=inside, other=0.0)


@triton.jit
def load_full_rows(x_ptr, first, row, stride, head, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load a tile of one head whose rows all exist."""
    offset, real = _row_offsets(row, stride, head, HEAD_DIM, BLOCK_D)
    x_ptr = _first(x_ptr, first, stride, row, head, HEAD_DIM)
    if HEAD_DIM != BLOCK_D:
        return tl.load(x_ptr + offset, mask=real, other=0.0)
    else:
        return tl.load(x_ptr + offset)


@triton.jit
def store_rows(
    x_ptr, x, first, row, length, head, heads, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPACING: tl.constexpr = 1
):  # fmt: skip
    """Store a tile into (tokens, heads, HEAD_DIM), whose tokens are SPACING times their size apart."""
    stride = heads * (HEAD_DIM * SPACING)
    offset, real = _row_offsets(row, stride, head, HEAD_DIM, BLOCK_D)
    inside = _inside(row, length, head, heads, real, HEAD_DIM, BLOCK_D)
    x = narrow(x, x_ptr.dtype.element_ty)
    tl.store(_first(x_ptr, first, stride, row, head, HEAD_DIM) + offset, x, mask=inside)


@triton.jit
def load_statistic(x_ptr, first, row, length, head, heads, tokens, OUTSIDE: tl.constexpr):
    """Load lse or delta of rows, from (heads, tokens) fp32; OUTSIDE where there is no row.

    inf for lse makes all probabilities of such a row 0, whatever the bias.
    """
    offset = head * tl.cast(tokens, tl.int64) + first + row
    return tl.load(x_ptr + offset, mask=(row < length) & (head < heads), other=OUTSIDE)


@triton.jit
def store_statistic(x_ptr, x, first, row, length, head, heads, tokens):
    """Store lse or delta of rows."""
    offset = head * tl.cast(tokens, tl.int64) + first + row
    tl.store(x_ptr + offset, x, mask=(row < length) & (head < heads))


@triton.jit
def add_bias(s, bias, head, heads, query, key_row):
    """Return s + bias in units of log2; `bias` is pointer, rows, columns, strides, and counts as 0 beyond its shape."""
    bias_ptr, rows, columns, stride_head, stride_row, stride_column = bias
    offset = query.to(tl.int64) * stride_row + key_row.to(tl.int64) * stride_column
    offset += tl.cast(head, tl.int64) * stride_head
    inside = (query < rows) & (key_row < columns) & (head < heads)
    return s + tl.load(bias_ptr + offset, mask=inside, other=0.0).to(tl.float32) * LOG2_E


@triton.jit
def softmax_row(s):
    """Return the unnormalised probabilities of whole rows, their sum, and log2 of the sum of exponentials.

    A row without a visible key (all scores -inf) has probabilities, sum and logarithm 0.
    """
    highest = tl.max(s, len(s.shape) - 1, keep_dims=True)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    p = tl.exp2(s - highest)
    total = tl.sum(p, len(s.shape) - 1, keep_dims=True)
    return p, total, tl.where(total == 0.0, 0.0, highest + tl.log2(total))


@triton.jit
def reciprocal(total):
    """Return 1 / total, 0 for a row without a visible key; NaN stays NaN."""
    return tl.where(total == 0.0, 0.0, 1.0 / total)


@triton.jit
def keep_mask(key, first_key, query, head, site, threshold, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the mask of attention dropout, bool (BLOCK_M, BLOCK_N), False where a probability is dropped.

    `first_key`, a multiple of 32, is the first column; `query` is (BLOCK_M, 1). The order of a block's eight draws is
    that of a matmul's accumulator, so a thread computes only the blocks that its own elements need.
    """
    block = first_key // 8 + tl.arange(0, BLOCK_N // 8)[None, :]
    w0, w1, w2, w3 = tl.philox(key, block, query, head, site, DROPOUT_ROUNDS)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    words = tl.trans(tl.reshape(words, (BLOCK_M, BLOCK_N // 32, 4, 4)), 0, 1, 3, 2)
    # Comparing whole words with the threshold in the upper half ignores the lower half.
    draws = tl.reshape(tl.join(words << 16, words), (BLOCK_M, BLOCK_N))
    return draws >= (threshold.to(tl.uint32) << 16)


@triton.jit
def keep_mask_heads(
    key, query, head, site, threshold, HEADS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Return the mask for several heads, bool (HEADS, BLOCK_M, BLOCK_N), from key 0 on; BLOCK_N is 16 or 32."""
    block = tl.arange(0, 4)[None, None, :]
    w0, w1, w2, w3 = tl.philox(key, block, query, head, site, DROPOUT_ROUNDS)
    if BLOCK_N == 16:
        words = tl.join(w0, w1)
    else:
        words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (HEADS, BLOCK_M, 4, 4))
    words = tl.trans(words, 0, 1, 3, 2)
    draws = tl.reshape(tl.join(words << 16, words), (HEADS, BLOCK_M, BLOCK_N))
    return draws >= (threshold.to(tl.uint32) << 16)


@triton.jit
def after_dropout(p, DROPOUT: tl.constexpr):
    """Return the probabilities after dropout, before its scale; negative `p` are dropped."""
    if DROPOUT:
        return tl.maximum(p, 0.0)
    else:
        return p


@triton.jit
def probability_gradient(dp, p, dropout_scale, DROPOUT: tl.constexpr):
    """Return the gradient before dropout from the gradient after it, and the probabilities without their sign."""
    if DROPOUT:
        return tl.where(p > 0.0, dp * dropout_scale, 0.0), tl.abs(p)
    else:
        return dp, p


@triton.jit
def score_gradient(p, dp, delta, dropout_scale, DROPOUT: tl.constexpr):
    """Return the gradient of the scores, p * (dp - delta), where delta is the row sum of p * dp."""
    dp, p = probability_gradient(dp, p, dropout_scale, DROPOUT)
    return p * (dp - delta)
