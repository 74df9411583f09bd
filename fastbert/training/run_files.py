"""The files in a run's folder: its lock, its tokenizer, its configuration, and what an earlier run has left there.

RUN/config.json holds the configuration with its own SHA-256, and is compared with that of the checkpoints; the
tokenizer is in RUN/tokenizer/, with RUN/vocab.txt beside it where it has one.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.manifest import update_manifest
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_atomic, write_json_atomic
from fastbert.io.checksums import is_sealed, sealed
from fastbert.io.folder_exchange import remove
from fastbert.io.locking import locked_folder
from fastbert.io.untrusted_input import read_json_file, read_json_object
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.training import checkpoint

TOKENIZER, VOCABULARY, TOKENIZER_CONFIG = "tokenizer", "vocab.txt", "tokenizer_config.json"
FILE, FORMAT_VERSION = "config.json", 3
COMMANDS = {"run": "pretrain", "finetune": "finetune", "adapt": "adapt"}
"""The key of a run's flags in config.json, and its command."""


@contextmanager
def locked_run(out: Path) -> Iterator[None]:
    """Lock a run's folder. Raises `UserError` for a file, and while another process writes to the folder."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; give a folder")
    with locked_folder(out, "wait for it to end, or choose another --out"):
        yield


def remove_run(out: Path, names: Sequence[str]) -> None:
    """Remove the named files and folders of a run's folder, and nothing else.

    config.json, which marks the folder as a run's, is removed last, so that an interrupted removal can be repeated.
    """
    for name in sorted(names, key=FILE.__eq__):
        remove(out / name, ignore_errors=True)


def check_spared(out: Path, names: Sequence[str], inputs: Iterable[tuple[str, Path | None]]) -> None:
    """Raise `UserError` if removing the named files would remove an input of the new run, given by flag and path."""
    removed = [out.resolve() / name for name in names]
    for flag, path in inputs:
        if path is not None and any(path.resolve().is_relative_to(target) for target in removed):
            raise UserError(f"{flag} {path}: belongs to the run that --overwrite removes; copy it elsewhere first")


def keep_tokenizer(run: Path, fingerprint: str | None, make: Callable[[], Tokenizer]) -> Tokenizer:
    """Return the tokenizer of a run; where its folder has none, write the one that `make` returns.

    `fingerprint` is that of the run's tokenizer, None until one has been written. Raises `UserError` where a tokenizer
    has a different fingerprint, and where RUN/vocab.txt differs from RUN/tokenizer/vocab.txt.
    """
    folder, original, copy = run / TOKENIZER, run / TOKENIZER / VOCABULARY, run / VOCABULARY
    if fingerprint is not None and folder.exists():
        tokenizer = load_tokenizer(folder)
        _check(tokenizer, fingerprint, folder)
        if copy.exists() and original.exists() and copy.read_bytes() != original.read_bytes():
            raise UserError(f"{copy}: a different vocabulary than {original}; put the run's own back, or delete it")
    else:
        tokenizer = make()
        if fingerprint is not None:
            _check(tokenizer, fingerprint, folder)
        copy.unlink(missing_ok=True)
        with atomic_folder(folder) as partial:
            tokenizer.save_pretrained(partial)
    if original.exists() and not copy.exists():
        write_atomic(copy, original.read_text(encoding="utf-8"))
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, segments: bool) -> None:
    """Write the tokenizer of a trained model to its folder; `segments` tells whether the model has more than one.

    The files tell transformers to return token_type_ids for a model that has segments, if the tokenizer numbers them,
    and not to return them for one that has none, and no rows for them.
    """
    tokenizer.save_pretrained(folder)
    numbered = segments and any(tokenizer.create_token_type_ids_from_sequences([0], [0]))
    names = ["input_ids", *["token_type_ids"] * numbered, "attention_mask"]
    if names == list(tokenizer.model_input_names):
        return
    path = folder / TOKENIZER_CONFIG
    write_json_atomic(path, {**read_json_object(path), "model_input_names": names}, ensure_ascii=False)
    update_manifest(folder, [path.name])


def _check(tokenizer: Tokenizer, fingerprint: str, folder: Path) -> None:
    if tokenizer.fingerprint != fingerprint:
        raise UserError(f"{folder}: holds a different vocabulary than the run began with; put the run's own back")


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as read back from a JSON file."""
    copied: dict[str, Any] = json.loads(json.dumps(values))
    return copied


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
        others = [name for key, name in COMMANDS.items() if key != run and isinstance(saved, dict) and key in saved]
        if others:
            raise UserError(f"--out {folder}: holds a run of `fastbert {others[0]}`; choose another --out")
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


def can_be_replaced(folder: Path, run: str, changeable: Collection[str], results: Sequence[str]) -> bool:
    """Return True if a run of this kind left nothing that a new one could not make again: no checkpoint, and none of
    its `results`. Such a run failed at its start, or was interrupted there."""
    try:
        saved = read_record(folder, run, changeable)
    except UserError:
        return False
    left = any((folder / name).exists() for name in results) or checkpoint.find(folder / "checkpoints")
    return saved is not None and not left


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
            # A flag that the checkpoint lacks is newer than it: the run had the default.
            names = [name for name in sorted(expected) if name not in except_for]
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
