"""What the kernels share: products and roundings that also hold in the interpreter, places of sequences, dropout."""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

# The interpreter multiplies the raw bits of bf16 and cuts fp32 off instead of rounding it, so there the kernels compute
# products in fp32 and round by hand; compiled code never sees these branches.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
LOG2_E = tl.constexpr(1.4426950408889634)
# The fewest rounds of Philox-4x32 that pass the BigCrush tests (Salmon et al. 2011, table 2).
DROPOUT_ROUNDS = tl.constexpr(7)


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """x in `dtype`, rounded to nearest even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.to(tl.float32, bitcast=True).to(tl.bfloat16)
    else:
        return x.to(dtype)


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """a @ b with fp32 accumulation; leading axes are batches."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def add_dot(a, b, accumulator, PRECISION: tl.constexpr):
    """accumulator + a @ b, in fp32."""
    if INTERPRETED:
        return accumulator + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, accumulator, input_precision=PRECISION)


@triton.jit
def sequence_span(cu_seqlens_ptr, sequence, tokens):
    """First token and length of a sequence; whatever the offsets say, both stay within the tokens there are."""
    begin = tl.load(cu_seqlens_ptr + sequence)
    end = tl.load(cu_seqlens_ptr + sequence + 1)
    begin = tl.minimum(tl.maximum(begin, 0), tokens)
    end = tl.minimum(tl.maximum(end, begin), tokens)
    return begin, end - begin


@triton.jit
def flip(x):
    """The last two axes exchanged."""
    if len(x.shape) == 2:
        return tl.trans(x)
    else:
        return tl.trans(x, 0, 2, 1)
