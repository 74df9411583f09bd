"""AMX and AVX512_BF16 instructions in numpy, by Intel's manual, and numbers to try them with.

Numbers are handled as their bits: bf16 as uint16, fp32 as uint32 or float32.
"""

from collections.abc import Callable
from itertools import product

import numpy as np

KINDS = ["ordinary", "small", "large", "any", "mixed"]


def flushed(values: np.ndarray) -> np.ndarray:
    """float32 with zeros of the same sign in the place of denormals."""
    tiny = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), values), values)


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z in float32, rounded once to nearest even, denormals zero; x * y must be exact in float64."""
    with np.errstate(all="ignore"):
        exact, addend = flushed(x).astype(np.float64) * flushed(y), flushed(z).astype(np.float64)
        total = exact + addend
        # The error of the sum (Knuth's TwoSum) tells where the last bit must be odd; a second rounding is then correct.
        part = total - exact
        error = (exact - (total - part)) + (addend - part)
        even = np.isfinite(total) & (error != 0) & (total.view(np.int64) & 1 == 0)
        total = np.where(even, np.nextafter(total, np.copysign(np.inf, error)), total)
        # Tiny is what lies below the smallest normal number after rounding with an unbounded exponent.
        scaled = np.where(np.abs(total) < 1e-30, total * 2.0**64, 1.0).astype(np.float32)
        tiny = np.abs(scaled) < np.float32(2.0**-62)
        return np.where(tiny, np.copysign(0.0, total), total).astype(np.float32)


def widened(bf16: np.ndarray) -> np.ndarray:
    return (bf16.astype(np.uint32) << 16).view(np.float32)


def bf16_product(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """TDPBF16PS: c [m, n] float32 += a [m, k, 2] x b [k, n, 2], bf16, in the order of Intel's manual."""
    sums = np.zeros((2, *c.shape), np.float32)
    for k, half in product(range(a.shape[1]), range(2)):
        sums[half] = fused(widened(a[:, k, half])[:, None], widened(b[k, :, half])[None], sums[half])
    one = np.ones_like(c)
    return fused(one, c, fused(one, sums[0], sums[1]))


def bf16(values: np.ndarray) -> np.ndarray:
    """float32 bits to bf16 as VCVTNEPS2BF16 does it."""
    bits = values.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    exponent, nan = bits >> 23 & 0xFF, np.isnan(values)
    rounded = np.where(exponent == 0, bits >> 16 & 0x8000, rounded)
    return np.where(nan, bits >> 16 | 0x40, rounded).astype(np.uint16)


def vector_dot(old: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """VDPBF16PS on float32 that are pairs of bf16: the upper halves first, then the lower ones."""
    x, y = first.view(np.uint16), second.view(np.uint16)
    return fused(widened(x[::2]), widened(y[::2]), fused(widened(x[1::2]), widened(y[1::2]), old))


VECTORS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "dot": vector_dot,
    "convert_two": lambda old, first, second: np.concatenate([bf16(second), bf16(first)]),
    "convert": lambda old, first, second: bf16(second),
}


def assert_same_floats(actual: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit, but one NaN is as good as another."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(actual.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def random_floats(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    """float32: `ordinary`; `small`, whose products lie about the smallest normal number; `large`, whose products
    overflow; `any` bits at all; `mixed` with zeros, infinities, NaNs and denormals."""
    if kind == "any":
        return rng.integers(0, 2**32, shape, np.uint32).view(np.float32)
    values = rng.standard_normal(shape).astype(np.float32)
    if kind == "small":
        values *= np.float32(2) ** rng.integers(-68, -58, shape).astype(np.float32)
    if kind == "large":
        values *= np.float32(2) ** rng.integers(58, 66, shape).astype(np.float32)
    if kind == "mixed":
        specials = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F812345, 0x12345, 0x807FFFFF], np.uint32)
        values = np.where(rng.random(shape) < 0.03, rng.choice(specials.view(np.float32), shape), values)
    return values
