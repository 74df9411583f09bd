"""The tasks by name, and what a trained model's folder says of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from fastbert.checkpoints.manifest import TASK, update_manifest, verify_files
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import read_json_file
from fastbert.tasks.base import Columns, Task, TaskSettings
from fastbert.tasks.inference import LONG_NAMES, ScoringDtype

TASKS = {
    "classification": ("classification", "Classification"),
    "regression": ("regression", "Regression"),
    "tagging": ("tagging", "Tagging"),
    "span": ("span.task", "SpanAnswers"),
    "choice": ("choice", "Choice"),
    "seq2seq": ("seq2seq", "SequenceToSequence"),
}
FILE, FORMAT_VERSION = "fastbert_task.json", 1


def make_task(name: str, settings: TaskSettings, labels: Sequence[str] | None = None) -> Task[Any]:
    """The task of a name. Raises UserError for another name."""
    if name not in TASKS:
        raise UserError(f"--task {name}: choose one of {', '.join(TASKS)}")
    module, kind = TASKS[name]
    task: Task[Any] = getattr(importlib.import_module(f"fastbert.tasks.{module}"), kind)(settings, labels)
    return task


def save_task(task: Task[Any], folder: Path, scored: ScoringDtype | None = None) -> None:
    """Write how a model is to be used beside its weights, and in which dtype its run scored it."""
    settings = {name: value for name, value in asdict(task.settings).items() if name not in ("strict", "skip_bad")}
    values = {"format_version": FORMAT_VERSION, "task": task.name, "labels": task.labels, "settings": settings}
    if scored is not None:
        values["scored"] = asdict(scored)
    write_json_atomic(folder / FILE, values)
    update_manifest(folder, [FILE])


def load_task(folder: Path, **overrides: Any) -> Task[Any]:
    """The task that a model's folder was trained for; `overrides` replace settings that are not None.

    Raises UserError for a folder without one, and CheckpointError for a damaged file.
    """
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder}: holds no {FILE}, so name the task with --task")
    verify_files(folder, TASK)
    values = read_json_file(path)
    try:
        if values["format_version"] > FORMAT_VERSION:
            raise UserError(f"{path}: written by a newer fastbert (format {values['format_version']}); update fastbert")
        known = {one.name for one in fields(TaskSettings)}
        settings = {name: value for name, value in values["settings"].items() if name in known}
        settings["columns"] = Columns(**settings.get("columns", {}))
        settings |= {name: value for name, value in overrides.items() if value is not None}
        return make_task(values["task"], TaskSettings(**settings), values["labels"])
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); name the task with --task") from None


def load_scored(folder: Path) -> ScoringDtype | None:
    """Return the dtype in which a model's run scored it, None where its folder does not say. Raises CheckpointError for
    a damaged file."""
    path = folder / FILE
    values = read_json_file(path) if path.is_file() else None
    found = values.get("scored") if isinstance(values, dict) else None
    if found is None:
        return None
    try:
        scored = ScoringDtype(dtype=found["dtype"], device=found["device"], chosen=found["chosen"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f'{path}: damaged ("scored": {error}); name --dtype and remove the entry') from None
    if scored.dtype not in LONG_NAMES or scored.device not in ("cpu", "cuda") or not isinstance(scored.chosen, bool):
        raise CheckpointError(f'{path}: damaged ("scored": {found}); dtype is one of {", ".join(LONG_NAMES)}')
    return scored
