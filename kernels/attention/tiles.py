"""Steps of the attention kernels, on tiles of one head (rows, columns) or several (heads, rows, columns).

Scores and their logarithms are in units of log2, because the exponential of a GPU is exp2. `query` and `key_row` tiles
broadcast against each other in either orientation, so scores may have queries or keys as rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import LOG2_E, narrow


@triton.jit
def _row_offsets(row, stride, head, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return offsets (rows, BLOCK_D) or (heads, rows, BLOCK_D) from the first row, and the columns' mask.

    In 64 bits, the constant distances between a thread's rows stay constants, which need no instruction of their own.
    """
    column, row = tl.arange(0, BLOCK_D), row.to(tl.int64)
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
def load_pair(
    x_ptr, y_ptr, row, left, strides,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load the tiles of one head at two pointers, of which `left` rows exist; all of them unless MASKED."""
    stride_x, stride_y = strides
    if MASKED:
        x = load_rows(x_ptr, 0, row, left, stride_x, 0, HEADS, HEAD_DIM, BLOCK_D)
        y = load_rows(y_ptr, 0, row, left, stride_y, 0, HEADS, HEAD_DIM, BLOCK_D)
    else:
        x = load_full_rows(x_ptr, 0, row, stride_x, 0, HEAD_DIM, BLOCK_D)
        y = load_full_rows(y_ptr, 0, row, stride_y, 0, HEAD_DIM, BLOCK_D)
    return x, y


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
def load_statistics(lse_ptr, delta_ptr, row, left, tokens, MASKED: tl.constexpr):
    """Load lse and delta of the rows at two pointers, of which `left` exist; all of them unless MASKED.

    Other rows have an infinite lse, and so no probabilities.
    """
    if MASKED:
        lse = load_statistic(lse_ptr, 0, row, left, 0, 1, tokens, float("inf"))
        delta = load_statistic(delta_ptr, 0, row, left, 0, 1, tokens, 0.0)
    else:
        lse, delta = tl.load(lse_ptr + row), tl.load(delta_ptr + row)
    return lse, delta


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
def softmax_row(s, factor):
    """Return the unnormalised probabilities of whole rows, their sum, and log2 of the sum of exponentials.

    Scores are `s` times the positive `factor`, which follows the maximum and joins the difference in one instruction. A
    row without a visible key (all scores -inf) has probabilities, sum and logarithm 0.
    """
    highest = tl.max(s, len(s.shape) - 1, keep_dims=True) * factor
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    p = tl.exp2(s * factor - highest)
    total = tl.sum(p, len(s.shape) - 1, keep_dims=True)
    return p, total, tl.where(total == 0.0, 0.0, highest + tl.log2(total))


@triton.jit
def reciprocal(total):
    """Return 1 / total, 0 for a row without a visible key; NaN stays NaN."""
    return tl.where(total == 0.0, 0.0, 1.0 / total)


@triton.jit
def gradient_factor(scale, dropout_scale, length_k):
    """Return the factor of dq and dk: 0 where there is one key, whose probability is constant."""
    return tl.where(length_k == 1, 0.0, scale * dropout_scale)


@triton.jit
def score_gradient(kept_p, p, dp, delta, query, shift, zero, CAUSAL: tl.constexpr):
    """Return the gradients of the scores, without the factor of dropout: exactly 0 for a query with one visible key.

    delta is the row sum of kept_p * dp; `shift` is how many keys the first query sees besides its own. See `kept` for
    `zero`.
    """
    ds = kept_p * dp - p * delta
    if CAUSAL:
        ds = tl.where(query + shift == 0, zero, ds)
    return ds


@triton.jit
def store_output(
    out_ptr, rest_ptr, out, first, row, length, head, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Store a tile of the output, and what rounding removes from it unless `rest_ptr` is None."""
    store_rows(out_ptr, out, first, row, length, head, HEADS, HEAD_DIM, BLOCK_D)
    if rest_ptr is not None:
        out -= narrow(out, out_ptr.dtype.element_ty).to(tl.float32)
        store_rows(rest_ptr, out, first, row, length, head, HEADS, HEAD_DIM, BLOCK_D)


@triton.jit
def store_delta(
    delta_ptr, out_ptr, rest_ptr, grad_ptr, first, row, length, dropout_scale, head, tokens,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Store delta of a tile of queries, the row sum of out * grad, divided by the factor of dropout, and return it.

    `rest_ptr` holds what rounding removed from the output.
    """
    out = load_rows(out_ptr, first, row, length, HEADS * HEAD_DIM, head, HEADS, HEAD_DIM, BLOCK_D).to(tl.float32)
    if rest_ptr is not None:
        out += load_rows(rest_ptr, first, row, length, HEADS * HEAD_DIM, head, HEADS, HEAD_DIM, BLOCK_D).to(tl.float32)
    grad = load_rows(grad_ptr, first, row, length, HEADS * HEAD_DIM, head, HEADS, HEAD_DIM, BLOCK_D)
    delta = tl.sum(out * grad.to(tl.float32), 1, keep_dims=True) / dropout_scale
    store_statistic(delta_ptr, delta, first, row, length, head, HEADS, tokens)
    return delta
