"""safetensors, one file or shards with an index: read with a suspicious eye, written so that nothing is half there.

A file is a number of eight bytes, so many bytes of JSON (name -> dtype, shape, begin and end), and the tensors' bytes
with nothing between or behind them. That is checked, of the whole file, before a name of it is believed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fastbert.checkpoints.file_tensors import MOST_DIMENSIONS, MOST_ELEMENTS, Stored
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import atomic_write
from fastbert.io.untrusted_input import MAX_JSON_BYTES, UntrustedFile, parse_json, shown

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_safetensors(path: Path) -> dict[str, Stored]:
    """Where the tensors of a file lie. Raises `CheckpointError` for a file that is not wholly what the format says."""
    return read_with_metadata(path)[0]


def read_with_metadata(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """Like `read_safetensors`, and what the file says of itself: texts by name."""
    with UntrustedFile(path) as file:
        if file.size < 8:
            raise CheckpointError(f"{path}: not a whole safetensors file: {file.size} bytes")
        length = int.from_bytes(file.read(0, 8), "little")
        if length > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path}: not a safetensors file, or a damaged one: a header of {length:,} bytes, where at most"
                f" {MAX_JSON_BYTES:,} are believed"
            )
        if 8 + length > file.size:
            raise CheckpointError(f"{path}: not a whole safetensors file: its header goes on behind its end")
        header = parse_json(file.read(8, length), f"{path}, header")
        room = file.size - 8 - length
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: not a safetensors file: its header is no JSON object")
    said = header.pop("__metadata__", None)
    texts = said.items() if isinstance(said, dict) else ()
    metadata = {name: text for name, text in texts if isinstance(text, str)}
    found = {name: _entry(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_tiling(path, found, 8 + length, room)
    return found, metadata


def _entry(path: Path, name: str, entry: Any, base: int) -> Stored:
    """One tensor of a header, whose bytes are as many as its shape says."""
    place = f"{path}: {shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{place} is not described by dtype, shape and data_offsets: not a safetensors file")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise CheckpointError(f"{place} has the dtype {shown(code)}, which is not read")
    check_shape(place, shape)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise CheckpointError(f"{place} has the data_offsets {shown(offsets)}, which are no begin and end")
    size, (begin, end) = math.prod(shape) * DTYPES[code].itemsize, offsets
    if end - begin != size:
        raise CheckpointError(
            f"{place} has {shown(end - begin)} bytes, but {code} of shape {shown(shape)} takes {shown(size)}"
        )
    return Stored(path, base + begin, DTYPES[code], tuple(shape))


def check_shape(place: str, shape: Any) -> None:
    """Refuse what is no shape, or one of more numbers than a file can hold."""
    if not isinstance(shape, list | tuple) or not all(map(_is_size, shape)) or len(shape) > MOST_DIMENSIONS:
        raise CheckpointError(f"{place} has the shape {shown(shape)}, which is none")
    if max(shape, default=0) > MOST_ELEMENTS or math.prod(shape) > MOST_ELEMENTS:
        raise CheckpointError(f"{place} has the shape {shown(shape)}, which no file can hold")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_tiling(path: Path, found: Mapping[str, Stored], base: int, room: int) -> None:
    """Refuse tensors that overlap, leave bytes between them or go on behind the end of the file."""
    at = base
    for name, stored in sorted(found.items(), key=lambda item: (item[1].offset, item[1].extent)):
        if stored.offset != at:
            what = "overlaps the one before it" if stored.offset < at else "leaves a hole before it"
            raise CheckpointError(f"{path}: damaged: {shown(name)} {what}")
        at += stored.extent
    if at != base + room:
        raise CheckpointError(
            f"{path}: not a whole safetensors file: its tensors take {at - base:,} bytes, of {room:,} behind its header"
        )


def write_safetensors(folder: Path, tensors: Mapping[str, Tensor], most: int | None = None) -> list[str]:
    """Write contiguous tensors on the CPU as `model.safetensors`, or as shards of at most `most` bytes with an index.

    Every file is whole before it gets its name, the index last; of other weights in safetensors nothing stays. Returns
    the files' names. Raises `CheckpointError` where the disk refuses.
    """
    shards = _split(tensors, most)
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
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder / names[0]}: could not be written ({error}); free some disk space or choose another folder"
        ) from error
    for old in [*folder.glob("model-*-of-*.safetensors"), folder / WEIGHTS, folder / WEIGHTS_INDEX]:
        if old.name not in names:
            old.unlink(missing_ok=True)
    return names


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write contiguous tensors on the CPU to one safetensors file with the mode that any new file gets; the library's
    own is readable by its owner alone. Raises OSError or SafetensorError."""
    path.unlink(missing_ok=True)
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
    path.chmod(mode & 0o7777)


def order_metadata(path: Path) -> None:
    """Put the metadata of a safetensors file in the order of its keys: the library's own order changes from file to
    file, and equal contents should be equal bytes."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
        if len(text) != length:
            raise CheckpointError(f"{path}: its header has another length in order; please report this")
        file.seek(8)
        file.write(text)


def in_bytes(size: int | str) -> int:
    """A size in bytes of a number, or of one with a unit: "5GB", "200MB", "64KB". Raises `UserError`."""
    found = re.fullmatch(r"(\d{1,18})\s*([KMGT]?i?B?)", str(size).strip(), re.IGNORECASE)
    if found is None or int(found[1]) < 1 or isinstance(size, bool):
        raise UserError(f"max_shard_size={size!r} must be a number of bytes from 1 up, or one with a unit, as 2GB")
    unit = found[2].upper().removesuffix("B")
    step = 1024 if unit.endswith("I") else 1000
    return int(found[1]) * int(step ** " KMGT".index(unit[:1] or " "))


def _split(tensors: Mapping[str, Tensor], most: int | None) -> list[list[str]]:
    """Names in shards: as many as fit `most` bytes, in their order; a tensor that is larger has a shard of its own."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if most is not None and shards[-1] and size + tensor.nbytes > most:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards
