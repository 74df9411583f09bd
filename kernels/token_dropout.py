"""Dropout on token vectors inside a kernel: the mask that `fastbert.ops.dropout` defines, from a token's own numbers.

The draws of a token's columns come eight from a Philox block, in turn; a thread that holds eight neighbouring columns
computes just one block for them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import DROPOUT_ROUNDS


@triton.jit
def token_place(key_ptr, sequence_ptr, offset_ptr, token, exists, sequences):
    """Of tokens (any shape): the dropout key of their sequence, int64, and their offset in it, int32.

    Whatever the ids say, the keys that are read are among the `sequences` there are.
    """
    sequence = tl.load(sequence_ptr + token, mask=exists, other=0)
    sequence = tl.maximum(tl.minimum(sequence, sequences - 1), 0)
    key = tl.load(key_ptr + sequence, mask=exists & (sequences > 0), other=0)
    return key, tl.load(offset_ptr + token, mask=exists, other=0).to(tl.int32)


@triton.jit
def kept_columns(key, offset, first_column, site, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """bool (ROWS, COLUMNS), True where kept; key and offset are (ROWS, 1), `first_column` is a multiple of 8."""
    block = first_column // 8 + tl.arange(0, COLUMNS // 8)[None, :]
    w0, w1, w2, w3 = tl.philox(key, block, offset, 0, site, DROPOUT_ROUNDS)
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (ROWS, COLUMNS // 2))
    # Comparing whole words with the threshold in the upper half ignores the lower half.
    draws = tl.reshape(tl.join(words << 16, words), (ROWS, COLUMNS))
    return draws >= (threshold.to(tl.uint32) << 16)
