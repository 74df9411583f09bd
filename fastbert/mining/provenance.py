"""What a file of mined negatives was made from: a JSON file beside it, which decides if it can be reused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.checksums import sha256
from fastbert.io.untrusted_input import read_json_object, shown

FORMAT, VERSION = "fastbert-mined-negatives", 1
_MODEL_FILES = (".safetensors", ".bin", ".json", ".txt", ".model")


def record_path(out: Path) -> Path:
    """Return the path of the record of a file of negatives."""
    return out.with_name(f"{out.name}.json")


def folder_sha256(folder: Path) -> str:
    """Return a SHA-256, in hexadecimal, of the names and contents of a model's files: weights, configuration,
    tokenizer."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.suffix in _MODEL_FILES and file.is_file():
            digest.update(f"{file.relative_to(folder).as_posix()} {sha256(file)}\n".encode())
    return digest.hexdigest()


def reusable_counts(out: Path, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the counts of a file that was mined from the same inputs, or None if there is no file.

    Raises UserError for a file without a record, with a record of a newer version, mined from other inputs, or changed
    since.
    """
    cure = "give another name, or --overwrite to replace it"
    if not out.exists():
        return None
    path = record_path(out)
    if not path.is_file():
        raise UserError(f"{out} exists, and no {path.name} beside it says how it was mined; {cure}")
    record = read_json_object(path)
    if record.get("format") != FORMAT:
        raise UserError(f"{path}: is not a record of mined negatives (format {shown(record.get('format'))}); {cure}")
    version = record.get("version")
    if version != VERSION:
        raise UserError(f"{path}: has version {shown(version)}, and this release reads {VERSION}; {cure}")
    stored = record.get("inputs")
    stored = stored if isinstance(stored, dict) else {}
    different = [name for name in {**inputs, **stored} if stored.get(name) != inputs.get(name)]
    if different:
        listed = ", ".join(_difference(name, stored.get(name), inputs.get(name)) for name in sorted(different))
        raise UserError(f"{out} was mined from other inputs: {listed}; {cure}")
    if record.get("sha256") != sha256(out):
        raise UserError(f"{out} was changed after it was mined; train on it as a file of its own, or {cure}")
    counts = record.get("counts")
    if not isinstance(counts, dict):
        raise UserError(f"{path}: has no counts; {cure}")
    return counts


def describe(
    out: Path, inputs: Mapping[str, Any], names: Mapping[str, Any], counts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of a finished file at `out`; `names` inform and decide nothing."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "sha256": sha256(out),
        "inputs": dict(inputs),
        "names": dict(names),
        "counts": dict(counts),
    }


def _difference(name: str, stored: object, value: object) -> str:
    if name.endswith("_sha256"):
        return f"the {name.removesuffix('_sha256').replace('_', ' ')}"
    return f"{name}={shown(stored)}, not {shown(value)}"
