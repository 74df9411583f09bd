"""Whatever a model's weights come in, found and looked at: a folder, a TensorFlow prefix, a name in the Hub's cache."""

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
from fastbert.checkpoints.key_mapping import weights_of_bundle
from fastbert.checkpoints.manifest import MODEL, verify_files
from fastbert.errors import CheckpointError, UserError
from fastbert.io.untrusted_input import UntrustedFile, shown

Kind = Literal["safetensors", "pickle", "tensorflow"]
_STATE_LINE = re.compile(r'^model_checkpoint_path: "([^"/\\]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Weights:
    """Where a checkpoint's tensors lie."""

    place: Path
    """The folder, or TensorFlow's prefix."""
    kind: Kind
    tensors: dict[str, FileTensor]
    """By the names of the files; TensorFlow's weights by ours."""
    origins: dict[str, str] = field(default_factory=dict)
    """Names -> TensorFlow's."""

    @property
    def folder(self) -> Path:
        """Where the files beside the weights lie."""
        return self.place.parent if self.kind == "tensorflow" else self.place


def find_source(source: str | Path, revision: str = hub.MAIN) -> Path:
    """A folder, or a TensorFlow prefix, or a Hub id's folder in the local cache. Raises `UserError`."""
    text = os.fspath(source)
    path = Path(text)
    if "\0" in text:
        raise UserError(f"{shown(text)}: no path holds a NUL")
    if path.is_dir() or (path.name and index_file(path).is_file()):
        return path
    if path.name.endswith(INDEX) and path.is_file():
        return path.with_name(path.name.removesuffix(INDEX))
    if path.exists():
        raise UserError(f"{path}: is a file; name the folder that holds it, with its config.json")
    if isinstance(source, str) and hub.is_id(text):
        return hub.find_snapshot(text, revision)
    raise UserError(f"{path}: no such folder; name one with config.json and {WEIGHTS}, or a model in the Hub's cache")


def config_place(place: Path) -> Path:
    """What `BertConfig.from_pretrained` reads for a place that `find_source` found."""
    return place if place.is_dir() else place.parent


def find_weights(place: Path, pickles: bool = False, *, verify: bool = True) -> Weights:
    """The weights in what `find_source` found: safetensors before pickles, which are read only if asked, before
    TensorFlow's. Where a manifest lists them all are read once and compared, unless `verify` is False; else nothing but
    their index is read. Raises `UserError` or `CheckpointError`."""
    verify_files(config_place(place), MODEL, verify=verify)
    if not place.is_dir():
        return _bundle(place)
    if (place / WEIGHTS).exists():
        return Weights(place, "safetensors", read_safetensors(place / WEIGHTS))
    if (place / WEIGHTS_INDEX).exists():
        return Weights(place, "safetensors", read_shards(place / WEIGHTS_INDEX, read_safetensors))
    prefix = _prefix_in(place)
    pickled = (place / PICKLED).exists() or (place / PICKLED_INDEX).exists()
    if pickled and not pickles and prefix is None:
        raise UserError(
            f"{place}: holds no {WEIGHTS}, only {PICKLED}; pass pickles=True to read it without executing it, or"
            f" rewrite it with `fastbert convert {place} --pickles --out FOLDER`"
        )
    if pickled and pickles:
        if (place / PICKLED).exists():
            return Weights(place, "pickle", read_pickle(place / PICKLED))
        return Weights(place, "pickle", read_shards(place / PICKLED_INDEX, read_pickle))
    if prefix is not None:
        return _bundle(prefix)
    others = ", ".join(sorted(path.name for path in place.iterdir())[:8]) or "nothing"
    raise UserError(f"{place}: holds no {WEIGHTS} (found {others}); name a folder with a model's weights")


def _bundle(prefix: Path) -> Weights:
    weights, origins = weights_of_bundle(read_bundle(prefix))
    return Weights(prefix, "tensorflow", weights, origins)


def _prefix_in(folder: Path) -> Path | None:
    """The TensorFlow checkpoint of a folder: its only one, or the one that its file `checkpoint` names."""
    found = [path.with_name(path.name.removesuffix(INDEX)) for path in sorted(folder.glob(f"*{INDEX}"))]
    if len(found) <= 1:
        return found[0] if found else None
    if (folder / "checkpoint").exists():
        with UntrustedFile(folder / "checkpoint") as file:
            text = file.read(0, min(file.size, 1 << 20)).decode("utf-8", errors="replace")
        named = _STATE_LINE.search(text)
        if named and folder / named[1] in found:
            return folder / named[1]
    raise CheckpointError(
        f"{folder}: holds {len(found)} TensorFlow checkpoints; name one of them: {', '.join(map(str, found[:4]))}"
    )
