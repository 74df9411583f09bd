"""Read `pytorch_model.bin` in both of its containers, without executing the pickle in it.

Since torch 1.6 it is an uncompressed zip of the pickle and one member per storage. Before, it was a sequence of five
pickles (magic number, version, system, dictionary, keys of the storages), followed by each storage: its number of
elements in eight bytes, and the elements.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastbert.checkpoints.file_tensors import Checksum, FileTensor
from fastbert.checkpoints.formats.pickle_machine import MAX_BYTES, View, run
from fastbert.checkpoints.formats.safetensors import check_shape
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import UntrustedFile, shown, shown_error

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
MAX_DIRECTORY_BYTES = 4 << 20  # a member takes a hundred
# Key of a storage -> offset, size in bytes and checksum of its elements.
Extents = Mapping[str, tuple[int, int, Checksum | None]]


def read_pickle(path: Path) -> dict[str, FileTensor]:
    """Return the tensors of a pickled state dict, without reading or executing them. Raises `CheckpointError`."""
    with UntrustedFile(path) as file:
        if file.size >= 4 and file.read(0, 4) == b"PK\x03\x04":
            values, extents = _read_zip(file)
        else:
            values, extents = _read_stream(file)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: the pickle is not a dictionary of tensors; save model.state_dict()")
    views = {name: value for name, value in values.items() if isinstance(name, str) and isinstance(value, View)}
    if not views:
        raise CheckpointError(f"{path}: has no named tensors; save model.state_dict()")
    return {name: _file_tensor(path, name, view, extents) for name, view in views.items()}


def _read_stream(file: UntrustedFile) -> tuple[Any, Extents]:
    """Read the old container: the pickled value, and the extents of its storages."""
    data = file.read(0, min(file.size, MAX_BYTES))
    position, pickles = 0, []
    for name in ("magic number", "version", "system", "tensors", "storages"):
        value, position = run(data, f"{file.path}, {name}", position)
        pickles.append(value)
        if name == "magic number" and value != MAGIC:
            raise CheckpointError(f"{file.path}: a pickle that torch.save did not write")
    _, version, system, values, keys = pickles
    if version != VERSION or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise CheckpointError(f"{file.path}: not version {VERSION}, or written on a big-endian machine")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise CheckpointError(f"{file.path}: damaged: no list of storages after the pickle")
    storages = {view.storage.key: view.storage for view in _views(values)}
    extents: dict[str, tuple[int, int, Checksum | None]] = {}
    for key in keys:
        if key not in storages:
            raise CheckpointError(f"{file.path}: damaged: holds the storage {shown(key)}, which no tensor uses")
        count = int.from_bytes(file.read(position, 8), "little")
        size = storages[key].size
        if count != storages[key].numel or position + 8 + size > file.size:
            raise CheckpointError(f"{file.path}: truncated or damaged at the storage {shown(key)}")
        extents[key] = (position + 8, size, None)
        position += 8 + size
    if position != file.size:
        raise CheckpointError(f"{file.path}: damaged: {file.size - position:,} bytes after the last storage")
    return values, extents


def _views(values: Any) -> list[View]:
    return [value for value in values.values() if isinstance(value, View)] if isinstance(values, dict) else []


def _read_zip(file: UntrustedFile) -> tuple[Any, Extents]:
    """Read the zip container: the pickled value, and the extents of its storages."""
    members = _members(file)
    pickles = [name for name in members if re.fullmatch(r"[^/]+/data\.pkl", name)]
    if len(pickles) != 1:
        raise CheckpointError(f"{file.path}: a zip with {len(pickles)} data.pkl; torch.save writes one")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in members and _content(file, members[f"{root}byteorder"], 16) != b"little":
        raise CheckpointError(f"{file.path}: written on a big-endian machine, which is not supported")
    values, _ = run(_content(file, members[pickles[0]], MAX_BYTES), f"{file.path}, {pickles[0]}")
    extents: dict[str, tuple[int, int, Checksum | None]] = {}
    for key in {view.storage.key for view in _views(values)}:
        member = members.get(f"{root}data/{key}")
        if member is None:
            raise CheckpointError(f"{file.path}: damaged: the storage {shown(key)} is missing")
        begin = _begin(file, member)
        extents[key] = (begin, member.file_size, Checksum(begin, member.file_size, member.CRC, zlib.crc32))
    return values, extents


def _members(file: UntrustedFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a zip by name. Raises `CheckpointError` for a huge directory and compressed members."""
    tail = file.read(file.size - min(file.size, 1 << 16), min(file.size, 1 << 16))
    end = tail.rfind(b"PK\x05\x06")
    if not 0 <= end <= len(tail) - 22:
        raise CheckpointError(f"{file.path}: truncated: a zip without its directory")
    sizes = [struct.unpack_from("<L", tail, end + 12)[0]]
    if end >= 76 and tail[end - 76 : end - 72] == b"PK\x06\x06":
        sizes.append(struct.unpack_from("<Q", tail, end - 36)[0])
    if sizes[-1] > MAX_DIRECTORY_BYTES:
        raise CheckpointError(
            f"{file.path}: a zip with a directory of {sizes[-1]:,} bytes; at most {MAX_DIRECTORY_BYTES:,} are read"
        )
    try:
        with zipfile.ZipFile(file.path) as archive:
            infos = archive.infolist()
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        ValueError,
        EOFError,
        OSError,
        OverflowError,
        struct.error,
    ) as error:
        raise CheckpointError(f"{file.path}: not a complete zip ({shown_error(error)})") from None
    members = {member.filename: member for member in infos}
    if len(members) != len(infos):
        raise CheckpointError(f"{file.path}: a zip with a repeated name, which torch.save never writes")
    for member in infos:
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise CheckpointError(
                f"{file.path}: {shown(member.filename)} is compressed, which torch.save never does; save it again"
            )
    return members


