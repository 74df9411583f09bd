"""Load a fine-tuned model with its tokenizer and its task, which is stored in its folder.

`fastbert_task.json` holds the name of the task that the model was trained for, its labels and its settings. Imports no
torch before a model is loaded, so that flags which do not fit the task are reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert.checkpoints.manifest import TASK, update_manifest, verify_files
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.errors import CheckpointError, UserError
from fastbert.flags import flag
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import read_json_file
from fastbert.tasks.base import Task
from fastbert.tasks.registry import task_class
from fastbert.tasks.settings import Columns
from fastbert.tasks.stored import FILE
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fastbert.tasks.inference import ScoringDtype

FORMAT_VERSION = 1
NOT_STORED = ("strict", "skip_bad", "class_weights")


@dataclass(frozen=True)
class Trained:
    """A model in eval mode with its task and tokenizer; `how` describes the device and the dtype."""

    task: Task[Any]
    model: Any
    tokenizer: Tokenizer
    how: str


def load_trained(
    source: str,
    *,
    task: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    columns: Columns | None = None,
    **settings: Any,
) -> Trained:
    """Load a fine-tuned model for prediction.

    The folder's own file names the task it was trained for; `task` names it for models of other libraries, whose labels
    are those of config.json. `settings` that are not None replace those of training. `dtype="auto"` is the dtype in
    which the run scored its model, if the user chose it and the device is of the same kind, else the fastest here.
    Raises UserError for a folder that does not fit, and CheckpointError for damaged files.
    """
    from fastbert.tasks.inference import choose_inference

    folder = find_source(source)
    chosen = find_task(folder, task=task, columns=columns, **settings)
    if not (folder / FILE).is_file():
        chosen = _with_labels(chosen, folder, shorten=settings.get("max_length") is None)
    where, weights, why = choose_inference(device, dtype, load_scored(folder))
    tokenizer = load_tokenizer(folder)
    model = chosen.load_head(folder, dtype=weights)
    check_tokenizer(tokenizer, model.config.vocab_size, str(folder))
    if dtype == "int8":
        model.quantize("int8")
    return Trained(chosen, model.to(where), tokenizer, f"on {where} in {why}")


def find_task(folder: Path, *, task: str | None = None, columns: Columns | None = None, **settings: Any) -> Task[Any]:
    """Return the task of a folder from `find_source`, as `load_trained` does, before torch is imported: without the
    labels of a model that another library fine-tuned. Raises UserError, and CheckpointError for a damaged file."""
    settings["columns"] = None if columns == Columns() else columns
    if task is None or (folder / FILE).is_file():
        chosen = load_task(folder, **settings)
        if task is not None and chosen.name != task:
            raise UserError(f"--task {task}: {folder} was trained for {chosen.name}; leave --task out")
        return chosen
    kind = task_class(task)
    return kind(kind.settings_type(**{"max_length": kind.default_length, **changed_settings(kind, settings)}))


def _with_labels(task: Task[Any], folder: Path, *, shorten: bool) -> Task[Any]:
    """Return the task with the labels of a model that another library fine-tuned; `shorten` rows to its positions."""
    config = task.base_config(folder)
    labels = task.labels_of(config, folder)
    classes = read_json_file(config_folder(folder) / "config.json").get("architectures") or []
    if classes and not any(task.head_name in str(each) for each in classes):
        raise UserError(f"--task {task.name}: {folder} holds a {classes[0]}")
    length = task.settings.max_length
    length = min(length, config.max_sequence_length) if shorten else length
    return type(task)(replace(task.settings, max_length=length), labels)


def save_task(task: Task[Any], folder: Path, scored: ScoringDtype | None = None) -> None:
    """Write a model's task next to its weights, with the dtype in which its run scored it."""
    settings = {name: value for name, value in asdict(task.settings).items() if name not in NOT_STORED}
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
        kind, settings = task_class(values["task"]), dict(values["settings"])
        names = {field.name for field in fields(kind.settings_type)}
        if unknown := sorted(settings.keys() - names):
            raise ValueError(f"unknown settings: {', '.join(unknown)}")
        settings["columns"] = Columns(**settings.get("columns", {}))
        stored = kind.settings_type(**settings)
        task = kind(stored, values["labels"])
    except UserError as error:
        raise error if str(error).startswith(f"{path}: ") else _damaged(path, error) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(path, error) from None
    # Outside of the block: the overrides are the user's, and an error in them is none of the file.
    changed = changed_settings(kind, overrides)
    return kind(replace(stored, **changed), task.labels) if changed else task


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path}: damaged ({error}); name the task with --task")


def changed_settings(kind: type[Task[Any]], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides that are not None. Raises UserError for one that this kind of task does not have."""
    changed = {name: value for name, value in overrides.items() if value is not None}
    unknown = changed.keys() - {field.name for field in fields(kind.settings_type)}
    if unknown:
        name = min(unknown)
        raise UserError(
            f"{flag(name)} {changed[name]}: the model is for {kind.name}, which has no such setting; leave it out"
        )
    return changed


def load_scored(folder: Path) -> ScoringDtype | None:
    """Return the dtype in which a model's run scored it, None if its folder does not say.

    Raises CheckpointError for a damaged file.
    """
    from fastbert.tasks.inference import LONG_NAMES, ScoringDtype

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
