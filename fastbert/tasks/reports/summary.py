"""The summary of a report for a terminal, from the contents of its report.json."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

WIDTH = 80
WORST = 3  # classes
MAX_NAME = 24


def beside(metric: str, values: Mapping[str, Any]) -> str:
    """Return the baselines of a metric in parentheses, as `" (majority class 50.92, chance 50.00)"`, or nothing."""
    names = values.get("baseline_names", {})
    scores_beside = [
        f"{names[key]} {scores[metric]:.2f}" for key, scores in values.get("baselines", {}).items() if metric in scores
    ]
    return f" ({', '.join(scores_beside)})" if scores_beside else ""


def score_lines(file: str, shown: Mapping[str, str], values: Mapping[str, Any], *, others: bool = True) -> list[str]:
    """Return the main metric of a file beside its baselines and, with `others`, the other metrics; `shown` are the
    scores by metric, as text."""
    metric = values["metric"]
    lines = []
    if metric in shown:
        lines += wrap(f"{file}: {metric} {shown[metric]}{beside(metric, values)}", WIDTH, subsequent_indent="  ")
    rest = [
        f"{name} {text}{beside(name, values) if _only_here(name, metric, values) else ''}"
        for name, text in shown.items()
        if name != metric and not name.startswith(("f1_", "HasAns_", "NoAns_", "best_"))
    ]
    if rest and (others or not lines):
        indent = "  " if lines else f"{file}: "
        lines += wrap(", ".join(rest), WIDTH, initial_indent=indent, subsequent_indent="  ")
    return lines


def _only_here(name: str, metric: str, values: Mapping[str, Any]) -> bool:
    """Return True for a metric with a baseline that the main metric does not have: the error of the mean number."""
    return any(name in scores and metric not in scores for scores in values.get("baselines", {}).values())


def class_lines(values: Mapping[str, Any]) -> list[str]:
    """Return a table of the classes with the lowest F1, of equal ones the largest first, and the most confused pair."""
    rows = [row for row in values.get("per_class", ()) if row["support"]]
    lines = []
    if rows:
        worst = sorted(rows, key=lambda row: (row["f1"], -row["support"]))[:WORST]
        names = [_short(str(row["class"])) for row in worst]
        title = "worst classes" if len(rows) > WORST else "classes"
        width = max(len(title), *map(len, names))
        lines.append(f"  {title:<{width}}  precision  recall      f1  support")
        lines += [
            f"  {name:<{width}}  {row['precision']:9.2f}  {row['recall']:6.2f}  {row['f1']:6.2f}  {row['support']:7,}"
            for name, row in zip(names, worst, strict=True)
        ]
    for pair in values.get("confused_pairs", ())[:1]:
        begin = f"  most confused: {pair['count']:,} of {pair['support']:,} "
        room = (WIDTH - len(begin) - len("'' predicted as ''")) // 2
        gold, predicted = _short(str(pair["gold"]), room), _short(str(pair["predicted"]), room)
        lines.append(f"{begin}'{gold}' predicted as '{predicted}'")
    return lines


def warning_lines(file: str, values: Mapping[str, Any]) -> list[str]:
    """Return the warnings of a report."""
    return [
        line
        for warning in values.get("warnings", ())
        for line in wrap(f"warning: {file}: {warning}", WIDTH, subsequent_indent="  ")
    ]


def _short(name: str, length: int = MAX_NAME) -> str:
    name = "".join(character if character.isprintable() else " " for character in name)
    return name if len(name) <= length else f"{name[: length - 1]}…"
