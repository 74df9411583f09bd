"""The experiments by name, and the one function that runs any of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fastbert.errors import UserError, require_package
from fastbert.experiments.data import described, find_data
from fastbert.experiments.names import EXPERIMENTS
from fastbert.experiments.scales import find_scale
from fastbert.experiments.sets import check_sets
from fastbert.experiments.summary import Row, Summary, chart, comparison_table, markdown_table
from fastbert.experiments.workspace import Options, Workspace, check_folder
from fastbert.io.atomic_write import write_atomic
from fastbert.training.reporter import Reporter

MISSING = "experiments need the package {0}: `pip install {0}`, or the extra `experiments` for all of them"


@dataclass(frozen=True)
class Experiment:
    """An experiment: its rows, and what is said beside them."""

    title: str
    paper: str
    """The paper's scores, in a sentence."""
    limits: str
    """The limits of a small scale, and of this setup."""
    rows: Callable[[Workspace], Iterator[Row]]
    """Yields each row as soon as its runs have ended."""
    picture: Callable[[Summary, Path], Any] = chart
    """Draws a summary to a file."""
    tables: Callable[[Summary], str] = lambda summary: ""
    """Returns further tables in Markdown."""
    finetunes: bool = True
    """True if models are fine-tuned, as the scale says."""


def find_experiment(name: str) -> Experiment:
    """Return an experiment by its name. Raises `UserError` for an unknown one."""
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}: choose one of {', '.join(EXPERIMENTS)}")
    experiment: Experiment = import_module(f"fastbert.experiments.{name}").EXPERIMENT
    return experiment


def run_experiment(
    name: str,
    scale_name: str,
    out: Path,
    *,
    data_folder: Path | None = None,
    command: str = "",
    machine: dict[str, Any] | None = None,
    versions: dict[str, str] | None = None,
    reporter: Reporter | None = None,
    **options: Any,
) -> Summary:
    """Run an experiment into `out`, or continue one there; write summary.json, table.md and chart.png as rows end.

    `data_folder` holds corpora and task sets (`fastbert.experiments.data`); None uses the text that comes with Python.
    `options` are the fields of `fastbert.experiments.workspace.Options`. Raises `UserError` for a folder with another
    experiment or other data.
    """
    experiment, scale = find_experiment(name), find_scale(scale_name)
    # The first score comes minutes after the start.
    for module, package in (
        ("sklearn.metrics", "scikit-learn"),
        ("scipy.stats", "scipy"),
        ("seqeval.metrics", "seqeval"),
    ):
        require_package(module, MISSING.format(package))
    check_folder(out)
    data = find_data(data_folder, out, train=scale.train_examples, evaluate=scale.eval_examples)
    check_sets(data.tasks.values())
    processor = str((machine or {}).get("cpu_capability", ""))
    workspace = Workspace(out, name, scale, data, Options(**options), reporter, processor)
    rows: list[Row] = []
    summary: Summary | None = None
    began = time.perf_counter()
    for row in experiment.rows(workspace):
        rows.append(row)
        summary = Summary(
            experiment=name,
            title=experiment.title,
            scale=scale.name,
            command=command,
            rows=rows,
            data=described(data),
            settings=workspace.described(),
            machine=machine or {},
            versions=versions or {},
            seconds=round(max(workspace.seconds(), time.perf_counter() - began), 1),
            paper=experiment.paper,
            limits=experiment.limits,
            seeds=workspace.seeds,
            details=workspace.details,
        )
        write_summary(summary, out)
    assert summary is not None, name
    return summary


def write_summary(summary: Summary, out: Path) -> None:
    """Write summary.json, table.md and chart.png."""
    summary.write(out)
    experiment = find_experiment(summary.experiment)
    tables = [summary.title, markdown_table(summary), comparison_table(summary), experiment.tables(summary)]
    write_atomic(out / "table.md", "\n\n".join(table for table in tables if table) + "\n")
    experiment.picture(summary, out / "chart.png")
