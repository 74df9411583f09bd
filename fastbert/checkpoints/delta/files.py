"""A fine-tuned model as one file that holds only what differs from its base.

The file is safetensors: bytes for each tensor that changed, and a JSON header in its metadata, with a version and a
SHA-256 of its own. It names the base by the SHA-256 of its tensors, and what must come out by another, so neither a
wrong base nor a damaged file gives a wrong model. config.json and the tokenizer's files travel along where they are not
the base's. docs/deltas.md has the layout.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.delta.differences import MOST_BITS, expand, squeeze
from fastbert.checkpoints.delta.tensors import Part, decode, encode, fingerprint, tensors_of
from fastbert.checkpoints.file_tensors import FileTensor
from fastbert.checkpoints.formats.safetensors import (
    DTYPES,
    check_shape,
    order_metadata,
    read_with_metadata,
    save_tensors,
    write_safetensors,
)
from fastbert.checkpoints.manifest import KINDS, verify_files
from fastbert.checkpoints.manifest import NAME as MANIFEST
from fastbert.checkpoints.source import config_place, find_source, find_weights
from fastbert.checkpoints.tokenizer_files import accept_folder
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import atomic_write
from fastbert.io.untrusted_input import UntrustedFile, parse_json, shown
from fastbert.models.loading import MOST_NEW

FORMAT, VERSION = "fastbert-delta", 1
FILE = "file:"
MOST_FILE = 32 << 20
"""Bytes of a file that travels along."""
_CARRIED = re.compile(
    r"[A-Za-z0-9_][\w.-]{0,99}\.(?:json|txt)"
    # Of sentence-transformers.
    r"|[1-9]_(?:Pooling|Dense|Normalize)/config\.json|[1-9]_Dense/model\.safetensors"
)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


@dataclass(frozen=True, kw_only=True)
class Error:
    """How far numbers that were rounded to a few bits are from the model's own."""

    max: float
    rms: float
    difference_rms: float
    """How far the model's own are from the base's, to compare with."""


@dataclass(frozen=True, kw_only=True)
class CarriedFile:
    """A file beside the weights; `own`: its content is in the delta, else it is the base's."""

    name: str
    size: int
    sha256: str
    own: bool


