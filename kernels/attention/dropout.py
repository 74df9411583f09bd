"""Dropout of attention probabilities: the mask that `fastbert.ops.reference` defines, computed per tile.

A Philox block holds sixteen 8-bit draws: those of every second pair of one query's 64 keys that a thread of a matmul
holds in its accumulator. In that order a thread computes the blocks of its own elements alone, once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import narrow, philox


@triton.jit
def _draw_words(key, first_key, query, head, site, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the words of a tile's Philox blocks, uint32 (2, groups, BLOCK_M // 16, 8, 4, words).

    The axes are the halves of sixteen queries, the groups of 64 keys, the sixteens, the query in its half, the block,
    and its word: four, or the two of 32 keys. A compiler spreads the last axes over the threads of a warp and those
    before over the warps, as it spreads accumulators, so that no words are exchanged between threads.
    """
    GROUPS: tl.constexpr = BLOCK_N // 64 if BLOCK_N >= 64 else 1
    query = tl.trans(tl.reshape(query, (1, BLOCK_M // 16, 2, 8, 1)), 2, 0, 1, 3, 4)
    block = first_key // 64 * 4 + tl.reshape(tl.arange(0, 4 * GROUPS), (1, GROUPS, 1, 1, 4))
    w0, w1, w2, w3 = philox(key, block, query, head, site)
    if BLOCK_N >= 64:
        words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
        return tl.reshape(words, (2, GROUPS, BLOCK_M // 16, 8, 4, 4))
    else:
        lower = first_key % 64 == 0
        return tl.join(tl.where(lower, w0, w2), tl.where(lower, w1, w3))


@triton.jit
def _upper_bytes(words):
    """Return (..., 2, 2) words with each byte of `words` in turn as their upper byte.

    Comparing them with a threshold in the upper byte ignores the lower bytes.
    """
    return tl.join(tl.join(words << 24, words << 8), tl.join(words << 16, words))


@triton.jit
def _keep_mask_sixteen(dropout, first_key, query, head, BLOCK_M: tl.constexpr):
    """Return bool (BLOCK_M, 16) for the 16 keys from `first_key` on, a multiple of 16; see `keep_mask`."""
    key, site, threshold = dropout
    w0, w1, w2, w3 = philox(key, first_key // 64 * 4 + tl.arange(0, 4)[None, :], query, head, site)
    word = first_key // 16 % 4
    words = tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3))
    draws = tl.reshape(_upper_bytes(words), (BLOCK_M, 4, 2, 2))
    return tl.reshape(tl.trans(draws, 0, 2, 1, 3), (BLOCK_M, 16)) >= (threshold.to(tl.uint32) << 24)


@triton.jit
def keep_mask(dropout, first_key, query, head, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return bool (BLOCK_M, BLOCK_N), False where a probability is dropped.

    `dropout` holds key, site and threshold; `first_key`, a multiple of BLOCK_N, is the first column; `query` is
    (BLOCK_M, 1). BLOCK_M is a multiple of 16, BLOCK_N of 64, or 32 or 16.
    """
    key, site, threshold = dropout
    if BLOCK_N == 16:
        return _keep_mask_sixteen(dropout, first_key, query, head, BLOCK_M)
    else:
        draws = _upper_bytes(_draw_words(key, first_key, query, head, site, BLOCK_M, BLOCK_N))
        draws = tl.reshape(tl.trans(draws, 2, 0, 3, 1, 5, 6, 4, 7), (BLOCK_M, BLOCK_N))
        return draws >= (threshold.to(tl.uint32) << 24)


@triton.jit
def keep_mask_rows(dropout, first_key, query, head, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return bool (BLOCK_M, BLOCK_N) for any rows: key of `dropout`, query and head are (BLOCK_M, 1).

    BLOCK_N is a multiple of 64, or 32 or 16, which is all keys.
    """
    key, site, threshold = dropout
    WORDS: tl.constexpr = BLOCK_N // 16 if BLOCK_N < 64 else 4
    GROUPS: tl.constexpr = BLOCK_N // (16 * WORDS)
    w0, w1, w2, w3 = philox(key, first_key // 16 + tl.arange(0, 4 * GROUPS)[None, :], query, head, site)
    if WORDS == 4:
        words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    else:
        words = tl.join(w0, w1) if WORDS == 2 else tl.expand_dims(w0, 2)
    draws = tl.reshape(_upper_bytes(words), (BLOCK_M, GROUPS, 4, WORDS, 2, 2))
    return tl.reshape(tl.trans(draws, 0, 1, 3, 4, 2, 5), (BLOCK_M, BLOCK_N)) >= (threshold.to(tl.uint32) << 24)


@triton.jit
def keep_mask_heads(dropout, query, head, HEADS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return bool (HEADS, BLOCK_M, BLOCK_N) for several heads, from key 0 on; BLOCK_N is 16 or 32."""
    key, site, threshold = dropout
    w0, w1, _, _ = philox(key, tl.arange(0, 4)[None, None, :], query, head, site)
    words = tl.join(w0, w1) if BLOCK_N == 32 else tl.expand_dims(w0, 3)
    draws = tl.reshape(_upper_bytes(words), (HEADS * BLOCK_M, 4, BLOCK_N // 16, 2, 2))
    return tl.reshape(tl.trans(draws, 0, 2, 3, 1, 4), (HEADS, BLOCK_M, BLOCK_N)) >= (threshold.to(tl.uint32) << 24)


# Round the four probabilities of a word of draws to half precision, and clear those that are dropped: draw + 256 -
# threshold carries out of bit 7 where one is kept; lop3 0xe8 is the majority, and prmt replicates bit 7 of a byte. Half
# as many instructions as a comparison and a selection per element.
_BODY = """
    and.b32 h, $4, 0x7f7f7f7f;
    and.b32 n, $5, 0x7f7f7f7f;
    add.u32 h, h, n;
    lop3.b32 h, h, $4, $5, 0xe8;
    prmt.b32 m, h, 0, 0x9988;
    prmt.b32 n, h, 0, 0xbbaa;
    and.b32 a, a, m;
    and.b32 b, b, n;
    mov.b32 {$0, $1}, a;
    mov.b32 {$2, $3}, b;
}"""
_DROP_BF16 = tl.constexpr(
    "{ .reg .b32 a, b, h, m, n; cvt.rn.bf16x2.f32 a, $7, $6; cvt.rn.bf16x2.f32 b, $9, $8;" + _BODY
)
_DROP_FP16 = tl.constexpr("{ .reg .b32 a, b, h, m, n; cvt.rn.f16x2.f32 a, $7, $6; cvt.rn.f16x2.f32 b, $9, $8;" + _BODY)


@triton.jit
def _split(p, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return p (BLOCK_M, BLOCK_N) as four tensors in the shape of `_draw_words`, in the order of a word's bytes."""
    p = tl.trans(tl.reshape(p, (BLOCK_M // 16, 2, 8, BLOCK_N // 64, 4, 2, 4, 2)), 1, 3, 0, 2, 6, 4, 5, 7)
    even, odd = tl.split(p)
    p0, p2 = tl.split(even)
    p1, p3 = tl.split(odd)
    return p0, p1, p2, p3


@triton.jit
def _joined(p0, p1, p2, p3, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Undo `_split`."""
    p = tl.join(tl.join(p0, p2), tl.join(p1, p3))
    return tl.reshape(tl.trans(p, 2, 0, 3, 1, 5, 6, 4, 7), (BLOCK_M, BLOCK_N))


@triton.jit
def drop_and_narrow(
    p, dropout, first_key, query, head, dtype: tl.constexpr, PTX: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return p (BLOCK_M, BLOCK_N) in `dtype`, 0 where it is dropped; see `keep_mask`. PTX: for an NVIDIA GPU."""
    if PTX and dtype.primitive_bitwidth == 16 and BLOCK_N >= 64:
        key, site, threshold = dropout
        words = _draw_words(key, first_key, query, head, site, BLOCK_M, BLOCK_N)
        p0, p1, p2, p3 = _split(p, BLOCK_M, BLOCK_N)
        carry = (256 - threshold).to(tl.uint32) * 0x01010101
        if dtype == tl.bfloat16:
            p0, p1, p2, p3 = tl.inline_asm_elementwise(
                _DROP_BF16, "=h,=h,=h,=h,r,r,f,f,f,f", [words, carry, p0, p1, p2, p3],
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=1,
            )  # fmt: skip
        else:
            p0, p1, p2, p3 = tl.inline_asm_elementwise(
                _DROP_FP16, "=h,=h,=h,=h,r,r,f,f,f,f", [words, carry, p0, p1, p2, p3],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=1,
            )  # fmt: skip
        return _joined(p0, p1, p2, p3, BLOCK_M, BLOCK_N)
    else:
        return narrow(tl.where(keep_mask(dropout, first_key, query, head, BLOCK_M, BLOCK_N), p, 0.0), dtype)


# Clear those of four probabilities whose draws, the bytes of a word, are below the threshold. Bytes under the exponent
# 0x64 are the fp16 numbers from 1024 on, of which one instruction compares two.
_KEEP = tl.constexpr("""{
    .reg .b32 a, b;
    .reg .pred p, q, r, s;
    lop3.b32 a, $4, 0x00ff00ff, 0x64006400, 0xea;
    prmt.b32 b, $4, 0x64646464, 0x4341;
    setp.ge.f16x2 p|q, a, $5;
    setp.ge.f16x2 r|s, b, $5;
    selp.f32 $0, $6, 0f00000000, p;
    selp.f32 $1, $7, 0f00000000, r;
    selp.f32 $2, $8, 0f00000000, q;
    selp.f32 $3, $9, 0f00000000, s;
}""")


@triton.jit
def kept(
    p, dropout, first_key, query, head, zero,
    DROPOUT: tl.constexpr, PTX: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return p (BLOCK_M, BLOCK_N) fp32, 0 where it is dropped; see `keep_mask`. PTX: for an NVIDIA GPU.

    `zero` is 0.0 as no constant: a compiler would move the rounding to half precision before the selection of a
    constant, and select 16-bit halves of registers one by one.
    """
    if DROPOUT and PTX and BLOCK_N >= 64:
        key, site, threshold = dropout
        words = _draw_words(key, first_key, query, head, site, BLOCK_M, BLOCK_N)
        p0, p1, p2, p3 = _split(p, BLOCK_M, BLOCK_N)
        p0, p1, p2, p3 = tl.inline_asm_elementwise(
            _KEEP, "=&f,=&f,=&f,=&f,r,r,f,f,f,f", [words, (threshold + 0x6400).to(tl.uint32) * 0x10001, p0, p1, p2, p3],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
        return _joined(p0, p1, p2, p3, BLOCK_M, BLOCK_N)
    elif DROPOUT:
        return tl.where(keep_mask(dropout, first_key, query, head, BLOCK_M, BLOCK_N), p, zero)
    else:
        return p
