"""CRC-32C (Castagnoli), the checksum of TensorFlow's files and of a model folder's manifest; computed by the C++ core,
with the processor's CRC instruction where it has one."""

from __future__ import annotations

import struct

from fastbert import _C, cpu_capability

MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `value`, the CRC-32C of the bytes before it."""
    cpu_capability.apply()
    return _C.crc32c(data, value)


def combine(first: int, second: int, second_size: int) -> int:
    """Return the CRC-32C of two stretches end to end, from the CRC-32C of each and the second one's size in bytes."""
    return _C.crc32c_combine(first, second, second_size)


def masked(value: int) -> int:
    """Return a CRC as TensorFlow stores it, so that the CRC of data that holds CRCs is nothing special."""
    return (((value >> 15) | (value << 17)) + MASK_DELTA) & 0xFFFFFFFF


def checksum(data: bytes | memoryview) -> bytes:
    """Return the four bytes that TensorFlow stores beside data: its masked CRC-32C."""
    return struct.pack("<I", masked(crc32c(data)))