def _begin(file: UntrustedFile, member: zipfile.ZipInfo) -> int:
    """Return the offset of a member's bytes, which all lie in the file."""
    header = file.read(member.header_offset, 30)
    if header[:4] != b"PK\x03\x04":
        raise CheckpointError(f"{file.path}: damaged: no zip member at byte {member.header_offset:,}")
    begin = member.header_offset + 30 + sum(struct.unpack_from("<HH", header, 26))
    if begin + member.file_size > file.size:
        raise CheckpointError(f"{file.path}: truncated at {shown(member.filename)}")
    return begin


def _content(file: UntrustedFile, member: zipfile.ZipInfo, max_bytes: int) -> bytes:
    """Return the content of a small member."""
    if member.file_size > max_bytes:
        raise CheckpointError(
            f"{file.path}: {shown(member.filename)} has {member.file_size:,} bytes; at most {max_bytes:,} are read"
        )
    data = file.read(_begin(file, member), member.file_size)
    if zlib.crc32(data) != member.CRC:
        raise CheckpointError(f"{file.path}: damaged: {shown(member.filename)} has the wrong checksum")
    return data


def _file_tensor(path: Path, name: str, view: View, extents: Extents) -> FileTensor:
    """Return a tensor of the pickle as a tensor in the file, after checking that its storage contains it."""
    where = f"{path}: {shown(name)}"
    check_shape(where, view.shape)
    if view.storage.key not in extents:
        raise CheckpointError(f"{where} uses the storage {shown(view.storage.key)}, which is missing")
    begin, size, checksum = extents[view.storage.key]
    item = view.dtype.itemsize
    if view.storage.size != size:
        raise CheckpointError(f"{where} has a storage whose size is not {size:,} bytes")
    stride = None if _is_contiguous(view) else view.stride
    stored = FileTensor(path, begin + view.offset * item, view.dtype, view.shape, stride, checksum)
    if stored.numel and (view.offset * item + stored.extent > size or stored.numel * item > size or _overlaps(view)):
        raise CheckpointError(f"{where} extends beyond its storage of {size:,} bytes, or overlaps itself")
    return stored


def _is_contiguous(view: View) -> bool:
    expected = [math.prod(view.shape[axis + 1 :]) for axis in range(len(view.shape))]
    return all(size == 1 or step == dense for size, step, dense in zip(view.shape, view.stride, expected, strict=True))


def _overlaps(view: View) -> bool:
    """Return whether two of a view's elements may share memory."""
    extent = 0
    for step, size in sorted((step, size) for step, size in zip(view.stride, view.shape, strict=True) if size > 1):
        if step <= extent:
            return True
        extent += (size - 1) * step
    return False
