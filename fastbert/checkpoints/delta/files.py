"""Store a fine-tuned model as one file with its differences from a base.

The file is safetensors: bytes for each tensor that changed, and a JSON header in its metadata, with a version and a
SHA-256 of the header. The base and the restored model are identified by the SHA-256 of their tensors, so neither a
wrong base nor a damaged file gives a wrong model. config.json and the tokenizer's files are included if they differ
from the base's. docs/deltas.md describes the format.
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
from torch import Tensor

from fastbert.checkpoints import manifest, tokenizer_files
from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.delta.differences import MAX_BITS, expand, squeeze
from fastbert.checkpoints.delta.tensors import EncodedTensor, decode, encode, fingerprint, tensors_of
from fastbert.checkpoints.file_tensors import FileTensor
from fastbert.checkpoints.formats.safetensors import (
    DTYPES,
    check_shape,
    read_with_metadata,
    save_tensors,
    write_safetensors,
)
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import atomic_write, refuse_present
from fastbert.io.untrusted_input import UntrustedFile, parse_json, shown
from fastbert.models import loading

FORMAT, VERSION = "fastbert-delta", 1
FILE = "file:"
MAX_FILE_BYTES = 32 << 20
"""Maximum size of an included file."""
_INCLUDED = re.compile(
    r"[A-Za-z0-9_][\w.-]{0,99}\.(?:json|txt)"
    # Of sentence-transformers.
    r"|[1-9]_(?:Pooling|Dense|Normalize)/config\.json|[1-9]_Dense/model\.safetensors"
)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


@dataclass(frozen=True, kw_only=True)
class Error:
    """The error of rounding differences to a few bits."""

    max: float
    rms: float
    difference_rms: float
    """Root mean square of the differences themselves, for comparison."""


@dataclass(frozen=True, kw_only=True)
class IncludedFile:
    """A file beside the weights; `own`: its content is in the delta, otherwise it is the base's file."""

    name: str
    size: int
    sha256: str
    own: bool


@dataclass(frozen=True, kw_only=True)
class DeltaReport:
    """The content of a delta that was written."""

    model: str
    base: str
    out: str
    bits: int | None
    """None: the model is restored bit for bit."""
    tensors: dict[str, int]
    """The number of tensors per encoding: "same", "exact", "rounded", "whole"."""
    bytes: int
    model_bytes: int
    error: Error | None
    files: list[str]
    """Files that differ from the base's."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"kind": "delta", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A delta file whose header has been checked; the tensors are not in memory."""

    path: Path
    base_sha256: str
    model_sha256: str
    bits: int | None
    error: Error | None
    entries: tuple[EncodedTensor, ...]
    files: tuple[IncludedFile, ...]
    stored: Mapping[str, FileTensor]

    def tensors(self, base: Mapping[str, Tensor], base_sha256: str | None = None) -> dict[str, Tensor]:
        """Return the model's tensors; tensors equal to the base's are the same objects.

        `base_sha256` is the base's fingerprint, if known. Raises `CheckpointError` for a wrong base and for damage.
        """
        if (base_sha256 or fingerprint(base)) != self.base_sha256:
            raise CheckpointError(
                f"{self.path}: belongs to a different base; name the folder with the weights that the model"
                f" was fine-tuned from (SHA-256 of their tensors {self.base_sha256[:16]}...)"
            )
        _check_sizes(self, base)
        tensors = {}
        for entry in self.entries:
            data = self.stored[entry.name].read().numpy().data if entry.name in self.stored else memoryview(b"")
            try:
                tensors[entry.name] = decode(entry, data, base, self.bits)
            except ValueError as error:
                raise CheckpointError(f"{self.path}: damaged: {shown(entry.name)} ({error})") from None
        if fingerprint(tensors) != self.model_sha256:
            raise CheckpointError(f"{self.path}: damaged: its tensors have the wrong checksum; fetch the file again")
        return tensors

    def content(self, file: IncludedFile, base: Path) -> bytes:
        """Return the content of an included file. Raises `CheckpointError` if it has changed."""
        if file.own:
            try:
                data = expand(self.stored[FILE + file.name].read().numpy().data, file.size)
            except ValueError as error:
                raise CheckpointError(f"{self.path}: damaged: {file.name} ({error})") from None
        else:
            with UntrustedFile(base / file.name) as opened:
                data = opened.read(0, min(opened.size, MAX_FILE_BYTES))
        if hashlib.sha256(data).hexdigest() != file.sha256:
            where = self.path if file.own else base / file.name
            raise CheckpointError(f"{where}: has changed since {self.path.name} was written; fetch it again")
        return data


