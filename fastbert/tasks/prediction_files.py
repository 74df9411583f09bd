"""Files of predictions: written for people and scorers, and read again to be scored, whoever has written them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert.errors import UserError
from fastbert.tasks.examples import ChoiceExample, Dataset, Example, TaggedExample
from fastbert.tasks.readers.cells import choice_of, class_name, number
from fastbert.tasks.readers.tables import json_lines, name_of, plain_name, read_lines, read_table
from fastbert.tasks.text_files import STDIN, whole_characters

if TYPE_CHECKING:
    from fastbert.tasks.base import Prediction

# What a prediction says, by task: the key under which it says so.
VALUES = {
    "classification": "label",
    "regression": "score",
    "tagging": "tags",
    "span": "text",
    "choice": "label",
    "seq2seq": "text",
}
NO_ANSWER = "null_score_difference"  # of a question: how much better no answer scores than the best one
BEST = "best_answer"  # the text that is given where no answer is not
# The kinds of files that can hold a task's predictions, beside JSON lines.
KINDS = {
    "classification": (".tsv", ".txt"),
    "regression": (".tsv", ".txt"),
    "tagging": (".conll", ".txt"),
    "span": (".json",),
    "choice": (".tsv", ".txt"),
    "seq2seq": (".txt",),
}
_ID_COLUMNS = ("id", "index")


@dataclass(frozen=True)
class _Found:
    """A prediction as a file has it: where, of which example (None: that of the same number), and what."""

    where: str
    id: str | None
    value: Any
    more: Mapping[str, Any]


def write_predictions(
    path: str | Path, task_name: str, dataset: Dataset[Any], predictions: Sequence[Prediction]
) -> None:
    """Write the predictions of a dataset, in its order: `.jsonl`, all that they say, an object a line (so also to
    standard output, `-`); `.tsv`, id and prediction under a header; `.txt`, predictions alone, a line each; `.json`,
    SQuAD's object of texts by id; `.conll` (of tagging also `.txt`), words and tags.
    """
    _same_ids(dataset, predictions)
    key = VALUES[task_name]
    match ".jsonl" if str(path) == STDIN else file_kind(path, task_name):
        case ".jsonl":
            text = "".join(json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions)
        case ".json":
            content = {prediction["id"]: prediction[key] for prediction in predictions}
            text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        case ".tsv":
            rows = [f"{_cell(prediction['id'])}\t{_cell(prediction[key])}\n" for prediction in predictions]
            text = "id\tprediction\n" + "".join(rows)
        case _ if task_name == "tagging":
            text = "".join(
                "".join(f"{_cell(word)}\t{tag}\n" for word, tag in zip(example.words, prediction[key])) + "\n"
                for example, prediction in zip(dataset, predictions)
            )
        case _:
            text = "".join(f"{_cell(prediction[key])}\n" for prediction in predictions)
    if str(path) == STDIN:
        sys.stdout.write(text)
        return
    from fastbert.io.atomic_write import write_atomic

    write_atomic(Path(path), text)


def write_null_scores(path: str | Path, predictions: Sequence[Prediction]) -> None:
    """Write what SQuAD 2.0's scorer reads beside the answers: how much each question seems to have none."""
    from fastbert.io.atomic_write import write_atomic

    content = {prediction["id"]: prediction[NO_ANSWER] for prediction in predictions}
    write_atomic(Path(path), json.dumps(content, indent=1) + "\n")