@dataclass(frozen=True, kw_only=True)
class DeltaReport:
    """What a delta holds."""

    model: str
    base: str
    out: str
    bits: int | None
    """None: the model comes back bit by bit."""
    tensors: dict[str, int]
    """How many are the "same" as the base's, kept as "exact" or "rounded" differences, or "whole"."""
    bytes: int
    model_bytes: int
    error: Error | None
    files: list[str]
    """Those that are not the base's."""

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"kind": "delta", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A delta file that has been looked at; nothing but its header is in memory."""

    path: Path
    base_sha256: str
    model_sha256: str
    bits: int | None
    error: Error | None
    parts: tuple[Part, ...]
    files: tuple[CarriedFile, ...]
    stored: Mapping[str, FileTensor]

    def tensors(self, base: Mapping[str, Tensor], base_sha256: str | None = None) -> dict[str, Tensor]:
        """The model's tensors; those that are the base's are the same objects. Raises `CheckpointError` for another
        base (whose fingerprint may be given, if it is known) and for damage."""
        if (base_sha256 or fingerprint(base)) != self.base_sha256:
            raise CheckpointError(
                f"{self.path}: belongs to another base than this one; name the folder with the weights that the model"
                f" was fine-tuned from (SHA-256 of their tensors {self.base_sha256[:16]}...)"
            )
        _check_room(self, base)
        found = {}
        for part in self.parts:
            data = self.stored[part.name].read().numpy().data if part.name in self.stored else memoryview(b"")
            try:
                found[part.name] = decode(part, data, base, self.bits)
            except ValueError as error:
                raise CheckpointError(f"{self.path}: damaged: {shown(part.name)} ({error})") from None
        if fingerprint(found) != self.model_sha256:
            raise CheckpointError(f"{self.path}: damaged: its tensors have another checksum; fetch the file again")
        return found

    def content(self, file: CarriedFile, base: Path) -> bytes:
        """What is in a file that travels along. Raises `CheckpointError` where it is not what it was."""
        if file.own:
            try:
                data = expand(self.stored[FILE + file.name].read().numpy().data, file.size)
            except ValueError as error:
                raise CheckpointError(f"{self.path}: damaged: {file.name} ({error})") from None
        else:
            with UntrustedFile(base / file.name) as opened:
                data = opened.read(0, min(opened.size, MOST_FILE))
        if hashlib.sha256(data).hexdigest() != file.sha256:
            where = self.path if file.own else base / file.name
            raise CheckpointError(f"{where}: is not what it was when {self.path.name} was written; fetch it again")
        return data


def write_delta(
    model_folder: str | Path,
    base_folder: str | Path,
    out: str | Path,
    *,
    bits: int | None = None,
    overwrite: bool = False,
) -> DeltaReport:
    """Write what the model in a folder has that its base has not, to the file `out`.

    Without `bits` the model comes back bit by bit. With `bits`, 1 to 8, differences of matrices are rounded to so many
    bits each, and the report says how far from the model that is. Raises `UserError` for folders and numbers that will
    not do, and where the disk refuses; a file has its name when it is whole.
    """
    if bits is not None and (isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MOST_BITS):
        raise UserError(f"bits={bits!r} must be a whole number from 1 to {MOST_BITS}, or None for a model bit by bit")
    out = Path(out)
    _refuse_present(out, overwrite)
    model, base = find_source(model_folder), find_source(base_folder)
    for place in (model, base):
        verify_files(config_place(place), *KINDS)
    own, others = (tensors_of(find_weights(place, verify=False)) for place in (model, base))  # checked above
    parts, payload, restored = [], {}, {}
    for name, tensor in own.items():
        part, data = encode(name, tensor, others, bits)
        parts.append(part)
        restored[name] = tensor
        if part.coding != "same":
            payload[name] = data
        if part.coding == "rounded":
            restored[name] = decode(part, memoryview(data), others, bits)
    files, contents = _carry(config_place(model), config_place(base))
    payload |= {FILE + name: squeeze(content) for name, content in contents.items()}
    error = None if bits is None else _error(parts, own, restored, others)
    header = {
        "base": {"sha256": fingerprint(others)},
        "model": {"sha256": fingerprint(restored)},
        "bits": bits,
        "error": None if error is None else asdict(error),
        "tensors": [{**asdict(part), "factor": part.factor.hex()} for part in parts],
        "files": [asdict(file) for file in files],
    }
    _save(out, header, payload)
    return DeltaReport(
        model=str(model),
        base=str(base),
        out=str(out),
        bits=bits,
        tensors=dict(Counter(part.coding for part in parts)),
        bytes=out.stat().st_size,
        model_bytes=sum(tensor.nbytes for tensor in own.values()),
        error=error,
        files=sorted(contents),
    )


def open_delta(path: str | Path) -> Delta:
    """Look at a delta file, and refuse one that is damaged or of another version, with `CheckpointError`."""
    path = Path(path)
    stored, metadata = read_with_metadata(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path}: is no delta file; `fastbert convert MODEL --base BASE --out FILE` writes one")
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path}: a delta file of version {shown(metadata.get('version'))}, where {VERSION} is read; use a newer"
            " fastbert, or write it again"
        )
    text = metadata.get("header", "").encode()
    if hashlib.sha256(text).hexdigest() != metadata.get("sha256"):
        raise CheckpointError(f"{path}: damaged: its header has another checksum; fetch the file again")
    header = parse_json(text, f"{path}, header")
    try:
        return _believed(path, header, stored)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not a delta file that was written by fastbert ({shown(error)})") from None


def read_delta(delta_file: str | Path, base_folder: str | Path) -> dict[str, Tensor]:
    """The tensors of the model that a delta and its base are. Raises `CheckpointError` for another base and damage."""
    return open_delta(delta_file).tensors(tensors_of(find_weights(find_source(base_folder))))


def restore_delta(
    delta_file: str | Path, base_folder: str | Path, out_folder: str | Path, *, overwrite: bool = False
) -> list[str]:
    """Write the whole model, a Hugging Face folder; returns its files. Nothing is written where anything is wrong."""
    out, base = Path(out_folder), find_source(base_folder)
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; name a folder")
    if out.exists() and out.samefile(config_place(base)):
        raise UserError(f"--out {out}: is the base; name another folder")
    present = sorted(path.name for pattern in ("config.json", "*.safetensors") for path in out.glob(pattern))
    if present and not overwrite:
        raise UserError(f"--out {out}: already holds {present[0]}; replace it with --overwrite")
    delta = open_delta(delta_file)
    contents = {file.name: delta.content(file, config_place(base)) for file in delta.files}
    tensors = delta.tensors(tensors_of(find_weights(base)))
    with atomic_folder(out, superseded=("model*.safetensors*",)) as folder:
        write_safetensors(folder, {name: tensor.contiguous() for name, tensor in tensors.items()})
        for name, content in contents.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        accept_folder(folder)
        return sorted(path.name for path in folder.iterdir())


def _refuse_present(out: Path, overwrite: bool) -> None:
    if out.is_dir() or not out.absolute().parent.is_dir():
        wrong = "is a folder" if out.is_dir() else "cannot be made: its folder is missing"
        raise UserError(f"--out {out} {wrong}; name a file")
    if out.exists() and not overwrite:
        raise UserError(f"--out {out} exists; give another name, or --overwrite to replace it")


def _carry(model: Path, base: Path) -> tuple[list[CarriedFile], dict[str, bytes]]:
    """The small files beside a model's weights, and the contents of those that are not the base's."""
    files, contents = [], {}
    for path in sorted([*model.iterdir(), *model.glob("[1-9]_*/*")]):
        name = path.relative_to(model).as_posix()
        if not _CARRIED.fullmatch(name) or name.endswith((".index.json", MANIFEST)) or not path.is_file():
            continue
        if path.stat().st_size > MOST_FILE:
            continue
        content, other = path.read_bytes(), base / name
        own = not (other.is_file() and other.stat().st_size == len(content) and other.read_bytes() == content)
        digest = hashlib.sha256(content).hexdigest()
        files.append(CarriedFile(name=name, size=len(content), sha256=digest, own=own))
        if own:
            contents[name] = content
    return files, contents


def _error(
    parts: list[Part], own: Mapping[str, Tensor], restored: Mapping[str, Tensor], base: Mapping[str, Tensor]
) -> Error:
    """Over all numbers that were rounded."""
    most, squares, moved, count = 0.0, 0.0, 0.0, 0
    for part in parts:
        if part.coding != "rounded" or part.base is None:
            continue
        wrong = restored[part.name].double() - own[part.name].double()
        most = max(most, float(wrong.abs().max()))
        squares += float(wrong.square().sum())
        moved += float((own[part.name].double() - base[part.base].double()).square().sum())
        count += wrong.numel()
    count = max(count, 1)
    return Error(max=most, rms=(squares / count) ** 0.5, difference_rms=(moved / count) ** 0.5)


def _save(out: Path, header: dict[str, Any], payload: Mapping[str, bytes]) -> None:
    text = json.dumps(header)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "header": text,
    }
    tensors = {
        name: torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        for name, data in payload.items()
    }
    try:
        with atomic_write(out) as partial:
            save_tensors(tensors, partial, metadata)
            order_metadata(partial)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{out}: could not be written ({error}); free some disk space") from error


def _believed(path: Path, header: Any, stored: Mapping[str, FileTensor]) -> Delta:
    """A header whose every value is what it must be."""
    bits = header["bits"]
    if bits is not None and (type(bits) is not int or not 1 <= bits <= MOST_BITS):
        raise ValueError(f"bits {shown(bits)}")
    error = header["error"]
    parts = tuple(_part(path, one, bits) for one in header["tensors"])
    files = tuple(CarriedFile(**one) for one in header["files"])
    for file in files:
        sized = type(file.size) is int and 0 <= file.size <= MOST_FILE and type(file.own) is bool
        if not _CARRIED.fullmatch(file.name) or file.name.endswith(".index.json") or not sized:
            raise ValueError(f"the file {shown(file.name)}")
    needed = [part.name for part in parts if part.coding != "same"] + [FILE + file.name for file in files if file.own]
    names = [part.name for part in parts] + [FILE + file.name for file in files]
    flat = all(one.dtype == torch.uint8 and len(one.shape) == 1 for one in stored.values())
    if sorted(needed) != sorted(stored) or len(set(names)) != len(names) or not flat:
        raise ValueError("its tensors are not those of the header")
    return Delta(
        path=path,
        base_sha256=str(header["base"]["sha256"]),
        model_sha256=str(header["model"]["sha256"]),
        bits=bits,
        error=None if error is None else Error(**{name: float(value) for name, value in error.items()}),
        parts=parts,
        files=files,
        stored=stored,
    )


def _part(path: Path, entry: dict[str, Any], bits: int | None) -> Part:
    part = Part(**entry)
    check_shape(f"{path}: {shown(part.name)}", part.shape)
    factor = float.fromhex(entry["factor"])
    known = part.coding in ("same", "exact", "rounded", "whole") and part.dtype in _DTYPES
    based = part.base is None if part.coding == "whole" else isinstance(part.base, str)
    rounded = part.coding != "rounded" or (bits is not None and len(part.shape) > 1)
    shrunk = factor == 1.0 or (0.0 < factor < 1.0 and part.dtype == "float32")
    if not (isinstance(part.name, str) and known and based and rounded and shrunk):
        raise ValueError(f"the tensor {shown(part.name)}")
    return replace(part, shape=tuple(part.shape), factor=factor)


def _check_room(delta: Delta, base: Mapping[str, Tensor]) -> None:
    """Refuse tensors that the base does not have, and new ones of which nobody fine-tunes so many."""
    new = 0
    for part in delta.parts:
        if part.base is None:
            new += int(torch.Size(part.shape).numel())
            continue
        other = base.get(part.base)
        if other is None or tuple(other.shape) != part.shape or other.dtype != _DTYPES[part.dtype]:
            raise CheckpointError(f"{delta.path}: damaged: {shown(part.name)} is not of the base's shape")
    if new > 4 * sum(tensor.numel() for tensor in base.values()) + MOST_NEW:
        raise CheckpointError(f"{delta.path}: damaged: asks for {new:,} new weights, many more than its base has")
