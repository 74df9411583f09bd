"""Read untrusted safetensors files and write them atomically, as one file or as shards with an index.

A file consists of the header's size (eight bytes), the header (JSON: name -> dtype, shape, begin and end), and the
tensors' bytes, without gaps. The whole header is checked before any tensor is read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from fastbert.checkpoints.file_tensors import MAX_DIMENSIONS, MAX_ELEMENTS, FileTensor
from fastbert.checkpoints.formats.dtypes import DTYPES
from fastbert.checkpoints.formats.names import WEIGHTS, WEIGHTS_INDEX, WEIGHTS_PATTERNS
from fastbert.checkpoints.formats.safetensors_stream import stream_safetensors
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import atomic_write
from fastbert.io.untrusted_input import MAX_JSON_BYTES, UntrustedFile, parse_json, shown


def read_safetensors(path: Path) -> dict[str, FileTensor]:
    """Return the tensors of a file, without reading them. Raises `CheckpointError` for a damaged file."""
    return read_with_metadata(path)[0]


def read_with_metadata(path: Path) -> tuple[dict[str, FileTensor], dict[str, str]]:
    """Return the tensors of a file, as `read_safetensors` does, and its metadata: texts by name."""
    with UntrustedFile(path) as file:
        if file.size < 8:
            raise CheckpointError(f"{path}: not a complete safetensors file: {file.size} bytes")
        length = int.from_bytes(file.read(0, 8), "little")
        if length > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path}: not a safetensors file, or damaged: a header of {length:,} bytes; at most"
                f" {MAX_JSON_BYTES:,} are read"
            )
        if 8 + length > file.size:
            raise CheckpointError(f"{path}: not a complete safetensors file: its header extends beyond its end")
        header = parse_json(file.read(8, length), f"{path}, header")
        data_size = file.size - 8 - length
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: not a safetensors file: its header is not a JSON object")
    entry = header.pop("__metadata__", None)
    texts = entry.items() if isinstance(entry, dict) else ()
    metadata = {name: text for name, text in texts if isinstance(text, str)}
    tensors = {name: _read_entry(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_tiling(path, tensors, 8 + length, data_size)
    return tensors, metadata


def _read_entry(path: Path, name: str, entry: Any, base: int) -> FileTensor:
    """Return the tensor that an entry of the header describes, after comparing its shape with its size in bytes."""
    where = f"{path}: {shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} is not described by dtype, shape and data_offsets: not a safetensors file")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise CheckpointError(f"{where} has the dtype {shown(code)}, which is not supported")
    check_shape(where, shape)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise CheckpointError(f"{where} has the data_offsets {shown(offsets)}, which are not a begin and an end")
    size, (begin, end) = math.prod(shape) * DTYPES[code].itemsize, offsets
    if end - begin != size:
        raise CheckpointError(
            f"{where} has {shown(end - begin)} bytes, but {code} of shape {shown(shape)} takes {shown(size)}"
        )
    return FileTensor(path, base + begin, DTYPES[code], tuple(shape))


def check_shape(where: str, shape: Any) -> None:
    """Raise `CheckpointError` for a value that is not a shape, or a shape with more elements than a file can hold."""
    if not isinstance(shape, list | tuple) or not all(map(_is_size, shape)) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"{where} has the shape {shown(shape)}, which is not valid")
    if max(shape, default=0) > MAX_ELEMENTS or math.prod(shape) > MAX_ELEMENTS:
        raise CheckpointError(f"{where} has the shape {shown(shape)}, which is too large for a file")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_tiling(path: Path, tensors: Mapping[str, FileTensor], base: int, data_size: int) -> None:
    """Raise `CheckpointError` for tensors that overlap, leave gaps or extend beyond the end of the file."""
    end = base
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].extent)):
        if tensor.offset != end:
            defect = "overlaps the tensor before it" if tensor.offset < end else "leaves a gap before it"
            raise CheckpointError(f"{path}: damaged: {shown(name)} {defect}")
        end += tensor.extent
    if end != base + data_size:
        raise CheckpointError(
            f"{path}: not a complete safetensors file: its tensors take {end - base:,} bytes, but {data_size:,} follow"
            " its header"
        )


def write_safetensors(folder: Path, tensors: Mapping[str, Tensor], max_bytes: int | None = None) -> list[str]:
    """Write contiguous CPU tensors as `model.safetensors`, or as shards of at most `max_bytes` with an index.

    All files are written before the first one appears, and the index appears last; older safetensors weights in the
    folder are removed. Returns the files' names. Raises `CheckpointError` if the files cannot be written.
    """
    shards = _split(tensors, max_bytes)
    count = len(shards)
    names = [WEIGHTS] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    if count > 1:
        names.append(WEIGHTS_INDEX)
    try:
        with ExitStack() as stack:
            # Files appear in reverse order: the index last.
            partials = {name: stack.enter_context(atomic_write(folder / name)) for name in reversed(names)}
            for name, shard in zip(names, shards, strict=False):
                save_tensors({key: tensors[key] for key in shard}, partials[name], {"format": "pt"})
            if count > 1:
                size = sum(tensor.nbytes for tensor in tensors.values())
                index = {"metadata": {"total_size": size}, "weight_map": weight_map}
                text = json.dumps(index, indent=2, sort_keys=True) + "\n"
                partials[WEIGHTS_INDEX].write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{folder / names[0]}: could not be written ({error}); free some disk space or choose another folder"
        ) from error
    for old in [path for pattern in WEIGHTS_PATTERNS for path in folder.glob(pattern)]:
        if old.name not in names:
            old.unlink(missing_ok=True)
    return names


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to one safetensors file, whose bytes are those of the safetensors library's; equal contents give
    equal bytes. Raises OSError, and `CheckpointError` for a dtype that the format lacks."""
    with path.open("wb", buffering=1 << 20) as file:
        for part in stream_safetensors(tensors, metadata):
            file.write(part)


def in_bytes(size: int | str) -> int:
    """Return a size in bytes: a number, or a text with a unit such as "5GB", "200MB", "64KB". Raises `UserError`."""
    match = re.fullmatch(r"(\d{1,18})\s*([KMGT]?i?B?)", str(size).strip(), re.IGNORECASE)
    if match is None or int(match[1]) < 1 or isinstance(size, bool):
        raise UserError(f"max_shard_size={size!r} must be a positive number of bytes, or one with a unit, such as 2GB")
    unit = match[2].upper().removesuffix("B")
    step = 1024 if unit.endswith("I") else 1000
    return int(match[1]) * int(step ** " KMGT".index(unit[:1] or " "))


def _split(tensors: Mapping[str, Tensor], max_bytes: int | None) -> list[list[str]]:
    """Return the names of each shard: in order, as many as fit `max_bytes`; a larger tensor has its own shard."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if max_bytes is not None and shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards
