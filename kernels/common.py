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
