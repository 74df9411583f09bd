"""A fine-tuned model with all that its folder says of its use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastbert.checkpoints.source import config_folder, find_source
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.io.untrusted_input import read_json_file
from fastbert.tasks.base import Columns, Task, TaskSettings
from fastbert.tasks.inference import choose_inference
from fastbert.tasks.registry import FILE, load_scored, load_task, make_task
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.fit import check_tokenizer

# Of the class that config.json names, where it names one.
HEADS = {
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
}


@dataclass(frozen=True)
class Trained:
    """A model in eval mode, its task and tokenizer, and what it multiplies where, in words."""

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

    The folder's own file says which task it was trained for; `task` names it for models of other libraries, whose
    labels are those of config.json. `settings` that are not None replace those of training. `dtype="auto"` is the one
    that the run scored its model in, where the user chose it and the device is of the same kind, else the fastest here.
    Raises UserError for a folder that does not fit, and CheckpointError for damaged files.
    """
    folder = find_source(source)
    given = {"columns": None if columns == Columns() else columns, **settings}
    if task is None or (folder / FILE).is_file():
        chosen = load_task(folder, **given)
        if task is not None and chosen.name != task:
            raise UserError(f"--task {task}: {folder} was trained for {chosen.name}; leave --task out")
    else:
        config = BertConfig.from_pretrained(config_folder(folder))
        if task == "regression" and config.num_labels != 1:
            raise UserError(f"--task regression: {folder} has {config.num_labels} outputs, and a number is one")
        named = read_json_file(config_folder(folder) / "config.json").get("architectures") or []
        if named and task in HEADS and not any(HEADS[task] in str(name) for name in named):
            raise UserError(f"--task {task}: {folder} holds a {named[0]}")
        most = min(TaskSettings().max_length if task != "span" else 384, config.max_position_embeddings)
        known = {name: value for name, value in given.items() if value is not None}
        labels = tuple(config.id2label.values()) if task in ("classification", "tagging") else None
        chosen = make_task(task, TaskSettings(**{"max_length": most, **known}), labels)
    place, weights, why = choose_inference(device, dtype, load_scored(folder))
    tokenizer = WordPieceTokenizer.from_pretrained(folder)
    model = chosen.head.from_pretrained(folder, dtype=weights)
    check_tokenizer(tokenizer, model.config.vocab_size, str(folder))
    if dtype == "int8":
        model.quantize("int8")
    return Trained(chosen, model.to(place), tokenizer, f"on {place} in {why}")
