"""Read and write sorted string tables (LevelDB's format), which TensorFlow's index files are.

A table consists of blocks, each followed by a byte for its compression and the masked CRC-32C of both; an index block,
which holds each block's last key and position; and a footer of 48 bytes with the position of the index block. A key is
stored as the length of the prefix that it shares with the preceding key, and the rest; every sixteenth key is stored in
full. TensorFlow has written uncompressed blocks only since its version 1.2, so others are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from fastbert.io.checksums import crc32c

MAGIC = 0xDB4775248B80FB57
FOOTER = 48
BLOCK_SIZE, RESTART_INTERVAL = 1 << 18, 16  # as TensorFlow writes them
MAX_BYTES, MAX_ENTRIES, MAX_KEY_BYTES = 4 << 20, 20_000, 1024


_MASK_DELTA = 0xA282EAD8


class TableError(Exception):
    """A damaged table; the message names the defect."""


def mask(crc: int) -> int:
    """Return a CRC as the format stores it, so that the CRC of data that contains CRCs is not degenerate."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits per byte, lowest first, and the position of its end."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise TableError("a number does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def varint(value: int) -> bytes:
    """Encode a number for `read_varint`."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Return the keys and values of a table, in order. Raises `TableError`."""
    if len(data) < FOOTER or struct.unpack("<Q", data[-8:])[0] != MAGIC:
        raise TableError("its last eight bytes are not a table's")
    _, at = _read_handle(data, len(data) - FOOTER)
    index, _ = _read_handle(data, at)
    table: dict[bytes, bytes] = {}
    last: bytes | None = None
    total = 0
    for _, value in _entries(_block(data, *index)):
        handle, _ = _read_handle(value, 0)
        block = _block(data, *handle)
        total += len(block)
        if total > MAX_BYTES:
            raise TableError(f"its blocks have over {MAX_BYTES:,} bytes")
        for key, entry in _entries(block):
            if last is not None and key <= last:
                raise TableError("its keys are not in order")
            if len(table) >= MAX_ENTRIES:
                raise TableError(f"it has over {MAX_ENTRIES:,} entries")
            table[key], last = entry, key
    return table


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return the offset and size of a block, and the position after them."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _block(data: bytes, offset: int, size: int) -> bytes:
    """Return a block's content after comparing its checksum."""
    end = offset + size
    if end + 5 > len(data):
        raise TableError("a block extends beyond its end")
    if _checksum(data[offset : end + 1]) != data[end + 1 : end + 5]:
        raise TableError("a block has the wrong checksum")
    if data[end]:
        raise TableError(f"a block is compressed (method {data[end]}), which is not supported")
    return data[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block."""
    restarts = struct.unpack("<I", block[-4:])[0] if len(block) >= 4 else -1
    end = len(block) - 4 - 4 * restarts
    if restarts < 0 or end < 0:
        raise TableError("a block is too short")
    at, key, count = 0, b"", 0
    while at < end:
        shared, at = read_varint(block, at)
        rest, at = read_varint(block, at)
        length, at = read_varint(block, at)
        count += 1
        if shared > len(key) or at + rest + length > end or shared + rest > MAX_KEY_BYTES or count > MAX_ENTRIES:
            raise TableError("a block is damaged")
        key = key[:shared] + block[at : at + rest]
        at += rest
        yield key, block[at : at + length]
        at += length


def write_table(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a table of entries, whose keys are in order."""
    data = bytearray()
    index: list[tuple[bytes, bytes]] = []
    block: list[tuple[bytes, bytes]] = []
    size = 0
    for position, (key, value) in enumerate(entries):
        block.append((key, value))
        size += len(key) + len(value)
        if size >= BLOCK_SIZE or position == len(entries) - 1:
            following = entries[position + 1][0] if position + 1 < len(entries) else None
            index.append((_separator(key, following), _append(data, _make_block(block, RESTART_INTERVAL))))
            block, size = [], 0
    meta = _append(data, _make_block([], RESTART_INTERVAL))
    handles = meta + _append(data, _make_block(index, 1))
    data += handles.ljust(FOOTER - 8, b"\0") + struct.pack("<Q", MAGIC)
    return bytes(data)


def _append(data: bytearray, block: bytes) -> bytes:
    """Append a block, uncompressed; return its handle."""
    handle = varint(len(data)) + varint(len(block))
    data += block + b"\0" + _checksum(block + b"\0")
    return handle


def _checksum(data: bytes) -> bytes:
    """Return the four bytes that follow a block: its masked CRC-32C."""
    return struct.pack("<I", mask(crc32c(data)))


def _make_block(entries: Sequence[tuple[bytes, bytes]], interval: int) -> bytes:
    block, restarts, last = bytearray(), [], b""
    for position, (key, value) in enumerate(entries):
        shared = _shared(key, last) if position % interval else 0
        if position % interval == 0:
            restarts.append(len(block))
        block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return bytes(block) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _shared(first: bytes, second: bytes) -> int:
    """Return the length of the prefix that two keys share."""
    return next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))


def _separator(last: bytes, following: bytes | None) -> bytes:
    """Return a short key that is at least a block's last and precedes the next block's first."""
    shared = 0
    if following is not None:
        shared = _shared(last, following)
        if shared >= min(len(last), len(following)) or last[shared] + 1 >= following[shared]:
            return last
    return last[:shared] + bytes([last[shared] + 1]) if last[shared:] and last[shared] < 0xFF else last
