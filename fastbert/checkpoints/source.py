"""Find a model's weights: in a folder, at a TensorFlow prefix, or under an id in the Hub's cache."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fastbert.checkpoints import hub
from fastbert.checkpoints.file_tensors import FileTensor
from fastbert.checkpoints.formats.pickle import PICKLED, PICKLED_INDEX, read_pickle
from fastbert.checkpoints.formats.safetensors import WEIGHTS, WEIGHTS_INDEX, read_safetensors
from fastbert.checkpoints.formats.shards import read_shards
from fastbert.checkpoints.formats.tensorflow import INDEX, index_file, read_bundle
from fastbert.checkpoints.manifest import MODEL, verify_files
from fastbert.errors import CheckpointError, UserError
from fastbert.io.untrusted_input import UntrustedFile, shown

Kind = Literal["safetensors", "pickle", "tensorflow"]
_STATE_LINE = re.compile(r'^model_checkpoint_path: "([^"/\\]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Weights:
    """The tensors of a checkpoint, not yet read."""

    path: Path
    """The folder, or TensorFlow's prefix."""
    kind: Kind
    tensors: dict[str, FileTensor]
    """By name."""
    origins: dict[str, str] = field(default_factory=dict)
    """The names in a TensorFlow checkpoint of tensors that have been renamed."""

    @property
    def folder(self) -> Path:
        """Return the folder that holds the weights."""
        return self.path.parent if self.kind == "tensorflow" else self.path


def find_source(source: str | Path, revision: str = hub.MAIN) -> Path:
    """Return the folder, the TensorFlow prefix, or the Hub id's folder in the local cache. Raises `UserError`."""
    text = os.fspath(source)
    path = Path(text)
    if not text:
        raise UserError("'': is empty; name the folder of a model (. is the current one)")
    if "\0" in text:
        raise UserError(f"{shown(text)}: a path must not contain NUL")
    if path.is_dir() or (path.name and index_file(path).is_file()):
        return path
    if path.name.endswith(INDEX) and path.is_file():
        return path.with_name(path.name.removesuffix(INDEX))
    if path.exists():
        raise UserError(f"{path}: is a file; name the folder that holds it, with its config.json")
    if isinstance(source, str) and hub.is_id(text):
        return hub.find_snapshot(text, revision)
    raise UserError(f"{path}: no such folder; name one with config.json and {WEIGHTS}, or a model in the Hub's cache")


def config_folder(source: Path) -> Path:
    """Return the folder with the configuration of a path from `find_source`."""
    return source if source.is_dir() else source.parent


def open_weights(source: Path, pickles: bool = False, *, verify: bool = True) -> Weights:
    """Return the weights at a path from `find_source`, by the names in its files: safetensors, else (with `pickles`)
    pickles, else TensorFlow's.

    Files that a manifest lists are read once and compared, unless `verify` is False; otherwise only indexes are read.
    Raises `UserError` or `CheckpointError`.
    """
    verify_files(config_folder(source), MODEL, verify=verify)
    if not source.is_dir():
        return _read_tensorflow(source)
    if (source / WEIGHTS).exists():
        return Weights(source, "safetensors", read_safetensors(source / WEIGHTS))
    if (source / WEIGHTS_INDEX).exists():
        return Weights(source, "safetensors", read_shards(source / WEIGHTS_INDEX, read_safetensors))
    prefix = _find_prefix(source)
    pickled = (source / PICKLED).exists() or (source / PICKLED_INDEX).exists()
    if pickled and not pickles and prefix is None:
        raise UserError(
            f"{source}: holds no {WEIGHTS}, only {PICKLED}; pass pickles=True to read it without executing it, or"
            f" rewrite it with `fastbert convert {source} --pickles --out FOLDER`"
        )
    if pickled and pickles:
        if (source / PICKLED).exists():
            return Weights(source, "pickle", read_pickle(source / PICKLED))
        return Weights(source, "pickle", read_shards(source / PICKLED_INDEX, read_pickle))
    if prefix is not None:
        return _read_tensorflow(prefix)
    others = ", ".join(sorted(path.name for path in source.iterdir())[:8]) or "nothing"
    raise UserError(f"{source}: holds no {WEIGHTS} (found {others}); name a folder with a model's weights")


def _read_tensorflow(prefix: Path) -> Weights:
    return Weights(prefix, "tensorflow", read_bundle(prefix))


def _find_prefix(folder: Path) -> Path | None:
    """Return the TensorFlow checkpoint of a folder: the only one, or the one that its file `checkpoint` names."""
    prefixes = [path.with_name(path.name.removesuffix(INDEX)) for path in sorted(folder.glob(f"*{INDEX}"))]
    if len(prefixes) <= 1:
        return prefixes[0] if prefixes else None
    if (folder / "checkpoint").exists():
        with UntrustedFile(folder / "checkpoint") as file:
            text = file.read(0, min(file.size, 1 << 20)).decode("utf-8", errors="replace")
        match = _STATE_LINE.search(text)
        if match and folder / match[1] in prefixes:
            return folder / match[1]
    raise CheckpointError(
        f"{folder}: holds {len(prefixes)} TensorFlow checkpoints; name one of them: {', '.join(map(str, prefixes[:4]))}"
    )
