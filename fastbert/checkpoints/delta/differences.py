"""Encode a tensor by its differences from another in few bytes: exactly, or rounded to a few bits per number.

Exact differences are taken between the ranks of two numbers in the order of all floating-point numbers. A fine-tuned
weight is close to its base, so most differences are short. The number of bits of each is Huffman-coded; the bits
themselves, which do not repeat, are stored as they are.

AdamW's weight decay shrinks every weight slightly at each step, including the rows of tokens that never occur. Such
rows are almost the base times one factor, which is estimated and applied before differences are taken.
"""

from __future__ import annotations

import zlib

import numpy as np

CHUNK_ELEMENTS = 1 << 20
MAX_BITS = 8
# Steps between the levels of the best uniform quantiser of normal numbers with standard deviation 1 (Max 1960).
_STEPS = {1: 1.5958, 2: 0.9957, 3: 0.5860, 4: 0.3352, 5: 0.1881, 6: 0.1041, 7: 0.0569, 8: 0.0308}
_WIDER = (0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0)
# Rows that changed less than this, relative to themselves and to all rows, hold only rounding errors of the decay.
_NOISE, _NOISE_OF_ALL = 2.0**-14, 1e-2
# The effect of ten thousand steps at a learning rate of 1e-4 and a decay of 0.1.
_MIN_FACTOR, _FACTOR_TOLERANCE = 0.9, 2e-6


