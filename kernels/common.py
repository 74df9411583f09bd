"""Helpers of all kernels: matmuls and rounding that also hold in the interpreter, offsets of sequences, dropout."""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

# The interpreter multiplies the raw bits of bf16 and truncates fp32 instead of rounding it, so there kernels compute
# matmuls in fp32 and round by hand; these branches are never compiled.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
LOG2_E = tl.constexpr(1.4426950408889634)
# The fewest rounds of Philox-4x32 that pass the BigCrush tests (Salmon et al. 2011, table 2).
DROPOUT_ROUNDS = tl.constexpr(7)


@triton.jit
def _philox_multiply(x, FACTOR: tl.constexpr):
    """Return the upper and the lower word of x * FACTOR: one instruction for both on a GPU."""
    product = x.to(tl.uint64) * tl.full((), FACTOR, tl.uint64)
    return (product >> 32).to(tl.uint32), product.to(tl.uint32)


@triton.jit
def philox(key, c0, c1, c2, c3):
    """Return the four uint32 words of Philox-4x32 with DROPOUT_ROUNDS rounds (Salmon et al. 2011), as `tl.philox` does.

    key int64, its lower word first; the counter's words are int32 and broadcast against each other. Words that do not
    depend on a loop's variable leave the loop, so the first rounds cost little where c0 alone changes.
    """
    key = tl.cast(key, tl.uint64, bitcast=True)
    k0, k1 = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    c0, c1 = tl.cast(c0, tl.uint32, bitcast=True), tl.cast(c1, tl.uint32, bitcast=True)
    c2, c3 = tl.cast(c2, tl.uint32, bitcast=True), tl.cast(c3, tl.uint32, bitcast=True)
    for _ in tl.static_range(DROPOUT_ROUNDS):
        upper0, lower0 = _philox_multiply(c0, 0xD2511F53)
        upper2, lower2 = _philox_multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = upper2 ^ c1 ^ k0, lower2, upper0 ^ c3 ^ k1, lower0
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """Return x in `dtype`, rounded to nearest even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.to(tl.float32, bitcast=True).to(tl.bfloat16)
    else:
        return x.to(dtype)


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """Return a @ b with fp32 accumulation; leading axes are batches."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def add_dot(a, b, accumulator, PRECISION: tl.constexpr):
    """Return accumulator + a @ b, in fp32."""
    if INTERPRETED:
        return accumulator + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, accumulator, input_precision=PRECISION)


@triton.jit
def sequence_span(cu_seqlens_ptr, sequence, tokens):
    """Return first token and length of a sequence, both clamped to the tokens that exist."""
    begin = tl.load(cu_seqlens_ptr + sequence)
    end = tl.load(cu_seqlens_ptr + sequence + 1)
    begin = tl.minimum(tl.maximum(begin, 0), tokens)
    end = tl.minimum(tl.maximum(end, begin), tokens)
    return begin, end - begin


@triton.jit
def flip(x):
    """Return x with the last two axes transposed."""
    if len(x.shape) == 2:
        return tl.trans(x)
    else:
        return tl.trans(x, 0, 2, 1)