def write_delta(
    model_folder: str | Path,
    base_folder: str | Path,
    out: str | Path,
    *,
    bits: int | None = None,
    overwrite: bool = False,
) -> DeltaReport:
    """Write the differences of the model in a folder from its base to the file `out`, atomically.

    Without `bits` the model is restored bit for bit. With `bits`, 1 to 8, differences of matrices are rounded to that
    many bits each, and the report holds the error. Raises `UserError` for invalid arguments, and `CheckpointError` for
    damaged checkpoints or if the file cannot be written.
    """
    if bits is not None and (isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MAX_BITS):
        raise UserError(f"bits={bits!r} must be a whole number from 1 to {MAX_BITS}, or None for an exact delta")
    out = Path(out)
    refuse_present(out, overwrite, "--out")
    model, base = find_source(model_folder), find_source(base_folder)
    for source in (model, base):
        manifest.verify_files(config_folder(source), *manifest.KINDS)
    tensors, base_tensors = (
        tensors_of(loading.find_weights(source, verify=False)) for source in (model, base)
    )  # checked above
    entries, payload, restored = [], {}, {}
    for name, tensor in tensors.items():
        entry, data = encode(name, tensor, base_tensors, bits)
        entries.append(entry)
        restored[name] = tensor
        if entry.coding != "same":
            payload[name] = data
        if entry.coding == "rounded":
            restored[name] = decode(entry, memoryview(data), base_tensors, bits)
    files, contents = _read_files(config_folder(model), config_folder(base))
    payload |= {FILE + name: squeeze(content) for name, content in contents.items()}
    error = None if bits is None else _error(entries, tensors, restored, base_tensors)
    header = {
        "base": {"sha256": fingerprint(base_tensors)},
        "model": {"sha256": fingerprint(restored)},
        "bits": bits,
        "error": None if error is None else asdict(error),
        "tensors": [{**asdict(entry), "factor": entry.factor.hex()} for entry in entries],
        "files": [asdict(file) for file in files],
    }
    _save(out, header, payload)
    return DeltaReport(
        model=str(model),
        base=str(base),
        out=str(out),
        bits=bits,
        tensors=dict(Counter(entry.coding for entry in entries)),
        bytes=out.stat().st_size,
        model_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        error=error,
        files=sorted(contents),
    )


def open_delta(path: str | Path) -> Delta:
    """Read the header of a delta file. Raises `CheckpointError` for a damaged file and an unsupported version."""
    path = Path(path)
    stored, metadata = read_with_metadata(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: is not a delta file; `fastbert convert MODEL --base BASE --out FILE` writes one"
        )
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path}: a delta file of version {shown(metadata.get('version'))}, but {VERSION} is supported; use a newer"
            " fastbert, or write it again"
        )
    text = metadata.get("header", "").encode()
    if hashlib.sha256(text).hexdigest() != metadata.get("sha256"):
        raise CheckpointError(f"{path}: damaged: its header has the wrong checksum; fetch the file again")
    header = parse_json(text, f"{path}, header")
    try:
        return _read_header(path, header, stored)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not a delta file written by fastbert ({shown(error)})") from None


def read_delta(delta_file: str | Path, base_folder: str | Path) -> dict[str, Tensor]:
    """Return a model's tensors from its delta and its base. Raises `CheckpointError` for a wrong base and damage."""
    return open_delta(delta_file).tensors(tensors_of(loading.find_weights(find_source(base_folder))))


def restore_delta(
    delta_file: str | Path, base_folder: str | Path, out_folder: str | Path, *, overwrite: bool = False
) -> list[str]:
    """Restore a model as a Hugging Face folder, atomically; return its files. Raises `CheckpointError`, `UserError`."""
    out, base = Path(out_folder), find_source(base_folder)
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; name a folder")
    if out.exists() and out.samefile(config_folder(base)):
        raise UserError(f"--out {out}: is the base; name another folder")
    present = sorted(path.name for pattern in ("config.json", "*.safetensors") for path in out.glob(pattern))
    if present and not overwrite:
        raise UserError(f"--out {out}: already holds {present[0]}; replace it with --overwrite")
    delta = open_delta(delta_file)
    contents = {file.name: delta.content(file, config_folder(base)) for file in delta.files}
    tensors = delta.tensors(tensors_of(loading.find_weights(base)))
    with atomic_folder(out, superseded=("model*.safetensors*",)) as folder:
        write_safetensors(folder, {name: tensor.contiguous() for name, tensor in tensors.items()})
        for name, content in contents.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        tokenizer_files.accept_folder(folder)
        return sorted(path.name for path in folder.iterdir())


