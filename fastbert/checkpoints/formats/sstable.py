"""The table of sorted keys and values that TensorFlow's index files are (LevelDB's format), read whole and written.

Blocks, each with a byte that says how it is compressed and the masked CRC-32C of both, then a block that names the
others by their last keys, and a footer of 48 bytes that says where that is. In a block a key is what it shares with the
one before it and the rest; every sixteenth is written in full.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from fastbert.io.checksums import crc32c

MAGIC = 0xDB4775248B80FB57
FOOTER = 48
BLOCK_SIZE, RESTART_INTERVAL = 1 << 18, 16  # as TensorFlow writes them
MOST_BYTES, MOST_ENTRIES, MOST_KEY = 4 << 20, 20_000, 1024


_MASK_DELTA = 0xA282EAD8


class TableError(Exception):
    """Not a whole table; the message says why."""


def mask(crc: int) -> int:
    """Return a CRC as the format stores it, so that the CRC of data that contains CRCs is not degenerate."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first; and where it ends."""
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
    """What `read_varint` reads."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_table(data: bytes) -> dict[bytes, bytes]:
    """The keys and values of a table, in their order. Raises `TableError`."""
    if len(data) < FOOTER or struct.unpack("<Q", data[-8:])[0] != MAGIC:
        raise TableError("its last eight bytes are not those of a table")
    _, at = _read_handle(data, len(data) - FOOTER)
    index, _ = _read_handle(data, at)
    found: dict[bytes, bytes] = {}
    last: bytes | None = None
    read = 0
    for _, value in _entries(_block(data, *index)):
        handle, _ = _read_handle(value, 0)
        block = _block(data, *handle)
        read += len(block)
        if read > MOST_BYTES:
            raise TableError(f"its blocks have over {MOST_BYTES:,} bytes")
        for key, entry in _entries(block):
            if last is not None and key <= last:
                raise TableError("its keys are not in order")
            if len(found) >= MOST_ENTRIES:
                raise TableError(f"it has over {MOST_ENTRIES:,} entries")
            found[key], last = entry, key
    return found


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where they end."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _block(data: bytes, offset: int, size: int) -> bytes:
    """A block's content, after its checksum."""
    end = offset + size
    if end + 5 > len(data):
        raise TableError("a block goes on behind its end")
    if _checksum(data[offset : end + 1]) != data[end + 1 : end + 5]:
        raise TableError("a block has another checksum than it should")
    if data[end] not in (0, 1):
        raise TableError(f"a block is compressed in the unknown way {data[end]}")
    return unpack_snappy(data[offset:end]) if data[end] else data[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block."""
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
        if shared > len(key) or at + rest + length > end or shared + rest > MOST_KEY or count > MOST_ENTRIES:
            raise TableError("a block is damaged")
        key = key[:shared] + block[at : at + rest]
        at += rest
        yield key, block[at : at + length]
        at += length


def unpack_snappy(data: bytes) -> bytes:
    """Undo Snappy's compression. Raises `TableError`."""
    size, at = read_varint(data, 0)
    if size > MOST_BYTES:
        raise TableError(f"a block of {size:,} bytes is not believed")
    out = bytearray()
    while at < len(data) and len(out) <= size:
        tag = data[at]
        at += 1
        if tag & 3 == 0:  # bytes that follow
            length = (tag >> 2) + 1
            if length > 60:
                width = length - 60
                length = int.from_bytes(data[at : at + width], "little") + 1
                at += width
            out += data[at : at + length]
            at += length
            continue
        if tag & 3 == 1:  # bytes that were there before
            length, width, high = (tag >> 2 & 7) + 4, 1, tag >> 5 << 8
        else:
            length, width, high = (tag >> 2) + 1, 2 if tag & 3 == 2 else 4, 0
        distance = high + int.from_bytes(data[at : at + width], "little")
        at += width
        if not 0 < distance <= len(out):
            raise TableError("a compressed block is damaged")
        while length > 0:  # what is copied may be what was copied just now
            piece = out[-distance:][:length]
            out += piece
            length -= len(piece)
    if len(out) != size:
        raise TableError("a compressed block is damaged")
    return bytes(out)


def write_table(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A table of entries, whose keys are in order."""
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
    """Write a block, uncompressed; returns its handle."""
    handle = varint(len(data)) + varint(len(block))
    data += block + b"\0" + _checksum(block + b"\0")
    return handle


def _checksum(data: bytes) -> bytes:
    """Return the four bytes that follow a block: its masked CRC-32C."""
    return struct.pack("<I", mask(crc32c(data)))


def _make_block(entries: Sequence[tuple[bytes, bytes]], interval: int) -> bytes:
    block, restarts, last = bytearray(), [], b""
    for position, (key, value) in enumerate(entries):
        shared = 0
        if position % interval == 0:
            restarts.append(len(block))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return bytes(block) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _separator(last: bytes, following: bytes | None) -> bytes:
    """A short key from a block's last on, but before the next block's first."""
    shared = 0
    if following is not None:
        while shared < min(len(last), len(following)) and last[shared] == following[shared]:
            shared += 1
        if shared >= min(len(last), len(following)) or last[shared] + 1 >= following[shared]:
            return last
    return last[:shared] + bytes([last[shared] + 1]) if last[shared:] and last[shared] < 0xFF else last
