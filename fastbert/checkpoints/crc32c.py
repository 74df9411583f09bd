"""CRC-32C (Castagnoli), the checksum of TensorFlow's files, at gigabytes a second in NumPy.

A CRC is what is left of the data, read as a polynomial over GF(2), when it is divided by the CRC's polynomial P. Long
data is first divided by a multiple of P with few terms, x^(32 A) + x^(32 B) + x^(32 C) + 1: since its exponents are
multiples of 32, that takes three exclusive-ors of whole words, thousands of them at a time, and leaves A words. These
are folded in half, and in half again, by tables of what so many zero bytes make of a remainder.
"""

from __future__ import annotations

import functools
import struct

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78  # its bits from the highest power down, as the data has them
# Exponents of a multiple of P that has four terms (a test divides it); A - B words are divided at once.
A, B, C = 6777, 484, 100
BLOCK = 8 * (A - B)  # words divided before the next are read: 200 KB, which stay in the cache
MASK_DELTA = 0xA282EAD8
Words = NDArray[np.uint32]


def crc32c(data: bytes | memoryview, value: int = 0) -> int:
    """The CRC-32C of `data`, or of what had the CRC `value` with `data` behind it."""
    view = memoryview(data).cast("B")
    state = value ^ 0xFFFFFFFF
    whole = len(view) // 4
    if whole:
        state = _remainder(np.frombuffer(view[: 4 * whole], "<u4"), state)
    table = _byte_table()
    for byte in view[4 * whole :]:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def masked(value: int) -> int:
    """A CRC as TensorFlow stores it, so that the CRC of data that holds CRCs is nothing special."""
    return (((value >> 15) | (value << 17)) + MASK_DELTA) & 0xFFFFFFFF


def checksum(data: bytes | memoryview) -> bytes:
    """The four bytes that TensorFlow stores beside data: its masked CRC-32C."""
    return struct.pack("<I", masked(crc32c(data)))


def _remainder(words: Words, state: int) -> int:
    """What a state becomes by little-endian words."""
    rest = np.zeros(A, np.uint32)  # zeros before the data change nothing
    # A state counts as if it stood in the data's first four bytes.
    first = np.array([int(words[0]) ^ state], np.uint32)
    rest = np.concatenate((rest, first))[-A:]
    for start in range(1, len(words), BLOCK):
        rest = _divide(np.concatenate((rest, words[start : start + BLOCK])))
    used = min(len(words), A)
    return _fold(rest[-used:])


def _divide(work: Words) -> Words:
    """The last A words of `work`, with what those before them leave there. Writes to `work`."""
    excess = len(work) - A
    for start in range(0, excess, A - B):
        stop = min(start + A - B, excess)
        for distance in (A - B, A - C, A):
            target = work[start + distance : stop + distance]
            np.bitwise_xor(target, work[start:stop], out=target)
    return work[excess:]


def _fold(words: Words) -> int:
    """What a state of 0 becomes by words."""
    length = 1 << (len(words) - 1).bit_length()
    words = np.concatenate((np.zeros(length - len(words), np.uint32), words))
    while len(words) > 1:
        first, second = words[: len(words) // 2], words[len(words) // 2 :]
        words = _moved(first, second.nbytes.bit_length() - 1) ^ second
    return int(_moved(words, 2)[0])  # a word has to leave the register too


def _moved(states: Words, log_length: int) -> Words:
    """States behind 2**log_length zero bytes."""
    moved = np.zeros_like(states)
    for byte, table in enumerate(_tables(log_length)):
        moved ^= table[states >> np.uint32(8 * byte) & np.uint32(0xFF)]
    return moved


@functools.cache
def _tables(log_length: int) -> tuple[Words, ...]:
    """What 2**log_length zero bytes make of each value of each of a state's four bytes."""
    images = _images(log_length)
    tables = []
    for byte in range(4):
        table = np.zeros(1, np.uint32)
        for image in images[8 * byte : 8 * byte + 8]:
            table = np.concatenate((table, table ^ np.uint32(image)))
        tables.append(table)
    return tuple(tables)


@functools.cache
def _images(log_length: int) -> tuple[int, ...]:
    """What 2**log_length zero bytes make of each single bit of a state."""
    if log_length == 0:
        table = _byte_table()
        return tuple(table[1 << bit & 0xFF] ^ (1 << bit >> 8) for bit in range(32))
    before = _images(log_length - 1)
    twice = []
    for image in before:
        bits = (before[bit] for bit in range(32) if image >> bit & 1)
        twice.append(functools.reduce(int.__xor__, bits, 0))
    return tuple(twice)


@functools.cache
def _byte_table() -> tuple[int, ...]:
    """What each byte makes of a state of 0."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)
