"""The files that a run evaluates on, the predictions on them, and what the run keeps of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert.distributed.world import World
from fastbert.errors import UserError
from fastbert.finetuning import order
from fastbert.finetuning.config import FinetuneConfig
from fastbert.io.atomic_write import make_folder
from fastbert.tasks.base import Task
from fastbert.tasks.examples import Dataset, Prediction
from fastbert.tasks.predicting import outputs_of
from fastbert.tasks.reports.files import FILE, write_report
from fastbert.tasks.rows import Rows
from fastbert.training.reporter import Reporter

if TYPE_CHECKING:
    from fastbert.tasks.reports.report import Report

HELD_OUT = "held-out"
"""The name in results and predictions of the examples of --validation-fraction."""
PREDICTIONS, REPORTS = "predictions", "reports"
"""Folders of a run that describe its kept model, with a file or a folder per evaluation file."""


@dataclass(frozen=True)
class Evaluation:
    """A file to evaluate on, encoded once."""

    name: str
    dataset: Dataset[Any]
    rows: Rows


def split_off(train: Dataset[Any], fraction: float | None) -> tuple[Dataset[Any], list[Dataset[Any]]]:
    """Split off a fraction of the training examples, the same for every seed. An example that is in the training set
    more than once, by its weight in a mixture, is in one of both parts only.

    Raises `UserError` for a fraction that leaves one of both without examples.
    """
    if fraction is None:
        return train, []
    names = [(example.location, example.id) for example in train]
    distinct = dict(zip(names, train))
    count = round(len(distinct) * fraction)
    if not 0 < count < len(distinct):
        raise UserError(
            f"--validation-fraction {fraction:g}: of {len(distinct)} examples in {train.path} that is {count}"
        )
    numbers = set(order.permutation(len(distinct), 0, 0)[:count].tolist())
    chosen = {name for number, name in enumerate(distinct) if number in numbers}
    rest = tuple(example for name, example in zip(names, train) if name not in chosen)
    held_out = tuple(example for name, example in distinct.items() if name in chosen)
    return Dataset(train.path, rest), [Dataset(train.path, held_out)]


def file_names(config: FinetuneConfig) -> list[str]:
    """Return the names of a run's evaluation files. Raises `UserError` for a file that is given twice."""
    return [HELD_OUT] * (config.validation_fraction is not None) + _names(config.eval)


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a unique name for each file: its own, preceded by as many folders as needed.

    Raises UserError for a file that is given twice.
    """
    whole = [path.resolve() for path in paths]
    for index, path in enumerate(whole):
        if path in whole[:index]:
            raise UserError(f"--eval {paths[index]}: is given twice; leave one out")
    names = [path.name for path in whole]
    for depth in range(2, max((len(path.parts) for path in whole), default=0) + 1):
        repeated = {name for name in names if names.count(name) > 1}
        names = ["-".join(path.parts[-depth:]) if name in repeated else name for name, path in zip(names, whole)]
    return names


def predict(
    task: Task[Any], model: Any, file: Evaluation, reporter: Reporter, world: World | None = None
) -> list[Prediction]:
    """Return a model's predictions on a file, of which each of several processes computes a share; only the first one
    has them."""

    def progress(rows: int, finished: float) -> None:
        reporter.on_prediction(file.name, rows, finished)

    outputs = outputs_of(task, model, file.rows, progress=progress, world=world)
    return task.decode(file.dataset, file.rows, outputs) if world is None or world.is_main else []


def describe(
    run: Path,
    task: str,
    file: Evaluation,
    predictions: Sequence[Prediction],
    report: Report,
    values: Mapping[str, Any],
) -> None:
    """Write the kept model's predictions on a file, and then the report on them with the `values` of its
    report.json."""
    from fastbert.tasks.prediction_files import write_predictions

    for name in (PREDICTIONS, REPORTS):
        make_folder(run / name)
    write_predictions(run / PREDICTIONS / f"{file.name}.jsonl", task, file.dataset, predictions)
    write_report(run / REPORTS / file.name, report, values)


def is_described(run: Path, files: Sequence[str]) -> bool:
    """Return True if a run has predictions and a report for each evaluation file."""
    return all(
        (run / PREDICTIONS / f"{name}.jsonl").is_file() and (run / REPORTS / name / FILE).is_file() for name in files
    )