def find_factor(values: np.ndarray, base: np.ndarray) -> float:
    """Return the factor by which weights of two fp32 arrays shrank, if at least 5 % of them only shrank; else 1."""
    large = np.abs(base) > np.abs(base).mean(dtype=np.float64)
    old, new = base[large], values[large]
    step = max(1, len(old) // (1 << 18))
    ratios = np.sort(new[::step].astype(np.float64) / old[::step])
    ratios = ratios[(ratios > _MIN_FACTOR) & (ratios < 1.0)]
    many = len(old[::step]) // 20
    if many < 16 or len(ratios) <= many:
        return 1.0
    widths = ratios[many:] - ratios[:-many]
    first = int(widths.argmin())
    if widths[first] > _FACTOR_TOLERANCE:
        return 1.0
    return float(ratios[first : first + many].mean())


def predict(base: np.ndarray, factor: float) -> np.ndarray:
    """Return the prediction of fp32 weights from their base: base times factor, rounded to fp32."""
    return base if factor == 1.0 else (base.astype(np.float64) * factor).astype(np.float32)


def encode_exact(values: np.ndarray, predicted: np.ndarray) -> bytes:
    """Encode floating-point numbers, given as unsigned integers of two or four bytes, relative to a prediction."""
    encoded = []
    for first in range(0, len(values), CHUNK_ELEMENTS):
        chunk = slice(first, first + CHUNK_ELEMENTS)
        encoded.append(_encode_chunk(_zigzag(_to_rank(values[chunk]), _to_rank(predicted[chunk]))))
    return b"".join(encoded)


def decode_exact(data: memoryview, predicted: np.ndarray) -> np.ndarray:
    """Invert `encode_exact`. Raises ValueError for invalid data."""
    values = np.empty_like(predicted)
    for first in range(0, len(predicted), CHUNK_ELEMENTS):
        chunk = slice(first, first + CHUNK_ELEMENTS)
        expected = _to_rank(predicted[chunk])
        codes, data = _decode_chunk(data, len(expected))
        values[chunk] = _from_rank(_unzigzag(codes, expected))
    if len(data):
        raise ValueError(f"{len(data)} bytes too many")
    return values


def encode_rounded(values: np.ndarray, predicted: np.ndarray, bits: int) -> bytes:
    """Encode differences of fp32 (rows, width) in `bits` bits each, with one step size per row."""
    difference = values - predicted
    steps = _row_steps(difference, predicted, bits)
    changed = steps > 0
    codes = _levels(difference[changed], steps[changed, None], bits)
    packed = np.packbits(codes.ravel()) if bits == 1 else codes.ravel()
    head = _squeeze(steps.astype("<f4").view(np.uint8))
    return len(head).to_bytes(4, "little") + head + _squeeze(packed)


def decode_rounded(data: memoryview, predicted: np.ndarray, bits: int) -> np.ndarray:
    """Return the rounded values that `encode_rounded` encoded, with the same bits on every machine."""
    rows, width = predicted.shape
    size = int.from_bytes(data[:4], "little")
    steps = np.frombuffer(_expand(data[4 : 4 + size], 4 * rows), "<f4").astype(np.float32)
    if not np.isfinite(steps).all() or (steps < 0).any():
        raise ValueError("an invalid step")
    changed = steps > 0
    count = int(changed.sum()) * width
    packed = np.frombuffer(_expand(data[4 + size :], -(-count // 8) if bits == 1 else count), np.uint8)
    codes = (np.unpackbits(packed)[:count] if bits == 1 else packed).reshape(-1, width)
    if codes.size and codes.max() >= 1 << bits:
        raise ValueError("an invalid level")
    values = predicted.copy()
    values[changed] += (codes.astype(np.float32) - np.float32(_middle(bits))) * steps[changed, None]
    return values


def squeeze(data: bytes | memoryview) -> bytes:
    """Compress bytes."""
    return zlib.compress(data, 9)


def expand(data: memoryview, size: int) -> bytes:
    """Decompress exactly `size` bytes. Raises ValueError for anything else."""
    return _expand(data, size, zlib.MAX_WBITS)


def _to_rank(bits: np.ndarray) -> np.ndarray:
    """Map the bits of floating-point numbers to their ranks in the order of all numbers."""
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    return np.where(bits & sign, ~bits, bits | sign)


def _from_rank(ranks: np.ndarray) -> np.ndarray:
    sign = ranks.dtype.type(1 << (8 * ranks.itemsize - 1))
    return np.where(ranks & sign, ranks ^ sign, ~ranks)


def _zigzag(ranks: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return differences of ranks, modulo their number, with the sign in the last bit: close ranks give small codes."""
    signed = (ranks - expected).view(f"i{ranks.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * ranks.itemsize - 1))).view(ranks.dtype).astype(np.uint32)


def _unzigzag(codes: np.ndarray, expected: np.ndarray) -> np.ndarray:
    narrow = codes.astype(expected.dtype)
    if (narrow != codes).any():
        raise ValueError("a difference of too many bits")
    bit = narrow.dtype.type(1)
    return expected + ((narrow >> bit) ^ (~(narrow & bit) + bit))


def _encode_chunk(codes: np.ndarray) -> bytes:
    """Encode the bit lengths of the codes, then, by length, the bits after each code's leading one."""
    lengths = np.frexp(codes.astype(np.float64))[1].astype(np.uint8)
    head = _squeeze(lengths)
    encoded = [len(head).to_bytes(4, "little"), head]
    order = np.argsort(lengths, kind="stable")
    counts = np.bincount(lengths, minlength=33)
    ends = np.cumsum(counts)
    for length in range(2, 33):
        if counts[length]:
            group = codes[order[ends[length - 1] : ends[length]]].astype(">u4").view(np.uint8).reshape(-1, 4)
            encoded.append(np.packbits(np.unpackbits(group, axis=1)[:, 33 - length :]).tobytes())
    return b"".join(encoded)


def _decode_chunk(data: memoryview, count: int) -> tuple[np.ndarray, memoryview]:
    """Return the codes of a chunk, and the data after it."""
    size = int.from_bytes(data[:4], "little")
    lengths = np.frombuffer(_expand(data[4 : 4 + size], count), np.uint8)
    data = data[4 + size :]
    if lengths.max(initial=0) > 32:
        raise ValueError("a difference of too many bits")
    order = np.argsort(lengths, kind="stable")
    counts = np.bincount(lengths, minlength=33)
    ends = np.cumsum(counts)
    codes = np.zeros(count, dtype=np.uint32)
    codes[order[ends[0] : ends[1]]] = 1
    for length in range(2, 33):
        group = int(counts[length])
        if not group:
            continue
        size = -(-group * (length - 1) // 8)
        if size > len(data):
            raise ValueError("too few bytes")
        bits = np.unpackbits(np.frombuffer(data[:size], np.uint8))[: group * (length - 1)].reshape(group, length - 1)
        words = np.zeros((group, 32), dtype=np.uint8)
        words[:, 33 - length :] = bits
        words[:, 32 - length] = 1
        codes[order[ends[length - 1] : ends[length]]] = np.packbits(words, axis=1).view(">u4").ravel()
        data = data[size:]
    return codes, data


def _row_steps(difference: np.ndarray, predicted: np.ndarray, bits: int) -> np.ndarray:
    """Return the step size of each row, fp32 (rows,), with the least squared error of some; 0 for unchanged rows."""
    change = np.sqrt(np.square(difference, dtype=np.float64).mean(axis=1))
    scale = np.sqrt(np.square(predicted, dtype=np.float64).mean(axis=1))
    changed = (change > _NOISE * scale) | (change > _NOISE_OF_ALL * np.sqrt(np.square(change).mean()))
    best = np.zeros(len(difference), dtype=np.float32)
    least = np.full(len(difference), np.inf)
    for factor in _WIDER:
        steps = (change * _STEPS[bits] * factor).astype(np.float32)
        steps = np.maximum(steps, np.finfo(np.float32).tiny)
        level = _levels(difference, steps[:, None], bits).astype(np.float32) - np.float32(_middle(bits))
        error = np.square(difference - level * steps[:, None]).sum(axis=1, dtype=np.float64)
        better = error < least
        least[better], best[better] = error[better], steps[better]
    return np.where(changed & (change > 0), best, np.float32(0))


def _levels(difference: np.ndarray, steps: np.ndarray, bits: int) -> np.ndarray:
    """Return the nearest of 2^bits levels, which are evenly spaced around 0."""
    return np.clip(np.rint(difference / steps + _middle(bits)), 0, (1 << bits) - 1).astype(np.uint8)


def _middle(bits: int) -> float:
    return ((1 << bits) - 1) / 2


def _squeeze(data: np.ndarray) -> bytes:
    """Compress symbols without patterns but with different frequencies, or with long runs of one symbol."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_RLE)
    return packer.compress(np.ascontiguousarray(data).data) + packer.flush()


def _expand(data: memoryview, size: int, kind: int = -zlib.MAX_WBITS) -> bytes:
    unpacker = zlib.decompressobj(kind)
    try:
        expanded = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(expanded) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError("an unexpected number of bytes")
    return expanded
