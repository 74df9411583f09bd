"""Read and write the files of a sentence-transformers model: `modules.json`, and one folder per module."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fastbert.checkpoints.formats.names import WEIGHTS
from fastbert.checkpoints.manifest import update_manifest
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import is_plain_name, read_json_file, read_json_object, shown

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
ENCODER_CONFIG = "sentence_bert_config.json"
# Older releases have a file per kind of encoder.
_OTHER_ENCODERS = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
ENCODER_CONFIGS = (ENCODER_CONFIG, *(f"sentence_{kind}_config.json" for kind in _OTHER_ENCODERS))
PIPELINE_FILES = (MODULES, PROMPTS, *ENCODER_CONFIGS)
# Module path of the types; newer releases accept it too.
TYPES = "sentence_transformers.models"
# Since release 6.
BASE_TYPES = "sentence_transformers.base.modules"
TRANSFORMER = f"{BASE_TYPES}.transformer.Transformer"
MAX_MODULES = 32
CONFIG = "config.json"
ROLE_PROMPTS: dict[str, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Names of the prompts of queries and of documents, the preferred ones first."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module behind the encoder."""

    type: str
    """The path of its class."""
    config: Mapping[str, Any] | None = None
    """The content of its config.json; None: it has no such file."""
    write_weights: Callable[[Path], None] | None = None
    """Writes its weights to a path; None: it has none."""

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of its files."""
        return (*(CONFIG,) * (self.config is not None), *(WEIGHTS,) * (self.write_weights is not None))


def check_free(folder: Path, modules: Sequence[Module]) -> None:
    """Raise UserError, before anything is written, if something is in the way of `write_pipeline`."""
    for name, module in _folders(modules).items():
        path = folder / name
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
            raise UserError(f"{path}: is a link or a file, where a module's folder belongs; move it away")
        _check_files(path, module.files)
    _check_files(folder, (ENCODER_CONFIG, PROMPTS, MODULES))


def write_pipeline(
    folder: Path,
    modules: Sequence[Module],
    *,
    encoder: Mapping[str, Any],
    settings: Mapping[str, Any],
    encoder_type: str = TRANSFORMER,
    beside: Sequence[str] = (),
) -> None:
    """Write the files of a sentence-transformers model next to its encoder.

    `encoder` is the content of `sentence_bert_config.json`, `settings` that of `config_sentence_transformers.json`,
    `encoder_type` the path of the encoder's class. `modules.json`, which makes a folder a sentence-transformers model,
    is written last, and every file atomically; the manifest then lists them, and the files `beside` them. Raises
    `UserError` if something is in the way, and `CheckpointError` if writing fails.
    """
    check_free(folder, modules)
    listed = [{"idx": 0, "name": "0", "path": "", "type": encoder_type}]
    files = [*beside, ENCODER_CONFIG, PROMPTS, MODULES]
    try:
        for index, (name, module) in enumerate(_folders(modules).items(), 1):
            (folder / name).mkdir(exist_ok=True)
            if module.config is not None:
                write_json_atomic(folder / name / CONFIG, module.config)
            if module.write_weights is not None:
                module.write_weights(folder / name / WEIGHTS)
            files += [f"{name}/{file}" for file in module.files]
            listed.append({"idx": index, "name": str(index), "path": name, "type": module.type})
        write_json_atomic(folder / ENCODER_CONFIG, encoder)
        write_json_atomic(folder / PROMPTS, settings)
        write_json_atomic(folder / MODULES, listed)
        update_manifest(folder, files)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder}: the files of sentence-transformers could not be written ({error}); free some disk space or"
            " choose another folder"
        ) from error


def _folders(modules: Sequence[Module]) -> dict[str, Module]:
    """Return the modules by the names of their folders."""
    return {f"{index}_{module.type.rpartition('.')[2]}": module for index, module in enumerate(modules, 1)}


def _check_files(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        path = folder / name
        if os.path.lexists(path) and not path.is_file():
            raise UserError(f"{path}: is a folder or a broken link, where a file belongs; move it away")


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
        # An empty name is the folder itself.
        if not isinstance(kind, str) or not isinstance(name, str) or (name and not is_plain_name(name)):
            raise CheckpointError(f"{path}: a module of type {shown(kind)} in {shown(name)}; restore the file")
        if (folder / name).is_symlink() and (folder / name).resolve().parent != folder.resolve():
            raise CheckpointError(f"{folder / name}: is a link out of the model's folder; put the module itself there")
        if any(folder / name == module_folder for _, module_folder in modules):
            raise CheckpointError(f"{path}: two modules in {shown(name)}; restore the file")
        modules.append((kind.rpartition(".")[2], folder / name))
    return modules


def encoder_folder(folder: Path) -> Path:
    """Return the folder that holds the encoder of a model: in sentence-transformers it may be a sub-folder, such as
    `0_Transformer`. Raises `CheckpointError` for a damaged `modules.json`."""
    return read_modules(folder)[0][1] if os.path.lexists(folder / MODULES) else folder


def lower_cases(encoder: Path) -> bool:
    """Return True if the settings in an encoder's folder lower-case texts before they are tokenized. Raises
    `CheckpointError` for a damaged file."""
    path = next((encoder / name for name in ENCODER_CONFIGS if os.path.lexists(encoder / name)), None)
    return path is not None and bool(read_json_object(path).get("do_lower_case"))


def role_prompt(role: str, prompts: Container[str]) -> str | None:
    """Return the name of the prompt of a role, "query" or "document", that a model has; None if it has none."""
    return next((name for name in ROLE_PROMPTS[role] if name in prompts), None)
