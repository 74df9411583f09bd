"""TensorFlow's checkpoints (version 2: PREFIX.index and PREFIX.data-00000-of-00001) without TensorFlow.

The index is a sorted table (`sstable`) of names to small protocol buffers that say dtype, shape, file, offset, size and
masked CRC-32C; under the empty name lies a header with the number of data files. The data files are the tensors' bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastbert.checkpoints.file_tensors import PIECE, Checked, Stored
from fastbert.checkpoints.formats.safetensors_files import check_shape
from fastbert.checkpoints.formats.sstable import (
    MOST_BYTES,
    TableError,
    mask,
    read_table,
    read_varint,
    varint,
    write_table,
)
from fastbert.errors import CheckpointError
from fastbert.io.atomic_write import atomic_write
from fastbert.io.checksums import crc32c
from fastbert.io.untrusted_input import UntrustedFile, shown

INDEX = ".index"
MOST_DATA_FILES = 10_000
# By the number that TensorFlow's DataType gives each.
DTYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    4: torch.uint8,
    5: torch.int16,
    6: torch.int8,
    9: torch.int64,
    10: torch.bool,
    14: torch.bfloat16,
    19: torch.float16,
}
STRINGS = 7
# Fields of BundleHeaderProto and BundleEntryProto.
NUM_SHARDS, ENDIANNESS, VERSION = 1, 2, 3
DTYPE, SHAPE, SHARD, OFFSET, SIZE, CRC, SLICES = range(1, 8)


def read_bundle(prefix: Path) -> dict[str, Stored]:
    """Where the tensors of the checkpoint `prefix` lie; those of strings are left out. Raises `CheckpointError`."""
    path = index_file(prefix)
    with UntrustedFile(path) as file:
        if file.size > MOST_BYTES:
            raise CheckpointError(f"{path}: {file.size:,} bytes, where at most {MOST_BYTES:,} are believed of an index")
        data = file.read(0, file.size)
    try:
        table = read_table(data)
        if b"" not in table:
            raise TableError("it has no header")
        header = dict(_fields(table.pop(b"")))
        shards = header.get(NUM_SHARDS, 1)
        if not isinstance(shards, int) or not 0 < shards <= MOST_DATA_FILES:
            raise TableError(f"it says that there are {shown(shards)} data files")
        if header.get(ENDIANNESS):
            raise TableError("it was written on a big-endian machine")
        entries = {_text(key): list(_fields(value)) for key, value in table.items()}
    except TableError as error:
        raise CheckpointError(f"{path}: not the index of a TensorFlow checkpoint, or damaged: {error}") from None
    found = {name: _stored(prefix, name, fields, shards) for name, fields in entries.items()}
    return {name: stored for name, stored in found.items() if stored is not None}


def index_file(prefix: Path) -> Path:
    """The index of the checkpoint `prefix`."""
    return prefix.with_name(prefix.name + INDEX)


def data_file(prefix: Path, shard: int, shards: int) -> Path:
    """One of its data files."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def _stored(prefix: Path, name: str, fields: list[tuple[int, Any]], shards: int) -> Stored | None:
    """The place of one tensor; None for strings, which no model computes with."""
    place, values = f"{index_file(prefix)}: {shown(name)}", dict(fields)
    code = values.get(DTYPE, 0)
    if code == STRINGS:
        return None
    if SLICES in values:
        raise CheckpointError(f"{place} is stored in slices, which are not read; save the checkpoint unpartitioned")
    if code not in DTYPES:
        raise CheckpointError(f"{place} has TensorFlow's dtype number {shown(code)}, which is not read")
    try:
        shape = _shape(values.get(SHAPE, b""))
    except TableError as error:
        raise CheckpointError(f"{place} is damaged: {error}") from None
    check_shape(place, shape)
    shard, offset, size, crc = (values.get(field, 0) for field in (SHARD, OFFSET, SIZE, CRC))
    if not all(isinstance(value, int) for value in (shard, offset, size, crc)) or not shard < shards:
        raise CheckpointError(f"{place} is damaged: it lies in no data file")
    if size != math.prod(shape) * DTYPES[code].itemsize:
        raise CheckpointError(f"{place} has {size:,} bytes, not those of {shown(shape)}")
    checked = Checked(offset, size, crc, crc32c, mask)
    return Stored(data_file(prefix, shard, shards), offset, DTYPES[code], shape, checked=checked)


def _shape(data: bytes) -> tuple[int, ...]:
    """Of a TensorShapeProto: a message with a size for each dimension."""
    if not isinstance(data, bytes):
        raise TableError("its shape is no message")
    sizes = []
    for field, value in _fields(data):
        if field == 3 and value:
            raise TableError("its shape is unknown")
        if field == 2:
            if not isinstance(value, bytes):
                raise TableError("a dimension is no message")
            size = dict(_fields(value)).get(1, 0)
            sizes.append(size if isinstance(size, int) and size < 1 << 63 else -1)
    return tuple(sizes)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer: numbers, or bytes."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        value: Any
        if kind == 0:
            value, at = read_varint(data, at)
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            value, at = int.from_bytes(data[at : at + width], "little"), at + width
        elif kind == 2:
            length, at = read_varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise TableError(f"a field of the unknown kind {kind}")
        if at > len(data):
            raise TableError("a field does not end")
        yield tag >> 3, value


def _text(key: bytes) -> str:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise TableError("a name is not UTF-8") from None


def write_bundle(prefix: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write contiguous tensors on the CPU as a checkpoint of one data file.

    Both files are whole before they get their names, the index last. Raises `CheckpointError` for a dtype that the
    format does not have, and where the disk refuses.
    """
    numbers = {dtype: number for number, dtype in DTYPES.items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in numbers:
            raise CheckpointError(f"{prefix}: {name} is {tensor.dtype}, which this format lacks; convert it to fp32")
    entries = [(b"", _number(NUM_SHARDS, 1) + _message(VERSION, _number(1, 1)))]
    data_path, index_path = data_file(prefix, 0, 1), index_file(prefix)
    try:
        # The data file appears first, the index last.
        with atomic_write(index_path) as index_partial, atomic_write(data_path) as data_partial:
            with data_partial.open("wb") as file:
                for name in sorted(tensors, key=lambda name: name.encode()):
                    tensor, offset, crc = tensors[name], file.tell(), 0
                    memory = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
                    for start in range(0, len(memory), PIECE):
                        crc = crc32c(memory[start : start + PIECE], crc)
                        file.write(memory[start : start + PIECE])
                    dims = b"".join(_message(2, _number(1, size)) for size in tensor.shape)
                    entry = _number(DTYPE, numbers[tensor.dtype]) + _message(SHAPE, dims)
                    entry += _number(OFFSET, offset) + _number(SIZE, len(memory))
                    entry += varint(CRC << 3 | 5) + struct.pack("<I", mask(crc))
                    entries.append((name.encode(), entry))
            index_partial.write_bytes(write_table(entries))
    except OSError as error:
        raise CheckpointError(f"{data_path}: could not be written ({error}); free some disk space") from error


def _number(field: int, value: int) -> bytes:
    """A field that is a number; the default 0 is left out."""
    return varint(field << 3) + varint(value) if value else b""


def _message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content
