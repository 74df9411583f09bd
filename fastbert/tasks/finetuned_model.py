"""Load a fine-tuned model with its task and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.checkpoints.source import config_folder, find_source
from fastbert.errors import UserError
from fastbert.io.untrusted_input import read_json_file
from fastbert.models import registry
from fastbert.tasks.base import Task
from fastbert.tasks.inference import choose_inference
from fastbert.tasks.registry import task_class
from fastbert.tasks.settings import Columns
from fastbert.tasks.task_file import FILE, changed_settings, load_scored, load_task
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.fit import check_tokenizer


@dataclass(frozen=True)
class Trained:
    """A model in eval mode with its task and tokenizer; `how` describes the device and the dtype."""

    task: Task[Any]
    model: Any
    tokenizer: WordPieceTokenizer
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
    folder = find_source(source)
    settings["columns"] = None if columns == Columns() else columns
    if task is None or (folder / FILE).is_file():
        chosen = load_task(folder, **settings)
        if task is not None and chosen.name != task:
            raise UserError(f"--task {task}: {folder} was trained for {chosen.name}; leave --task out")
    else:
        chosen = _foreign_task(folder, task, settings)
    where, weights, why = choose_inference(device, dtype, load_scored(folder))
    tokenizer = WordPieceTokenizer.from_pretrained(folder)
    model = chosen.load_head(folder, dtype=weights)
    check_tokenizer(tokenizer, model.config.vocab_size, str(folder))
    if dtype == "int8":
        model.quantize("int8")
    return Trained(chosen, model.to(where), tokenizer, f"on {where} in {why}")


def _foreign_task(folder: Path, name: str, settings: dict[str, Any]) -> Task[Any]:
    """Return the task of a model that another library fine-tuned."""
    kind = task_class(name)
    config = registry.read_config(config_folder(folder))
    labels = kind.labels_of(config, folder)
    classes = read_json_file(config_folder(folder) / "config.json").get("architectures") or []
    if classes and not any(kind.head_name in str(each) for each in classes):
        raise UserError(f"--task {name}: {folder} holds a {classes[0]}")
    length = min(kind.default_length, config.max_sequence_length)
    return kind(kind.settings_type(**{"max_length": length, **changed_settings(kind, settings)}), labels)