def _read_files(model: Path, base: Path) -> tuple[list[IncludedFile], dict[str, bytes]]:
    """Return the small files beside a model's weights, and the contents of those that differ from the base's."""
    files, contents = [], {}
    for path in sorted([*model.iterdir(), *model.glob("[1-9]_*/*")]):
        name = path.relative_to(model).as_posix()
        if not _INCLUDED.fullmatch(name) or name.endswith((".index.json", manifest.NAME)) or not path.is_file():
            continue
        if path.stat().st_size > MAX_FILE_BYTES:
            continue
        content, other = path.read_bytes(), base / name
        differs = not (other.is_file() and other.stat().st_size == len(content) and other.read_bytes() == content)
        digest = hashlib.sha256(content).hexdigest()
        files.append(IncludedFile(name=name, size=len(content), sha256=digest, own=differs))
        if differs:
            contents[name] = content
    return files, contents


def _error(
    entries: list[EncodedTensor],
    tensors: Mapping[str, Tensor],
    restored: Mapping[str, Tensor],
    base: Mapping[str, Tensor],
) -> Error:
    """Return the error over all rounded numbers."""
    largest, error_squares, difference_squares, count = 0.0, 0.0, 0.0, 0
    for entry in entries:
        if entry.coding != "rounded" or entry.base is None:
            continue
        error = restored[entry.name].double() - tensors[entry.name].double()
        largest = max(largest, float(error.abs().max()))
        error_squares += float(error.square().sum())
        difference_squares += float((tensors[entry.name].double() - base[entry.base].double()).square().sum())
        count += error.numel()
    count = max(count, 1)
    return Error(max=largest, rms=(error_squares / count) ** 0.5, difference_rms=(difference_squares / count) ** 0.5)


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
    except OSError as error:
        raise CheckpointError(f"{out}: could not be written ({error}); free some disk space") from error


def _read_header(path: Path, header: Any, stored: Mapping[str, FileTensor]) -> Delta:
    """Return the delta of a header after checking every value."""
    bits = header["bits"]
    if bits is not None and (type(bits) is not int or not 1 <= bits <= MAX_BITS):
        raise ValueError(f"bits {shown(bits)}")
    error = header["error"]
    entries = tuple(_read_entry(path, entry, bits) for entry in header["tensors"])
    files = tuple(IncludedFile(**file) for file in header["files"])
    for file in files:
        sized = type(file.size) is int and 0 <= file.size <= MAX_FILE_BYTES and type(file.own) is bool
        if not _INCLUDED.fullmatch(file.name) or file.name.endswith(".index.json") or not sized:
            raise ValueError(f"the file {shown(file.name)}")
    needed = [entry.name for entry in entries if entry.coding != "same"] + [
        FILE + file.name for file in files if file.own
    ]
    names = [entry.name for entry in entries] + [FILE + file.name for file in files]
    flat = all(tensor.dtype == torch.uint8 and len(tensor.shape) == 1 for tensor in stored.values())
    if sorted(needed) != sorted(stored) or len(set(names)) != len(names) or not flat:
        raise ValueError("its tensors are not those of the header")
    return Delta(
        path=path,
        base_sha256=str(header["base"]["sha256"]),
        model_sha256=str(header["model"]["sha256"]),
        bits=bits,
        error=None if error is None else Error(**{name: float(value) for name, value in error.items()}),
        entries=entries,
        files=files,
        stored=stored,
    )


def _read_entry(path: Path, values: dict[str, Any], bits: int | None) -> EncodedTensor:
    entry = EncodedTensor(**values)
    check_shape(f"{path}: {shown(entry.name)}", entry.shape)
    factor = float.fromhex(values["factor"])
    known = entry.coding in ("same", "exact", "rounded", "whole") and entry.dtype in _DTYPES
    based = entry.base is None if entry.coding == "whole" else isinstance(entry.base, str)
    rounded = entry.coding != "rounded" or (bits is not None and len(entry.shape) > 1)
    shrunk = factor == 1.0 or (0.0 < factor < 1.0 and entry.dtype == "float32")
    if not (isinstance(entry.name, str) and known and based and rounded and shrunk):
        raise ValueError(f"the tensor {shown(entry.name)}")
    return replace(entry, shape=tuple(entry.shape), factor=factor)


def _check_sizes(delta: Delta, base: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` for tensors that the base lacks, and for implausibly many new weights."""
    new = 0
    for entry in delta.entries:
        if entry.base is None:
            new += int(torch.Size(entry.shape).numel())
            continue
        other = base.get(entry.base)
        if other is None or tuple(other.shape) != entry.shape or other.dtype != _DTYPES[entry.dtype]:
            raise CheckpointError(f"{delta.path}: damaged: {shown(entry.name)} does not have the base's shape")
    if new > 4 * sum(tensor.numel() for tensor in base.values()) + loading.MAX_NEW_ELEMENTS:
        raise CheckpointError(f"{delta.path}: damaged: has {new:,} new weights, many more than its base")
