"""Read and write TensorFlow's checkpoints (version 2: PREFIX.index and PREFIX.data-00000-of-00001) without TensorFlow.

The index is a sorted table (`sstable`) from names to protocol buffers with dtype, shape, file, offset, size and masked
CRC-32C; the empty name holds a header with the number of data files. The data files are the tensors' bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from fastbert.checkpoints.file_tensors import CHUNK_BYTES, Checksum, FileTensor
from fastbert.checkpoints.formats.names import index_file
from fastbert.checkpoints.formats.safetensors import check_shape
from fastbert.checkpoints.formats.sstable import (
    MAX_BYTES,
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

MAX_DATA_FILES = 10_000
# Numbers of TensorFlow's DataType.
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
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
STRINGS = 7
# Fields of BundleHeaderProto and BundleEntryProto.
NUM_SHARDS, ENDIANNESS, VERSION = 1, 2, 3
DTYPE, SHAPE, SHARD, OFFSET, SIZE, CRC, SLICES = range(1, 8)


def read_bundle(prefix: Path) -> dict[str, FileTensor]:
    """Return the tensors of the checkpoint `prefix`, unread and without strings. Raises `CheckpointError`."""
    path = index_file(prefix)
    with UntrustedFile(path) as file:
        if file.size > MAX_BYTES:
            raise CheckpointError(f"{path}: an index of {file.size:,} bytes; at most {MAX_BYTES:,} are read")
        data = file.read(0, file.size)
    try:
        table = read_table(data)
        if b"" not in table:
            raise TableError("it has no header")
        header = dict(_fields(table.pop(b"")))
        shards = header.get(NUM_SHARDS, 1)
        if not isinstance(shards, int) or not 0 < shards <= MAX_DATA_FILES:
            raise TableError(f"it declares {shown(shards)} data files")
        if header.get(ENDIANNESS):
            raise TableError("it was written on a big-endian machine")
        entries = {_text(key): list(_fields(value)) for key, value in table.items()}
    except TableError as error:
        raise CheckpointError(f"{path}: not the index of a TensorFlow checkpoint, or damaged: {error}") from None
    tensors = {name: _read_entry(prefix, name, fields, shards) for name, fields in entries.items()}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def data_file(prefix: Path, shard: int, shards: int) -> Path:
    """Return the path of one of a checkpoint's data files."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def _read_entry(prefix: Path, name: str, fields: list[tuple[int, Any]], shards: int) -> FileTensor | None:
    """Return the tensor that an entry of the index describes; None for strings, which no model computes with."""
    where, values = f"{index_file(prefix)}: {shown(name)}", dict(fields)
    code = values.get(DTYPE, 0)
    if code == STRINGS:
        return None
    if SLICES in values:
        raise CheckpointError(
            f"{where} is stored in slices, which are not supported; save the checkpoint unpartitioned"
        )
    if code not in DTYPES:
        raise CheckpointError(f"{where} has TensorFlow's dtype number {shown(code)}, which is not supported")
    try:
        shape = _shape(values.get(SHAPE, b""))
    except TableError as error:
        raise CheckpointError(f"{where} is damaged: {error}") from None
    check_shape(where, shape)
    shard, offset, size, crc = (values.get(field, 0) for field in (SHARD, OFFSET, SIZE, CRC))
    if not all(isinstance(value, int) for value in (shard, offset, size, crc)) or not shard < shards:
        raise CheckpointError(f"{where} is damaged: it is not in any data file")
    if size != math.prod(shape) * DTYPES[code].itemsize:
        raise CheckpointError(f"{where} has {size:,} bytes, not the size of shape {shown(shape)}")
    checksum = Checksum(offset, size, crc, crc32c, mask)
    return FileTensor(data_file(prefix, shard, shards), offset, DTYPES[code], shape, checksum=checksum)


def _shape(data: bytes) -> tuple[int, ...]:
    """Return the shape in a TensorShapeProto, which holds one message per dimension."""
    if not isinstance(data, bytes):
        raise TableError("its shape is not a message")
    sizes = []
    for field, value in _fields(data):
        if field == 3 and value:
            raise TableError("its shape is unknown")
        if field == 2:
            if not isinstance(value, bytes):
                raise TableError("a dimension is not a message")
            size = dict(_fields(value)).get(1, 0)
            sizes.append(size if isinstance(size, int) and size < 1 << 63 else -1)
    return tuple(sizes)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protocol buffer: numbers, or bytes."""
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
            raise TableError(f"a field of unknown type {kind}")
        if at > len(data):
            raise TableError("a field extends beyond its end")
        yield tag >> 3, value


def _text(key: bytes) -> str:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise TableError("a name is not UTF-8") from None


def write_bundle(prefix: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write contiguous CPU tensors as a checkpoint of one data file.

    Both files are complete before the first one appears, and the index appears last. Raises `CheckpointError` for a
    dtype that the format lacks, and if the files cannot be written.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _NUMBERS:
            raise CheckpointError(f"{prefix}: {name} is {tensor.dtype}, which this format lacks; convert it to fp32")
    entries = [(b"", _number(NUM_SHARDS, 1) + _message(VERSION, _number(1, 1)))]
    data_path, index_path = data_file(prefix, 0, 1), index_file(prefix)
    try:
        with atomic_write(index_path) as index_partial, atomic_write(data_path) as data_partial:
            with data_partial.open("wb") as file:
                for name in sorted(tensors, key=str.encode):
                    entries.append((name.encode(), _write_tensor(file, tensors[name])))
            index_partial.write_bytes(write_table(entries))
    except OSError as error:
        raise CheckpointError(f"{data_path}: could not be written ({error}); free some disk space") from error


def _write_tensor(file: IO[bytes], tensor: Tensor) -> bytes:
    """Append a tensor to a data file; return its entry in the index."""
    offset, crc = file.tell(), 0
    memory = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
    for start in range(0, len(memory), CHUNK_BYTES):
        crc = crc32c(memory[start : start + CHUNK_BYTES], crc)
        file.write(memory[start : start + CHUNK_BYTES])
    dims = b"".join(_message(2, _number(1, size)) for size in tensor.shape)
    entry = _number(DTYPE, _NUMBERS[tensor.dtype]) + _message(SHAPE, dims)
    entry += _number(OFFSET, offset) + _number(SIZE, len(memory))
    return entry + varint(CRC << 3 | 5) + struct.pack("<I", mask(crc))


def _number(field: int, value: int) -> bytes:
    """Encode a field that is a number; the default 0 is left out."""
    return varint(field << 3) + varint(value) if value else b""


def _message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content
