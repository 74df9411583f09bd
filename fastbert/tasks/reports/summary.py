"""The summary of a report for a terminal, from the contents of its report.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from fastbert.tasks.reports.report import QUESTIONS, shortened

WIDTH = 80
WORST = 3  # classes


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
        lines += wrap(
            f"{file}: {metric} {shown[metric]}{beside(metric, values)}",
            WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
    rest = [
        f"{name} {text}{beside(name, values) if _only_here(name, metric, values) else ''}"
        for name, text in shown.items()
        if name != metric and not name.startswith(("f1_", "HasAns_", "NoAns_", "best_"))
    ]
    if rest and (others or not lines):
        indent = "  " if lines else f"{file}: "
        lines += wrap(", ".join(rest), WIDTH, initial_indent=indent, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def _only_here(name: str, metric: str, values: Mapping[str, Any]) -> bool:
    """Return True for a metric with a baseline that the main metric does not have: the error of the mean number."""
    return any(name in scores and metric not in scores for scores in values.get("baselines", {}).values())


def class_lines(values: Mapping[str, Any]) -> list[str]:
    """Return a table of the classes, or of questions by their first word, with the lowest F1, of equal ones the largest
    first, and the most confused pair."""
    rows = [row for row in values.get("per_class", ()) if row["support"]]
    questions = [row for row in values.get("groups", ()) if row["by"] == QUESTIONS]
    lines = []
    if rows:
        lines += _worst(rows, "class", "classes", ("precision", "recall", "f1"))
    elif questions:
        lines += _worst(questions, "value", "questions", ("exact_match", "f1"))
    for pair in values.get("confused_pairs", ())[:1]:
        lines.append(_confused_line(pair, values.get("outside")))
    return lines


def _worst(rows: Sequence[Mapping[str, Any]], name: str, what: str, scores: Sequence[str]) -> list[str]:
    """Return a table of the rows with the lowest F1; `name` is the key of a row's name."""
    worst = sorted(rows, key=lambda row: (row["f1"], -row["support"]))[:WORST]
    names = [shortened(str(row[name])) for row in worst]
    title = f"worst {what}" if len(rows) > WORST else what
    width = max(len(title), *map(len, names))
    widths = {score: max(len(score), len("100.00")) for score in scores}
    lines = [f"  {title:<{width}}  {'  '.join(f'{score:>{size}}' for score, size in widths.items())}  support"]
    for shown, row in zip(names, worst, strict=True):
        cells = "  ".join(f"{row[score]:{size}.2f}" for score, size in widths.items())
        lines.append(f"  {shown:<{width}}  {cells}  {row['support']:7,}")
    return lines


def _confused_line(pair: Mapping[str, Any], outside: str | None) -> str:
    """Return the line of the most frequent confusion; one with `outside` is of spurious or missed entities."""
    amount = f"{pair['count']:,} of {pair['support']:,}"
    if outside is not None and pair["gold"] == outside:
        return f"  most frequent error: {amount} spurious entities are '{shortened(str(pair['predicted']))}'"
    if outside is not None and pair["predicted"] == outside:
        return f"  most frequent error: {amount} '{shortened(str(pair['gold']))}' are missed"
    begin = f"  most confused: {amount} "
    room = (WIDTH - len(begin) - len("'' predicted as ''")) // 2
    gold, predicted = shortened(str(pair["gold"]), room), shortened(str(pair["predicted"]), room)
    return f"{begin}'{gold}' predicted as '{predicted}'"


def warning_lines(file: str, values: Mapping[str, Any]) -> list[str]:
    """Return the warnings of a report."""
    return [
        line
        for warning in values.get("warnings", ())
        for line in wrap(f"warning: {file}: {warning}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]