def read_predictions(path: str | Path, task_name: str, dataset: Dataset[Any]) -> list[Prediction]:
    """The predictions of a file for the examples of a dataset, in the dataset's order: what `write_predictions` writes,
    SQuAD's JSON, tables under a header with `id` or `index` (GLUE's submissions), CoNLL files with the prediction in
    the last column. Without ids they belong to the examples in turn.

    Raises UserError, naming file and line, for ids that are missing, unknown or there twice, for another number of
    predictions, and for what is no prediction of the task.
    """
    kind = file_kind(path, task_name)
    if kind == ".jsonl":
        found = list(_of_json_lines(path, task_name))
    elif kind == ".json":
        found = list(_of_object(path, "predictions, texts by id"))
    elif task_name == "tagging":
        return _of_conll(str(path), dataset)
    elif kind == ".tsv":
        found = list(_of_table(path, task_name))
    else:
        lines = enumerate(read_lines(path), 1)
        found = [_Found(f"{path}, line {line}", None, text, {}) for line, text in lines]
    check = _checks(task_name)
    result = []
    for i, prediction in enumerate(_matched(name_of(path), dataset, found)):
        value = check(prediction.value, prediction.where, dataset[i])
        result.append({"id": dataset[i].id, VALUES[task_name]: value, **prediction.more})
    return result


def read_no_answer_probabilities(path: str | Path, dataset: Dataset[Any]) -> dict[str, float]:
    """What SQuAD 2.0's scorer reads beside the answers: a number for each question, by id."""
    found = _matched(name_of(path), dataset, list(_of_object(path, "probabilities by id")))
    return {str(item.id): number(item.value, item.where, "the probability that there is no answer") for item in found}


def file_kind(path: str | Path, task_name: str) -> str:
    """The ending that says how a file holds predictions. Raises UserError for one that cannot hold the task's."""
    kinds = (".jsonl", *KINDS[task_name])
    if str(path) == STDIN:
        raise UserError(f"predictions of standard input: write them to a {' or '.join(kinds)} file")
    plain = plain_name(path)
    found = next((kind for kind in kinds if plain.endswith(kind)), None)
    found = ".jsonl" if plain.endswith(".ndjson") else found
    if found is None:
        raise UserError(f"{path}: predictions of {task_name} are in {', '.join(kinds)} files; rename or convert it")
    return found


def _cell(value: Any) -> str:
    """A value on one line and in one cell."""
    return repr(value) if isinstance(value, float) else re.sub(r"[\t\r\n]+", " ", str(value))


def _same_ids(dataset: Dataset[Any], predictions: Sequence[Prediction]) -> None:
    if [example.id for example in dataset] != [prediction["id"] for prediction in predictions]:
        raise ValueError("predictions must be those of the dataset, in its order")


