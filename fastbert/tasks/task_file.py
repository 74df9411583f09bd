"""`fastbert_task.json`: which task a model's folder was trained for, with its labels and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from fastbert.checkpoints.manifest import TASK, update_manifest, verify_files
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import read_json_file
from fastbert.tasks.base import Task
from fastbert.tasks.inference import LONG_NAMES, ScoringDtype
from fastbert.tasks.registry import task_class
from fastbert.tasks.settings import Columns

FILE, FORMAT_VERSION = "fastbert_task.json", 1
NOT_STORED = ("strict", "skip_bad")
STORED_NAMES = {"num_beams": "beams"}  # keys in the file that differ from the names of settings


def save_task(task: Task[Any], folder: Path, scored: ScoringDtype | None = None) -> None:
    """Write a model's task next to its weights, with the dtype in which its run scored it."""
    settings = {
        STORED_NAMES.get(name, name): value for name, value in asdict(task.settings).items() if name not in NOT_STORED
    }
    values = {"format_version": FORMAT_VERSION, "task": task.name, "labels": task.labels, "settings": settings}
    if scored is not None:
        values["scored"] = asdict(scored)
    write_json_atomic(folder / FILE, values)
    update_manifest(folder, [FILE])


def load_task(folder: Path, **overrides: Any) -> Task[Any]:
    """Return the task that a model's folder was trained for; `overrides` that are not None replace settings.

    Raises UserError for a folder without a task and for a setting that the task lacks, and CheckpointError for a
    damaged file.
    """
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder}: holds no {FILE}, so name the task with --task")
    verify_files(folder, TASK)
    values = read_json_file(path)
    try:
        if values["format_version"] > FORMAT_VERSION:
            raise UserError(f"{path}: written by a newer fastbert (format {values['format_version']}); update fastbert")
        kind, stored = task_class(values["task"]), dict(values["settings"])
        keys = {field.name: STORED_NAMES.get(field.name, field.name) for field in fields(kind.settings_type)}
        settings = {name: stored[key] for name, key in keys.items() if key in stored}
        settings["columns"] = Columns(**settings.get("columns", {}))
        settings |= changed_settings(kind, overrides)
        return kind(kind.settings_type(**settings), values["labels"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); name the task with --task") from None


def changed_settings(kind: type[Task[Any]], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides that are not None. Raises UserError for one that this kind of task does not have."""
    changed = {name: value for name, value in overrides.items() if value is not None}
    unknown = changed.keys() - {field.name for field in fields(kind.settings_type)}
    if unknown:
        name = min(unknown)
        raise UserError(
            f"--{name.replace('_', '-')} {changed[name]}: the model is for {kind.name}, which has no such setting;"
            " leave it out"
        )
    return changed


def load_scored(folder: Path) -> ScoringDtype | None:
    """Return the dtype in which a model's run scored it, None if its folder does not say.

    Raises CheckpointError for a damaged file.
    """
    path = folder / FILE
    values = read_json_file(path) if path.is_file() else None
    stored = values.get("scored") if isinstance(values, dict) else None
    if stored is None:
        return None
    try:
        scored = ScoringDtype(dtype=stored["dtype"], device=stored["device"], chosen=stored["chosen"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f'{path}: damaged ("scored": {error}); name --dtype and remove the entry') from None
    if scored.dtype not in LONG_NAMES or scored.device not in ("cpu", "cuda") or not isinstance(scored.chosen, bool):
        raise CheckpointError(f'{path}: damaged ("scored": {stored}); dtype is one of {", ".join(LONG_NAMES)}')
    return scored
