"""`pytorch_model.bin` of both containers, without executing the pickle in it.

Since torch 1.6 it is a zip of the pickle and a member for each storage, uncompressed; before, it was five pickles one
behind the other (a magic number, a version, what the machine was like, the dictionary, the storages' keys) and then
each storage: its number of elements in eight bytes, and the elements.
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

from fastbert.checkpoints.file_tensors import Checked, Stored
from fastbert.checkpoints.formats.pickle_machine import MOST_BYTES, View, run
from fastbert.checkpoints.formats.safetensors_files import check_shape
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import UntrustedFile, shown

PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
MOST_DIRECTORY = 4 << 20  # bytes; a member takes a hundred
# Where a storage's elements lie, and what their checksum is.
Places = Mapping[str, tuple[int, int, Checked | None]]


def read_pickle(path: Path) -> dict[str, Stored]:
    """Where the tensors of a pickled state dict lie. Raises `CheckpointError`; executes nothing."""
    with UntrustedFile(path) as file:
        if file.size >= 4 and file.read(0, 4) == b"PK\x03\x04":
            values, places = _read_zip(file)
        else:
            values, places = _read_stream(file)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: what is pickled is no dictionary of tensors; save model.state_dict()")
    views = {name: value for name, value in values.items() if isinstance(name, str) and isinstance(value, View)}
    if not views:
        raise CheckpointError(f"{path}: holds no tensors under names; save model.state_dict()")
    return {name: _stored(path, name, view, places) for name, view in views.items()}


def _read_stream(file: UntrustedFile) -> tuple[Any, Places]:
    """The old container: what is pickled, and where the storages lie."""
    data = file.read(0, min(file.size, MOST_BYTES))
    at, parts = 0, []
    for what in ("magic number", "version", "system", "tensors", "storages"):
        value, at = run(data, f"{file.path}, {what}", at)
        parts.append(value)
        if what == "magic number" and value != MAGIC:
            raise CheckpointError(f"{file.path}: a pickle, but none that torch.save wrote")
    _, version, system, values, keys = parts
    if version != VERSION or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise CheckpointError(f"{file.path}: of another version than {VERSION}, or of a big-endian machine")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise CheckpointError(f"{file.path}: damaged: no list of storages behind the pickle")
    storages = {view.storage.key: view.storage for view in _views(values)}
    places: dict[str, tuple[int, int, Checked | None]] = {}
    for key in keys:
        if key not in storages:
            raise CheckpointError(f"{file.path}: damaged: holds the storage {shown(key)}, which no tensor names")
        count = int.from_bytes(file.read(at, 8), "little")
        size = storages[key].size
        if count != storages[key].count or at + 8 + size > file.size:
            raise CheckpointError(f"{file.path}: truncated or damaged at the storage {shown(key)}")
        places[key] = (at + 8, size, None)
        at += 8 + size
    if at != file.size:
        raise CheckpointError(f"{file.path}: damaged: {file.size - at:,} bytes behind the last storage")
    return values, places


def _views(values: Any) -> list[View]:
    return [value for value in values.values() if isinstance(value, View)] if isinstance(values, dict) else []


def _read_zip(file: UntrustedFile) -> tuple[Any, Places]:
    """The zip container: what is pickled, and where the storages lie."""
    members = _members(file)
    pickles = [name for name in members if re.fullmatch(r"[^/]+/data\.pkl", name)]
    if len(pickles) != 1:
        raise CheckpointError(f"{file.path}: a zip with {len(pickles)} data.pkl in it, where torch.save writes one")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in members and _content(file, members[f"{root}byteorder"], 16) != b"little":
        raise CheckpointError(f"{file.path}: written on a big-endian machine, which is not read")
    values, _ = run(_content(file, members[pickles[0]], MOST_BYTES), f"{file.path}, {pickles[0]}")
    places: dict[str, tuple[int, int, Checked | None]] = {}
    for key in {view.storage.key for view in _views(values)}:
        member = members.get(f"{root}data/{key}")
        if member is None:
            raise CheckpointError(f"{file.path}: damaged: the storage {shown(key)} is missing")
        begin = _begin(file, member)
        places[key] = (begin, member.file_size, Checked(begin, member.file_size, member.CRC, zlib.crc32))
    return values, places


def _members(file: UntrustedFile) -> dict[str, zipfile.ZipInfo]:
    """The members of a zip by name; no more than a model can have, and none compressed."""
    tail = file.read(file.size - min(file.size, 1 << 16), min(file.size, 1 << 16))
    end = tail.rfind(b"PK\x05\x06")
    if not 0 <= end <= len(tail) - 22:
        raise CheckpointError(f"{file.path}: truncated: a zip without an end")
    sizes = [struct.unpack_from("<L", tail, end + 12)[0]]
    if end >= 76 and tail[end - 76 : end - 72] == b"PK\x06\x06":
        sizes.append(struct.unpack_from("<Q", tail, end - 36)[0])
    if sizes[-1] > MOST_DIRECTORY:
        raise CheckpointError(f"{file.path}: a zip whose directory has {sizes[-1]:,} bytes, which is not believed")
    try:
        with zipfile.ZipFile(file.path) as archive:
            found = archive.infolist()
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        ValueError,
        EOFError,
        OSError,
        OverflowError,
        struct.error,
    ) as error:
        raise CheckpointError(f"{file.path}: not a whole zip ({error})") from None
    members = {member.filename: member for member in found}
    if len(members) != len(found):
        raise CheckpointError(f"{file.path}: a zip that holds a name twice, which torch.save never writes")
    for member in found:
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise CheckpointError(
                f"{file.path}: {shown(member.filename)} is compressed, which torch.save never does; save it again"
            )
    return members


def _begin(file: UntrustedFile, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin, which all lie in the file."""
    header = file.read(member.header_offset, 30)
    if header[:4] != b"PK\x03\x04":
        raise CheckpointError(f"{file.path}: damaged: no member of the zip at byte {member.header_offset:,}")
    begin = member.header_offset + 30 + sum(struct.unpack_from("<HH", header, 26))
    if begin + member.file_size > file.size:
        raise CheckpointError(f"{file.path}: truncated at {shown(member.filename)}")
    return begin


