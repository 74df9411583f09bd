"""Open the weights at the path of a model, in whichever format its files are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fastbert.checkpoints.file_tensors import FileTensor
from fastbert.checkpoints.formats.names import PICKLED, PICKLED_INDEX, TENSORFLOW_INDEX, WEIGHTS, WEIGHTS_INDEX
from fastbert.checkpoints.formats.pickle import read_pickle
from fastbert.checkpoints.formats.safetensors import read_safetensors
from fastbert.checkpoints.formats.shards import read_shards
from fastbert.checkpoints.formats.tensorflow import read_bundle
from fastbert.checkpoints.manifest import MODEL, verify_files
from fastbert.checkpoints.source import config_folder
from fastbert.errors import CheckpointError, UserError
from fastbert.io.untrusted_input import UntrustedFile

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
            f"{source}: holds no {WEIGHTS}, only {PICKLED}; rewrite it with `fastbert convert {source} --pickles --out"
            " FOLDER`, or, in Python, pass pickles=True to read it without executing it"
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
    prefixes = [
        path.with_name(path.name.removesuffix(TENSORFLOW_INDEX)) for path in sorted(folder.glob(f"*{TENSORFLOW_INDEX}"))
    ]
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
