"""Tensors as what they differ by from others, in few bytes: bit by bit, or rounded to a few bits a number.

Exact differences are taken between the places of two numbers in the order of all floating-point numbers. A fine-tuned
weight lies near the one it comes from, so most differences are short. How many bits each has is written by Huffman's
code, those bits as they are: nothing in them repeats.

AdamW shrinks every weight a little at each step, the rows of tokens that never occur included. Such rows are almost
their old selves times one factor, which is found and multiplied in before differences are taken.
"""

from __future__ import annotations

import zlib

import numpy as np

PIECE = 1 << 20
MOST_BITS = 8
# Steps between the levels of the best uniform quantiser of normal numbers with standard deviation 1 (Max 1960).
_STEPS = {1: 1.5958, 2: 0.9957, 3: 0.5860, 4: 0.3352, 5: 0.1881, 6: 0.1041, 7: 0.0569, 8: 0.0308}
_WIDER = (0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0)
# Rows that changed by less, compared with themselves and with the rest, hold the rounding of AdamW's shrinking.
_NOISE, _NOISE_OF_ALL = 2.0**-14, 1e-2
# What decay may do: ten thousand steps at a learning rate of 1e-4 and a decay of 0.1.
_LEAST_FACTOR, _SAME_FACTOR = 0.9, 2e-6


