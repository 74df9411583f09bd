"""The small files by which a folder is a sentence-transformers model: `modules.json`, and a folder for each module."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from fastbert.checkpoints.bounded import PlainFile, read_json_file, shown
from fastbert.checkpoints.shards import check_link
from fastbert.errors import CheckpointError

logger = logging.getLogger("fastbert")
MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
ENCODER_CONFIG = "sentence_bert_config.json"
# Older releases gave a file to each kind of encoder.
_OTHER_ENCODERS = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
ENCODER_CONFIGS = (ENCODER_CONFIG, *(f"sentence_{kind}_config.json" for kind in _OTHER_ENCODERS))
PIPELINE_FILES = (MODULES, PROMPTS, *ENCODER_CONFIGS)
# Where a release has them; newer ones know the old names too.
TYPES = "sentence_transformers.models"


def listed_modules(folder: Path) -> list[tuple[str, Path]]:
    """The last part of each module's type, and its folder: `folder` itself, or one in it. Raises `CheckpointError`."""
    path = folder / MODULES
    listed = read_json_file(path)
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise CheckpointError(f"{path}: must hold a list of modules; restore the file")
    found = []
    for entry in listed:
        kind, name = entry.get("type"), entry.get("path")
        if not isinstance(kind, str) or not isinstance(name, str) or not _is_name(name):
            raise CheckpointError(f"{path}: a module of type {shown(kind)} in {shown(name)}; restore the file")
        found.append((kind.rpartition(".")[2], folder / name))
    return found


def carry_pipeline(beside: Path, folder: Path) -> None:
    """Copy what makes the folder `beside` a sentence-transformers model, if it is one, to `folder`: without it the
    same weights would give other embeddings. The modules' weights are copied as they are.

    Raises `CheckpointError` for links that lead out of their folder, and for what is no plain file.
    """
    if not (beside / MODULES).is_file():
        return
    modules = listed_modules(beside)
    if modules[0][1] != beside:
        logger.warning("%s: has its encoder in %s, so %s is not copied", beside, modules[0][1].name, MODULES)
        return
    for name in PIPELINE_FILES:
        _copy(beside / name, folder / name, beside)
    for _, place in modules[1:]:
        if place == beside or not place.is_dir():  # modules without any files, such as Normalize
            continue
        check_link(place)
        (folder / place.name).mkdir(exist_ok=True)
        for path in sorted(place.iterdir()):
            if not path.is_dir():
                _copy(path, folder / place.name / path.name, beside)


def _is_name(name: str) -> bool:
    return name not in (".", "..") and Path(name).name == name and "\\" not in name and "\0" not in name


def _copy(source: Path, target: Path, model: Path) -> None:
    if not source.exists():
        return
    check_link(source, model)
    with PlainFile(source):
        shutil.copyfile(source, target)
