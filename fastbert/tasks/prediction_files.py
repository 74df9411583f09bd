"""Files of predictions: written for people and scorers, and read for scoring, whichever program wrote them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.io.text import plain_name
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, cell
from fastbert.tasks.readers.cells import number
from fastbert.tasks.readers.tables import json_lines, name_of, read_json, read_lines, read_table
from fastbert.tasks.registry import task_class
from fastbert.tasks.text_files import STDIN

_ID_COLUMNS = ("id", "index")


@dataclass(frozen=True)
class _Entry:
    """A prediction in a file: where it is, the id of its example (None: the example of the same number), its value."""

    where: str
    id: str | None
    value: Any
    details: Mapping[str, Any]


def write_predictions(
    path: str | Path, task_name: str, dataset: Dataset[Any], predictions: Sequence[Prediction]
) -> None:
    """Write the predictions of a dataset, in its order.

    The suffix chooses the form: `.jsonl` (and standard output, `-`), all details, one object per line; `.tsv`, id and
    prediction under a header; `.txt`, predictions alone, one per line; `.json`, SQuAD's object of texts by id; `.conll`
    (for tagging also `.txt`), words and tags.
    """
    if [example.id for example in dataset] != [prediction["id"] for prediction in predictions]:
        raise ValueError("predictions must be those of the dataset, in its order")
    form = task_class(task_name).prediction_format
    key = form.key
    match ".jsonl" if str(path) == STDIN else file_kind(path, task_name):
        case ".jsonl":
            text = "".join(json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions)
        case ".json":
            content = {prediction["id"]: prediction[key] for prediction in predictions}
            text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        case ".tsv":
            rows = [f"{cell(prediction['id'])}\t{form.write_cell(prediction[key])}\n" for prediction in predictions]
            text = "id\tprediction\n" + "".join(rows)
        case _ if form.write_text is not None:
            text = form.write_text(dataset, predictions)
        case _:
            text = "".join(f"{form.write_cell(prediction[key])}\n" for prediction in predictions)
    if str(path) == STDIN:
        sys.stdout.write(text)
    else:
        write_atomic(Path(path), text)


def read_predictions(path: str | Path, task_name: str, dataset: Dataset[Any]) -> list[Prediction]:
    """Read the predictions of a file for the examples of a dataset, in the dataset's order.

    Accepts the files that `write_predictions` writes, SQuAD's JSON, tables under a header with `id` or `index` (GLUE's
    submissions), and CoNLL files with the prediction in the last column. Without ids, predictions belong to the
    examples in turn. Raises UserError, naming file and line, for missing, unknown or repeated ids, a different number
    of predictions, and values that are not predictions of the task.
    """
    kind, form = file_kind(path, task_name), task_class(task_name).prediction_format
    if kind == ".jsonl":
        entries = list(_json_lines(path, task_name, form))
    elif kind == ".json":
        entries = list(_json_object(path, "predictions, texts by id"))
    elif kind == ".tsv":
        entries = list(_table_rows(path, form.key))
    elif form.read_text is not None:
        return form.read_text(str(path), dataset)
    else:
        lines = enumerate(read_lines(path), 1)
        entries = [_Entry(f"{path}, line {line}", None, text, {}) for line, text in lines]
    return [
        {"id": example.id, form.key: form.check(entry.value, entry.where, example), **entry.details}
        for example, entry in zip(dataset, _matched(name_of(path), dataset, entries), strict=True)
    ]


def read_no_answer_probabilities(path: str | Path, dataset: Dataset[Any]) -> dict[str, float]:
    """Read the second file of SQuAD 2.0's scorer: the probability that a question has no answer, by id."""
    entries = _matched(name_of(path), dataset, list(_json_object(path, "probabilities by id")))
    return {
        str(entry.id): number(entry.value, entry.where, "the probability that there is no answer") for entry in entries
    }