def find_factor(values: np.ndarray, base: np.ndarray) -> float:
    """By how much most weights of two fp32 arrays shrank, if one in twenty or more only shrank; else 1."""
    large = np.abs(base) > np.abs(base).mean(dtype=np.float64)
    old, new = base[large], values[large]
    step = max(1, len(old) // (1 << 18))
    ratios = np.sort(new[::step].astype(np.float64) / old[::step])
    ratios = ratios[(ratios > _LEAST_FACTOR) & (ratios < 1.0)]
    many = len(old[::step]) // 20
    if many < 16 or len(ratios) <= many:
        return 1.0
    widths = ratios[many:] - ratios[:-many]
    first = int(widths.argmin())
    if widths[first] > _SAME_FACTOR:
        return 1.0
    return float(ratios[first : first + many].mean())


def predict(base: np.ndarray, factor: float) -> np.ndarray:
    """What fp32 weights are expected to have become."""
    return base if factor == 1.0 else (base.astype(np.float64) * factor).astype(np.float32)


def encode_exact(values: np.ndarray, predicted: np.ndarray) -> bytes:
    """The bits of floating-point numbers, as unsigned integers of two or four bytes, from those of a prediction."""
    pieces = []
    for first in range(0, len(values), PIECE):
        part = slice(first, first + PIECE)
        pieces.append(_encode_piece(_apart(_ordered(values[part]), _ordered(predicted[part]))))
    return b"".join(pieces)


def decode_exact(data: memoryview, predicted: np.ndarray) -> np.ndarray:
    """The inverse of `encode_exact`. Raises ValueError for data that it did not write."""
    values = np.empty_like(predicted)
    for first in range(0, len(predicted), PIECE):
        part = slice(first, first + PIECE)
        expected = _ordered(predicted[part])
        codes, data = _decode_piece(data, len(expected))
        values[part] = _unordered(_together(codes, expected))
    if len(data):
        raise ValueError(f"{len(data)} bytes too many")
    return values


def encode_rounded(values: np.ndarray, predicted: np.ndarray, bits: int) -> bytes:
    """Differences of fp32 (rows, width) in `bits` bits each, with one step a row."""
    difference = values - predicted
    steps = _row_steps(difference, predicted, bits)
    moved = steps > 0
    codes = _levels(difference[moved], steps[moved, None], bits)
    packed = np.packbits(codes.ravel()) if bits == 1 else codes.ravel()
    head = _squeeze(steps.astype("<f4").view(np.uint8))
    return len(head).to_bytes(4, "little") + head + _squeeze(packed)


def decode_rounded(data: memoryview, predicted: np.ndarray, bits: int) -> np.ndarray:
    """What is left of the values that `encode_rounded` was given; the same bits everywhere."""
    rows, width = predicted.shape
    size = int.from_bytes(data[:4], "little")
    steps = np.frombuffer(_expand(data[4 : 4 + size], 4 * rows), "<f4").astype(np.float32)
    if not np.isfinite(steps).all() or (steps < 0).any():
        raise ValueError("a step that is none")
    moved = steps > 0
    count = int(moved.sum()) * width
    packed = np.frombuffer(_expand(data[4 + size :], -(-count // 8) if bits == 1 else count), np.uint8)
    codes = (np.unpackbits(packed)[:count] if bits == 1 else packed).reshape(-1, width)
    if codes.size and codes.max() >= 1 << bits:
        raise ValueError("a level that is none")
    values = predicted.copy()
    values[moved] += (codes.astype(np.float32) - np.float32(_middle(bits))) * steps[moved, None]
    return values


def squeeze(data: bytes | memoryview) -> bytes:
    """Bytes of any kind in fewer."""
    return zlib.compress(data, 9)


def expand(data: memoryview, size: int) -> bytes:
    """The inverse of `squeeze`, of which `size` bytes are expected. Raises ValueError for anything else."""
    return _expand(data, size, zlib.MAX_WBITS)


def _ordered(bits: np.ndarray) -> np.ndarray:
    """Bits of floating-point numbers -> their places in the order of these numbers."""
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    return np.where(bits & sign, ~bits, bits | sign)


def _unordered(places: np.ndarray) -> np.ndarray:
    sign = places.dtype.type(1 << (8 * places.itemsize - 1))
    return np.where(places & sign, places ^ sign, ~places)


def _apart(places: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Differences, modulo the number of places, with the sign in the last bit: near ones are small numbers."""
    signed = (places - expected).view(f"i{places.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * places.itemsize - 1))).view(places.dtype).astype(np.uint32)


def _together(codes: np.ndarray, expected: np.ndarray) -> np.ndarray:
    own = codes.astype(expected.dtype)
    if (own != codes).any():
        raise ValueError("a difference of too many bits")
    one = own.dtype.type(1)
    return expected + ((own >> one) ^ (~(own & one) + one))


def _encode_piece(codes: np.ndarray) -> bytes:
    """Lengths of the numbers, then by length the bits behind each number's first."""
    lengths = np.frexp(codes.astype(np.float64))[1].astype(np.uint8)
    head = _squeeze(lengths)
    found = [len(head).to_bytes(4, "little"), head]
    order = np.argsort(lengths, kind="stable")
    counts = np.bincount(lengths, minlength=33)
    ends = np.cumsum(counts)
    for length in range(2, 33):
        if counts[length]:
            own = codes[order[ends[length - 1] : ends[length]]].astype(">u4").view(np.uint8).reshape(-1, 4)
            found.append(np.packbits(np.unpackbits(own, axis=1)[:, 33 - length :]).tobytes())
    return b"".join(found)


def _decode_piece(data: memoryview, count: int) -> tuple[np.ndarray, memoryview]:
    """The numbers of a piece, and what lies behind it."""
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
        held = int(counts[length])
        if not held:
            continue
        size = -(-held * (length - 1) // 8)
        if size > len(data):
            raise ValueError("too few bytes")
        bits = np.unpackbits(np.frombuffer(data[:size], np.uint8))[: held * (length - 1)].reshape(held, length - 1)
        whole = np.zeros((held, 32), dtype=np.uint8)
        whole[:, 33 - length :] = bits
        whole[:, 32 - length] = 1
        codes[order[ends[length - 1] : ends[length]]] = np.packbits(whole, axis=1).view(">u4").ravel()
        data = data[size:]
    return codes, data


def _row_steps(difference: np.ndarray, predicted: np.ndarray, bits: int) -> np.ndarray:
    """The step of each row, fp32 (rows,), with the least squared error of a few; 0 for rows that did not change."""
    wide = np.sqrt(np.square(difference, dtype=np.float64).mean(axis=1))
    own = np.sqrt(np.square(predicted, dtype=np.float64).mean(axis=1))
    moved = (wide > _NOISE * own) | (wide > _NOISE_OF_ALL * np.sqrt(np.square(wide).mean()))
    best = np.zeros(len(difference), dtype=np.float32)
    least = np.full(len(difference), np.inf)
    for factor in _WIDER:
        steps = (wide * _STEPS[bits] * factor).astype(np.float32)
        steps = np.maximum(steps, np.finfo(np.float32).tiny)
        level = _levels(difference, steps[:, None], bits).astype(np.float32) - np.float32(_middle(bits))
        error = np.square(difference - level * steps[:, None]).sum(axis=1, dtype=np.float64)
        better = error < least
        least[better], best[better] = error[better], steps[better]
    return np.where(moved & (wide > 0), best, np.float32(0))


def _levels(difference: np.ndarray, steps: np.ndarray, bits: int) -> np.ndarray:
    """The nearest of 2^bits levels, which lie evenly around 0."""
    return np.clip(np.rint(difference / steps + _middle(bits)), 0, (1 << bits) - 1).astype(np.uint8)


def _middle(bits: int) -> float:
    return ((1 << bits) - 1) / 2


def _squeeze(data: np.ndarray) -> bytes:
    """Symbols that follow no pattern but come more or less often, and long runs of one."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_RLE)
    return packer.compress(np.ascontiguousarray(data).data) + packer.flush()


def _expand(data: memoryview, size: int, kind: int = -zlib.MAX_WBITS) -> bytes:
    unpacker = zlib.decompressobj(kind)
    try:
        found = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(found) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError("another number of bytes than expected")
    return found
