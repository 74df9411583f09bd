"""Read the files of a sentence-transformers model: `modules.json`, and one folder per module."""

from __future__ import annotations

from pathlib import Path

from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import read_json_file, shown

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
ENCODER_CONFIG = "sentence_bert_config.json"
# Older releases have a file per kind of encoder.
_OTHER_ENCODERS = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
ENCODER_CONFIGS = (ENCODER_CONFIG, *(f"sentence_{kind}_config.json" for kind in _OTHER_ENCODERS))
PIPELINE_FILES = (MODULES, PROMPTS, *ENCODER_CONFIGS)
# Module path of the types; newer releases accept it too.
TYPES = "sentence_transformers.models"
MAX_MODULES = 32


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Return each module's class name and folder: `folder` or a sub-folder. Raises `CheckpointError`."""
    path = folder / MODULES
    entries = read_json_file(path)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise CheckpointError(f"{path}: must hold a list of modules; restore the file")
    if len(entries) > MAX_MODULES:
        raise CheckpointError(f"{path}: lists {len(entries):,} modules; at most {MAX_MODULES} are supported")
    modules: list[tuple[str, Path]] = []
    for entry in entries:
        kind, name = entry.get("type"), entry.get("path")
        if not isinstance(kind, str) or not isinstance(name, str) or not _is_name(name):
            raise CheckpointError(f"{path}: a module of type {shown(kind)} in {shown(name)}; restore the file")
        if any(folder / name == module_folder for _, module_folder in modules):
            raise CheckpointError(f"{path}: two modules in {shown(name)}; restore the file")
        modules.append((kind.rpartition(".")[2], folder / name))
    return modules


def _is_name(name: str) -> bool:
    return len(name) < 256 and name not in (".", "..") and Path(name).name == name and not set(name) & set("\\\0")