def _of_json_lines(path: str | Path, task_name: str) -> Iterator[_Found]:
    key = VALUES[task_name]
    for line, record in json_lines(enumerate(read_lines(path), 1), name_of(path)):
        where = f"{path}, line {line}"
        if not isinstance(record, dict):
            raise UserError(f"{where}: must be a JSON object, not {type(record).__name__}")
        if key not in record and "prediction" not in record:
            raise UserError(f"{where}: has no {key!r} ({', '.join(list(record)[:10])}), the prediction of {task_name}")
        own = record.get("id")
        if own is not None and (isinstance(own, bool) or not isinstance(own, str | int)):
            raise UserError(f"{where}: 'id' must be a string or an integer, not {type(own).__name__}")
        more: dict[str, Any] = {}
        if task_name == "span" and NO_ANSWER in record:
            more[NO_ANSWER] = number(record[NO_ANSWER], where, NO_ANSWER)
            if isinstance(record.get(BEST), str):
                more[BEST] = record[BEST]
        yield _Found(where, None if own is None else str(own), record.get(key, record.get("prediction")), more)


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of a JSON object, equal keys included."""


def _of_object(path: str | Path, meaning: str) -> Iterator[_Found]:
    text = "\n".join(read_lines(path))
    try:
        content = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line 1 ff.: not JSON ({error})") from None
    if not isinstance(content, _Pairs):
        raise UserError(f"{path}, line 1: must be a JSON object of {meaning}")
    seen: set[str] = set()
    for key, value in content:
        if key in seen:
            raise UserError(f"{path}, key {key}: is there twice; keep one")
        seen.add(key)
        yield _Found(f"{path}, key {key}", key, value, {})


def _of_table(path: str | Path, task_name: str) -> Iterator[_Found]:
    names = {*_ID_COLUMNS, "prediction", VALUES[task_name]}
    table = read_table(path, is_header=lambda cells: bool(names & set(cells)))
    place = table.first(("prediction", VALUES[task_name])) if table.names is not None else table.width - 1
    own = table.first(_ID_COLUMNS) if table.names is not None else 0 if table.width > 1 else None
    if place is None or (table.names is None and table.width > 2):
        raise UserError(f"{path}, line 1: must have the columns id and prediction ({table.shape})")
    for row in table.rows:
        yield _Found(table.where(row), None if own is None else row.cells[own].strip(), row.cells[place], {})


def _of_conll(path: str, dataset: Dataset[TaggedExample]) -> list[Prediction]:
    from fastbert.tasks.base import Columns
    from fastbert.tasks.readers.conll import read_conll

    found = read_conll(path, Columns(), labelled=True)
    for i, (example, own) in enumerate(zip(dataset, found)):
        if example.words != own.words:
            differ = [k for k, pair in enumerate(zip(example.words, own.words)) if pair[0] != pair[1]]
            k = differ[0] if differ else min(len(example.words), len(own.words))
            raise UserError(
                f"{found.where(i)}: word {k + 1} is not that of {dataset.where(i)}; the words must be the same"
            )
    if len(found) != len(dataset):
        last = found.where(len(found) - 1)
        raise UserError(
            f"{last}: ends after {len(found)} sentences, {dataset.path} has {len(dataset)}; give one for each"
        )
    return [{"id": example.id, "tags": list(own.tags or ())} for example, own in zip(dataset, found)]


def _matched(name: str, dataset: Dataset[Any], found: list[_Found]) -> list[_Found]:
    """The predictions in the order of the dataset."""
    unnamed = next((item for item in found if item.id is None), None)
    if unnamed is not None:
        named = next((item for item in found if item.id is not None), None)
        if named is not None:
            raise UserError(f"{unnamed.where}: has no id, unlike others; give all an id, or none")
        if len(found) != len(dataset):
            where = found[min(len(found), len(dataset) + 1) - 1].where
            raise UserError(f"{where}: {len(found)} predictions for the {len(dataset)} examples of {dataset.path}")
        return found
    by_id: dict[str | None, _Found] = {}
    known = {example.id for example in dataset}
    for item in found:
        if item.id in by_id:
            raise UserError(f"{item.where}: the id {item.id!r} is also that of {by_id[item.id].where}; keep one")
        if item.id not in known:
            raise UserError(
                f"{item.where}: {dataset.path} has no example {item.id!r}; is it the file that was predicted?"
            )
        by_id[item.id] = item
    missing = [i for i, example in enumerate(dataset) if example.id not in by_id]
    if missing:
        first = f"{dataset[missing[0]].id!r} ({dataset.where(missing[0])})"
        raise UserError(f"{name}: no prediction for {len(missing)} of {len(dataset)} examples, the first: {first}")
    return [by_id[example.id] for example in dataset]


def _checks(task_name: str) -> Callable[[Any, str, Example], Any]:
    """What checks a value as a prediction of an example."""
    match task_name:
        case "classification":
            return lambda value, where, example: class_name(value, where, "the predicted label")
        case "regression":
            return lambda value, where, example: number(value, where, "the predicted score")
        case "choice":
            return _choice
        case "tagging":
            return _tags
    return _text


def _choice(value: Any, where: str, example: Example) -> int:
    assert isinstance(example, ChoiceExample)
    return choice_of(value, where, "the predicted choice", len(example.endings))


def _tags(value: Any, where: str, example: Example) -> list[str]:
    assert isinstance(example, TaggedExample)
    if not isinstance(value, list) or not all(isinstance(tag, str) and tag for tag in value):
        raise UserError(f"{where}: 'tags' must be a list of strings")
    if len(value) != len(example.words):
        raise UserError(f"{where}: has {len(value)} tags for the {len(example.words)} words of {example.place}")
    return [whole_characters(tag) for tag in value]


def _text(value: Any, where: str, example: Example) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: the predicted text must be a string, not {type(value).__name__}")
    return whole_characters(value)