def _content(file: UntrustedFile, member: zipfile.ZipInfo, most: int) -> bytes:
    """A small member as a whole."""
    if member.file_size > most:
        raise CheckpointError(
            f"{file.path}: {shown(member.filename)} has {member.file_size:,} bytes, where at most {most:,} are believed"
        )
    data = file.read(_begin(file, member), member.file_size)
    if zlib.crc32(data) != member.CRC:
        raise CheckpointError(f"{file.path}: damaged: {shown(member.filename)} has another checksum")
    return data


def _stored(path: Path, name: str, view: View, places: Places) -> Stored:
    """A tensor of the pickle as a place in the file, all of it within its storage."""
    place = f"{path}: {shown(name)}"
    check_shape(place, view.shape)
    if view.storage.key not in places:
        raise CheckpointError(f"{place} lies in the storage {shown(view.storage.key)}, which is missing")
    begin, size, checked = places[view.storage.key]
    item = view.dtype.itemsize
    if view.storage.size != size:
        raise CheckpointError(f"{place} has a storage of another size than its {size:,} bytes")
    stride = None if _is_contiguous(view) else view.stride
    stored = Stored(path, begin + view.offset * item, view.dtype, view.shape, stride, checked)
    if stored.count and (view.offset * item + stored.extent > size or stored.count * item > size or _overlaps(view)):
        raise CheckpointError(f"{place} lies outside its storage of {size:,} bytes, or over itself")
    return stored


def _is_contiguous(view: View) -> bool:
    expected = [math.prod(view.shape[axis + 1 :]) for axis in range(len(view.shape))]
    return all(
        size == 1 or step == wanted for size, step, wanted in zip(view.shape, view.stride, expected, strict=True)
    )


def _overlaps(view: View) -> bool:
    """Whether two of a view's elements lie in one place (or could)."""
    reach = 0
    for step, size in sorted((step, size) for step, size in zip(view.stride, view.shape, strict=True) if size > 1):
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False