def file_kind(path: str | Path, task_name: str) -> str:
    """Return the suffix that names a file's form. Raises UserError for a form that the task does not have."""
    kinds = (".jsonl", *task_class(task_name).prediction_format.suffixes)
    if str(path) == STDIN:
        raise UserError(f"predictions of standard input: write them to a {' or '.join(kinds)} file")
    plain = plain_name(path)
    suffix = ".jsonl" if plain.endswith(".ndjson") else next((kind for kind in kinds if plain.endswith(kind)), None)
    if suffix is None:
        raise UserError(f"{path}: predictions of {task_name} are in {', '.join(kinds)} files; rename or convert it")
    return suffix


def _json_lines(path: str | Path, task_name: str, form: PredictionFormat) -> Iterator[_Entry]:
    for line, record in json_lines(enumerate(read_lines(path), 1), name_of(path)):
        where = f"{path}, line {line}"
        if not isinstance(record, dict):
            raise UserError(f"{where}: must be a JSON object, not {type(record).__name__}")
        if form.key not in record and "prediction" not in record:
            raise UserError(
                f"{where}: has no {form.key!r} ({', '.join(list(record)[:10])}), the prediction of {task_name}"
            )
        name = record.get("id")
        if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
            raise UserError(f"{where}: 'id' must be a string or an integer, not {type(name).__name__}")
        value = record.get(form.key, record.get("prediction"))
        yield _Entry(
            where, None if name is None else str(name), value, form.details(record, where) if form.details else {}
        )


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of a JSON object, repeated keys included."""


def _json_object(path: str | Path, meaning: str) -> Iterator[_Entry]:
    content = read_json(path, object_pairs_hook=_Pairs)
    if not isinstance(content, _Pairs):
        raise UserError(f"{path}, line 1: must be a JSON object of {meaning}")
    keys: set[str] = set()
    for key, value in content:
        if key in keys:
            raise UserError(f"{path}, key {key}: is repeated; keep one")
        keys.add(key)
        yield _Entry(f"{path}, key {key}", key, value, {})


def _table_rows(path: str | Path, key: str) -> Iterator[_Entry]:
    names = {*_ID_COLUMNS, "prediction", key}
    table = read_table(path, is_header=lambda cells: bool(names & set(cells)))
    value_column = table.first(("prediction", key)) if table.names is not None else table.width - 1
    id_column = table.first(_ID_COLUMNS) if table.names is not None else 0 if table.width > 1 else None
    if value_column is None or (table.names is None and table.width > 2):
        raise UserError(f"{path}, line 1: must have the columns id and prediction ({table.shape})")
    for row in table.rows:
        name = None if id_column is None else row.cells[id_column].strip()
        yield _Entry(table.where(row), name, row.cells[value_column], {})


def _matched(name: str, dataset: Dataset[Any], entries: list[_Entry]) -> list[_Entry]:
    """Return the predictions in the order of the dataset."""
    unnamed = next((entry for entry in entries if entry.id is None), None)
    if unnamed is not None:
        if any(entry.id is not None for entry in entries):
            raise UserError(f"{unnamed.where}: has no id, unlike others; give all an id, or none")
        if len(entries) != len(dataset):
            where = entries[min(len(entries), len(dataset) + 1) - 1].where
            raise UserError(f"{where}: {len(entries)} predictions for the {len(dataset)} examples of {dataset.path}")
        return entries
    by_id: dict[str | None, _Entry] = {}
    known = {example.id for example in dataset}
    for entry in entries:
        if entry.id in by_id:
            raise UserError(f"{entry.where}: the id {entry.id!r} is also that of {by_id[entry.id].where}; keep one")
        if entry.id not in known:
            raise UserError(
                f"{entry.where}: {dataset.path} has no example {entry.id!r}; is it the file that was predicted?"
            )
        by_id[entry.id] = entry
    missing = [i for i, example in enumerate(dataset) if example.id not in by_id]
    if missing:
        first = f"{dataset[missing[0]].id!r} ({dataset.where(missing[0])})"
        raise UserError(f"{name}: no prediction for {len(missing)} of {len(dataset)} examples, the first: {first}")
    return [by_id[example.id] for example in dataset]
