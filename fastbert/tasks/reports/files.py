"""The files of a report: tables, a picture, and report.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.io.untrusted_input import read_json_file
from fastbert.tasks.reports.picture import draw_confusion
from fastbert.tasks.reports.report import CONTROLS, Baseline, Report, by_key

if TYPE_CHECKING:
    from fastbert.tasks.base import Task

FILE = "report.json"
PER_CLASS, GROUPS, ERRORS = "per_class.tsv", "groups.tsv", "errors.tsv"
CONFUSION, PICTURE, PAIRS = "confusion.tsv", "confusion.png", "confused_pairs.tsv"
MAX_PAIRS = 20  # confused pairs in report.json
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in CONTROLS if code >= 0x7F}  # the others `json` escapes itself


def contents(
    task: Task[Any], report: Report, examples: int, scores: Mapping[str, float], baselines: Sequence[Baseline]
) -> dict[str, Any]:
    """Return the content of report.json: all but the errors themselves and the confusion matrix. `metric` there is the
    task's main metric, or where `scores` lack that the first that they have."""
    metric = next((name for name in (task.main_metric, *task.metrics) if name in scores), task.main_metric)
    values: dict[str, Any] = {
        "task": task.name,
        "metric": metric,
        "examples": examples,
        "errors": len(report.errors.rows),
        "scores": {name: round(value, 4) for name, value in scores.items()},
        "baselines": by_key(baselines),
        "baseline_names": {baseline.key: baseline.name for baseline in baselines},
        "warnings": [*report.warnings, *_below(metric, scores, baselines)],
    }
    if report.per_class is not None:
        values["per_class"] = report.per_class.to_records()
    if report.confusion is not None:
        values["confused_pairs"] = report.confusion.pairs().to_records()[:MAX_PAIRS]
        if report.confusion.outside is not None:
            values["outside"] = report.confusion.outside
    if report.groups is not None:
        values["groups"] = report.groups.to_records()
    return values


def _below(metric: str, scores: Mapping[str, float], baselines: Sequence[Baseline]) -> list[str]:
    """Return a warning if the main metric is below that of a baseline."""
    if metric not in scores:
        return []
    score = round(scores[metric], 4)  # as a linear baseline's scores are stored
    better = [baseline for baseline in baselines if round(baseline.scores.get(metric, score), 4) > score]
    if not better:
        return []
    best = max(better, key=lambda baseline: baseline.scores[metric])
    return [
        f"{metric} {score:.2f} is below that of a baseline, {best.name} ({best.scores[metric]:.2f}); train for more"
        " --epochs, or with a different --lr"
    ]


def write_report(folder: Path, report: Report, values: Mapping[str, Any]) -> None:
    """Write a report and the `contents` of its report.json to a folder, in place of an earlier report; other files in
    the folder stay."""
    tables = {ERRORS: report.errors, PER_CLASS: report.per_class, GROUPS: report.groups}
    if report.confusion is not None:
        tables |= {CONFUSION: report.confusion.to_table(), PAIRS: report.confusion.pairs()}
    names = (FILE, PER_CLASS, GROUPS, ERRORS, CONFUSION, PICTURE, PAIRS)
    with atomic_folder(folder, names) as partial:
        for name, table in tables.items():
            if table is not None:
                (partial / name).write_text(table.to_tsv(), encoding="utf-8")
        if report.confusion is not None:
            draw_confusion(report.confusion, partial / PICTURE)
        text = json.dumps(values, indent=2, ensure_ascii=False).translate(_JSON_ESCAPES) + "\n"
        (partial / FILE).write_text(text, encoding="utf-8")


def read_contents(folder: Path) -> dict[str, Any] | None:
    """Read report.json of a folder; None if there is none. Raises CheckpointError for a damaged file."""
    path = folder / FILE
    values: dict[str, Any] | None = read_json_file(path) if path.is_file() else None
    return values
