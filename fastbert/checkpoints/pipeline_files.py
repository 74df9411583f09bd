"""The small files by which a folder is a sentence-transformers model: `modules.json`, and a folder for each module."""

from __future__ import annotations

import os
from pathlib import Path

from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import read_json_file, shown

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
ENCODER_CONFIG = "sentence_bert_config.json"
# Older releases gave a file to each kind of encoder.
_OTHER_ENCODERS = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
ENCODER_CONFIGS = (ENCODER_CONFIG, *(f"sentence_{kind}_config.json" for kind in _OTHER_ENCODERS))
PIPELINE_FILES = (MODULES, PROMPTS, *ENCODER_CONFIGS)
# Where a release has them; newer ones know the old names too.
TYPES = "sentence_transformers.models"
MOST_MODULES = 32


def is_there(path: Path) -> bool:
    """Whether anything has this name, a link that leads nowhere included: what is there and damaged is an error."""
    return os.path.lexists(path)


def listed_modules(folder: Path) -> list[tuple[str, Path]]:
    """The last part of each module's type, and its folder: `folder` itself, or one in it. Raises `CheckpointError`."""
    path = folder / MODULES
    listed = read_json_file(path)
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise CheckpointError(f"{path}: must hold a list of modules; restore the file")
    if len(listed) > MOST_MODULES:
        raise CheckpointError(f"{path}: lists {len(listed):,} modules, where at most {MOST_MODULES} are believed")
    found: list[tuple[str, Path]] = []
    for entry in listed:
        kind, name = entry.get("type"), entry.get("path")
        if not isinstance(kind, str) or not isinstance(name, str) or not _is_name(name):
            raise CheckpointError(f"{path}: a module of type {shown(kind)} in {shown(name)}; restore the file")
        if any(folder / name == place for _, place in found):
            raise CheckpointError(f"{path}: two modules in {shown(name)}; restore the file")
        found.append((kind.rpartition(".")[2], folder / name))
    return found


def _is_name(name: str) -> bool:
    return len(name) < 256 and name not in (".", "..") and Path(name).name == name and not set(name) & set("\\\0")
