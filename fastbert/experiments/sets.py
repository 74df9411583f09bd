"""Choose the task sets of an experiment, and parts of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fastbert.errors import UserError
from fastbert.experiments.data import TaskSet, with_every_tag
from fastbert.experiments.workspace import Workspace
from fastbert.io.atomic_write import write_atomic
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.tasks.readers.conll import read_conll
from fastbert.tasks.registry import task_class
from fastbert.tasks.settings import Columns


def chosen(workspace: Workspace, names: Iterable[str], kinds: Iterable[str] = ()) -> list[TaskSet]:
    """Return the sets of these names, or where the data has none of them all its sets, of these kinds if any.

    Raises `UserError` where there are none.
    """
    tasks, names, kinds = workspace.data.tasks, tuple(names), tuple(kinds)
    sets = [tasks[name] for name in names if name in tasks] or list(tasks.values())
    usable = [task for task in sets if not kinds or task.task in kinds]
    if not usable:
        kind = f" for {' or '.join(kinds)}" if kinds else ""
        raise UserError(
            f"--data {workspace.data.name}: holds no set{kind}; the experiment needs one of {', '.join(names)}"
        )
    return usable


def check_sets(tasks: Iterable[TaskSet]) -> None:
    """Read all files of the sets, which are needed after pre-training. Raises `UserError` for one with a bad row."""
    for task in tasks:
        kind = task_class(task.task)
        for path in (task.train, task.eval):
            kind(kind.settings_type(skip_bad=None)).read(str(path))


def tagging_examples(task: TaskSet) -> tuple[Dataset[TaggedExample], Dataset[TaggedExample]]:
    """Return the training and the evaluation examples of a tagging set."""
    training, held_out = (read_conll(str(path), Columns(), labelled=True) for path in (task.train, task.eval))
    return training, held_out


def counted(count: int, what: str = "layer") -> str:
    """Return a number with its noun."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def first_examples(task: TaskSet, count: int, folder: Path) -> TaskSet:
    """Return a set with the first `count` training examples alone, of a tagging set those in which every tag occurs, as
    far as there is room; the file is written to `folder`."""
    out = folder / f"{task.name}-{count}{task.train.suffix}"
    if not out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(out, _first(task.train, count))
    return replace(task, train=out)


def _first(path: Path, count: int) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".tsv":
        return "".join(f"{line}\n" for line in text.split("\n")[: count + 1] if line)
    if path.suffix == ".conll":
        sentences = [block.strip() for block in text.split("\n\n") if block.strip()]
        return "".join(f"{sentence}\n\n" for sentence in with_every_tag(sentences, count))
    values, questions, paragraphs = json.loads(text), 0, []
    for article in values["data"]:
        for paragraph in article["paragraphs"]:
            if questions < count:
                paragraphs.append({**paragraph, "qas": paragraph["qas"][: count - questions]})
                questions += len(paragraph["qas"])
    return json.dumps({**values, "data": [{"title": "sample", "paragraphs": paragraphs}]})
