"""Dropout of token vectors inside a kernel: the mask that `fastbert.ops.dropout` defines, computed per token.

The draws of a token's columns come eight from a Philox block, in order; a thread that holds eight neighbouring columns
computes a single block for them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import DROPOUT_ROUNDS


@triton.jit
def load_key_and_offset(key_ptr, sequence_ptr, offset_ptr, token, exists, sequences):
    """Return the dropout key of each token's sequence, int64, and the token's offset in it, int32, shaped as `token`.

    Whatever the ids are, the keys that are read are among the `sequences` that exist.
    """
    sequence = tl.load(sequence_ptr + token, mask=exists, other=0)
    sequence = tl.maximum(tl.minimum(sequence, sequences - 1), 0)
    key = tl.load(key_ptr + sequence, mask=exists & (sequences > 0), other=0)
    return key, tl.load(offset_ptr + token, mask=exists, other=0).to(tl.int32)


@triton.jit
def keep_mask(key, offset, first_column, site, threshold, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return bool (BLOCK_M, BLOCK_N), True where an element is kept.

    key and offset are (BLOCK_M, 1), `first_column` is a multiple of 8.
    """
    block = first_column // 8 + tl.arange(0, BLOCK_N // 8)[None, :]
    w0, w1, w2, w3 = tl.philox(key, block, offset, 0, site, DROPOUT_ROUNDS)
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (BLOCK_M, BLOCK_N // 2))
    # Comparing whole words with the threshold in the upper half ignores the lower half.
    draws = tl.reshape(tl.join(words << 16, words), (BLOCK_M, BLOCK_N))
    return draws >= (threshold.to(tl.uint32) << 16)
