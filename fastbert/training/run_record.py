"""RUN/config.json: the configuration of a run, with its own SHA-256, compared with that of its checkpoints."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Collection, Mapping
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
    """Return the values as read back from a JSON file."""
    copied: dict[str, Any] = json.loads(json.dumps(values))
    return copied


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with their SHA-256."""
    copied = plain(values)
    return {**copied, _SEAL: _digest(copied)}


def is_sealed(values: Mapping[str, Any]) -> bool:
    """Return True if the values are unchanged since `sealed`."""
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

    Raises `UserError` for a different kind of file, one of another version, and one that was changed since it was
    written; where a checkpoint stores the configuration too, the message names the difference.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        saved = read_json_file(path)
    except CheckpointError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise UserError(f"{path}: not a run's configuration ({reason}); {_cure(folder)}") from None
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


def stored_run(
    folder: Path, run: str, changeable: Collection[str], on_message: Callable[[str], None]
) -> dict[str, Any] | None:
    """Return what config.json holds of a run, or, where that is missing, its newest whole checkpoint; None where there
    is neither. Raises `UserError` as `read_record` does."""
    saved = read_record(folder, run, changeable)
    if saved is not None or (last := checkpoint.last_state(folder / "checkpoints")) is None:
        return saved
    source, state = last
    on_message(f"{folder / FILE} is missing: the configuration is taken from {source}")
    stored = checkpoint.require(state, "configuration", dict)
    return {**stored, "vocabulary": state.get("vocabulary"), "data": state.get("data")}


def _cure(folder: Path) -> str:
    if checkpoint.find(folder / "checkpoints"):
        return "put the run's own back, or delete it to continue with the configuration of its checkpoints"
    return "put the run's own back, or start again with another --out"


def looks_like_run(folder: Path, run: str) -> bool:
    """Return True if a folder holds a run of this kind, damaged or of any version, which --overwrite may remove."""
    try:
        saved = read_json_file(folder / FILE)
    except CheckpointError:
        return False
    return isinstance(saved, dict) and isinstance(saved.get(run), dict) and "format_version" in saved


def check_configuration(
    folder: Path, saved: Mapping[str, Any], source: Path, state: Mapping[str, Any], except_for: Collection[str]
) -> None:
    """Raise `UserError` if config.json differs from the configuration in the state of the checkpoint `source`, flags in
    `except_for` aside; the message names the first difference."""
    for section, expected in checkpoint.require(state, "configuration", dict).items():
        actual = saved.get(section)
        if isinstance(expected, dict):
            actual = actual if isinstance(actual, dict) else {}
            names = [name for name in sorted(expected.keys() | actual.keys()) if name not in except_for]
            pairs = [(name, actual.get(name), expected.get(name)) for name in names]
        else:
            pairs = [(section, actual, expected)]
        for name, value, stored in pairs:
            if value != stored:
                value, stored = json.dumps(value), json.dumps(stored)
                raise UserError(
                    f"{folder / FILE}: has {name}={value}, but {source} was written with {name}={stored}; put"
                    f" {name}={stored} back, or delete {FILE} to continue with the checkpoint's configuration"
                )
