"""RUN/config.json: the configuration of a run, sealed by its own SHA-256 and compared with its checkpoints."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.io.untrusted_input import read_json_file
from fastbert.training import checkpoint

FILE = "config.json"
FORMAT_VERSION = 3
_SEAL = "sha256"


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as they come back from a JSON file."""
    copied: dict[str, Any] = json.loads(json.dumps(values))
    return copied


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with their own SHA-256 beside them."""
    copied = plain(values)
    return {**copied, _SEAL: _digest(copied)}


def is_sealed(values: Mapping[str, Any]) -> bool:
    """Tell whether nothing has changed since `sealed`."""
    return values.get(_SEAL) == _digest({name: value for name, value in values.items() if name != _SEAL})


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_record(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the config.json of a run, sealed."""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    text = json.dumps(sealed({"format_version": FORMAT_VERSION, **values, **versions}), indent=2) + "\n"
    write_atomic(folder / FILE, text)


def read_record(folder: Path, run: str, changeable: Collection[str]) -> dict[str, Any] | None:
    """Read the config.json of a run whose flags are under the key `run`; None where the folder has no such file.

    A run may be continued with other values of the `changeable` flags.

    Raises `UserError` for a file that is something else, was written by a newer fastbert, or has changed since it was
    written; where a checkpoint holds the configuration too, the message names what differs.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        saved = read_json_file(path)
    except CheckpointError as error:
        raise UserError(f"{path}: not a run's configuration ({_reason(error, path)}); {_cure(folder)}") from None
    if not isinstance(saved, dict) or not isinstance(saved.get(run), dict):
        raise UserError(f"{path}: not a run's configuration; {_cure(folder)}")
    version = saved.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(f"{path}: written by a newer fastbert (format {version}); update fastbert")
    if isinstance(version, int) and 0 < version < FORMAT_VERSION:
        raise UserError(
            f"{path}: has format {version}, from before the first release; start again with another --out, or replace"
            " the run with --overwrite"
        )
    if version != FORMAT_VERSION:
        raise UserError(f"{path}: not a run's configuration (format_version {version!r}); {_cure(folder)}")
    if not is_sealed(saved):
        last = checkpoint.last_state(folder / "checkpoints")
        if last is not None:
            check_configuration(folder, saved, *last, except_for=changeable)
            check_configuration(folder, saved, *last, except_for=("out",))
        raise UserError(f"{path}: changed or damaged since it was written; {_cure(folder)}")
    return saved


def _reason(error: CheckpointError, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ")


def _cure(folder: Path) -> str:
    if checkpoint.find(folder / "checkpoints"):
        return "put the run's own back, or delete it to go on with what its checkpoints say"
    return "put the run's own back, or start again with another --out"


def looks_like_run(folder: Path, run: str) -> bool:
    """Tell whether a folder holds a run of this kind, damaged or of any version: one that --overwrite may remove."""
    try:
        saved = read_json_file(folder / FILE)
    except CheckpointError:
        return False
    return isinstance(saved, dict) and isinstance(saved.get(run), dict) and "format_version" in saved


def check_configuration(
    folder: Path, saved: Mapping[str, Any], place: Path, state: Mapping[str, Any], except_for: Collection[str]
) -> None:
    """Refuse a config.json that contradicts the configuration in a checkpoint's state, flags in `except_for` aside.

    Raises `UserError`, which names the first value that differs.
    """
    held = checkpoint.require(state, "configuration", dict)
    for part, values in held.items():
        own = saved.get(part)
        if not isinstance(values, dict):
            names: Iterable[str] = () if own == values else ("",)
            pairs = {"": (own, values)}
        else:
            own = own if isinstance(own, dict) else {}
            pairs = {name: (own.get(name), values.get(name)) for name in sorted(values.keys() | own.keys())}
            names = (name for name, (one, other) in pairs.items() if one != other and name not in except_for)
        for name in names:
            one, other = (json.dumps(value) for value in pairs[name])
            label = name or part
            raise UserError(
                f"{folder / FILE}: says {label}={one}, but {place} was written with {label}={other}; put"
                f" {label}={other} back, or delete {FILE} to go on with what the checkpoint says"
            )
