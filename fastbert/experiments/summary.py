"""The result of an experiment: rows of scores with their spread, as JSON, a table and a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.figures import figure_file, finish_axes, legend_below, line_style
from fastbert.io.untrusted_input import read_json_file

VERSION = 1
FILE = "summary.json"
TRIVIAL = "trivial baseline"


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score over several seeds."""

    metric: str
    values: tuple[float, ...]
    """One value per seed, in percent unless the metric says otherwise."""
    baseline: float | None = None
    """The score of a prediction that reads nothing: the most frequent class, no entities, the first words."""
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        """Return the mean over the seeds."""
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        """Return the sample standard deviation, None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.1f}"
        return f"{self.mean:.1f}{spread}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A system of an experiment, its scores by set, and numbers of its pre-training."""

    name: str
    scores: dict[str, Score]
    numbers: dict[str, float] = field(default_factory=dict)
    """Other numbers by name: tokens, seconds, loss, perplexity, ..."""
    compared_with: str = ""
    """The row from which differences are tested; empty for the first one."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """An experiment's rows, and what they were measured on."""

    experiment: str
    title: str
    scale: str
    command: str
    rows: list[Row]
    data: dict[str, Any]
    settings: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    paper: str = ""
    """The paper's scores, in a sentence."""
    limits: str = ""
    """The limits of this scale."""
    seeds: int = 1
    details: dict[str, Any] = field(default_factory=dict)
    """Other results, of which an experiment makes its own picture and tables."""

    def write(self, folder: Path) -> Path:
        """Write summary.json."""
        values = {"version": VERSION, **asdict(self)}
        write_json_atomic(folder / FILE, values)
        return folder / FILE

    @classmethod
    def read(cls, path: Path) -> Summary:
        """Read what `write` wrote, a file or its folder. Raises `UserError` for another file or a newer version."""
        file = path / FILE if path.is_dir() else path
        values = read_json_file(file)
        try:
            if values.pop("version") > VERSION:
                raise UserError(f"{file}: was written by a newer version of fastbert; update it")
            rows = []
            for row in values.pop("rows"):
                scores = {
                    name: Score(**{**score, "values": tuple(score["values"])})
                    for name, score in row.pop("scores").items()
                }
                rows.append(Row(scores=scores, **row))
            return cls(rows=rows, **values)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: is not the summary of an experiment ({error})") from None

    def columns(self) -> list[str]:
        """Return the names of the sets, in the order of the first row that has them."""
        names: dict[str, None] = {}
        for row in self.rows:
            names |= dict.fromkeys(row.scores)
        return list(names)

    def numbers(self) -> list[str]:
        """Return the names of the other numbers."""
        names: dict[str, None] = {}
        for row in self.rows:
            names |= dict.fromkeys(row.numbers)
        return list(names)


def paired(better: Score, other: Score) -> tuple[float, float | None]:
    """Return the mean difference of two scores over the same seeds, and the p-value of a two-sided paired t-test on it;
    None where a single seed or equal differences leave it undefined."""
    differences = [a - b for a, b in zip(better.values, other.values, strict=False)]
    if len(differences) < 2 or max(differences) - min(differences) < 1e-12:
        return fmean(differences), None
    from scipy import stats  # type: ignore[import-untyped]

    return fmean(differences), float(stats.ttest_1samp(differences, 0.0).pvalue)


def comparison_table(summary: Summary) -> str:
    """Return the differences of each row from the first, or from the one that it is compared with, over the same seeds,
    with the p-values of paired t-tests, as a table in Markdown; empty where there is nothing to compare."""
    by_name = {row.name: row for row in summary.rows}
    first = summary.rows[0]
    columns = [
        name
        for name in summary.columns()
        if any(len(row.scores[name].values) > 1 for row in summary.rows if name in row.scores)
    ]
    several = any(row.compared_with for row in summary.rows)
    lines = []
    for row in summary.rows:
        reference = by_name.get(row.compared_with, first)
        if reference is row:
            continue
        cells = [_difference(row.scores.get(name), reference.scores.get(name)) for name in columns]
        if any(cells):
            name = f"{row.name} − {reference.name}" if several else row.name
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if not lines:
        return ""
    title = "difference" if several else f"difference from {first.name}"
    return "\n".join([f"| {title} | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns), *lines])


def _difference(score: Score | None, reference: Score | None) -> str:
    """Return the mean difference with its p-value; empty without several values of each."""
    if score is None or reference is None or len(score.values) != len(reference.values) or len(score.values) < 2:
        return ""
    difference, p = paired(score, reference)
    return f"{difference:+.1f}" + ("" if p is None else f" (p = {p:.2f})" if p >= 0.01 else " (p < 0.01)")


def text_table(summary: Summary) -> str:
    """Return the rows as text for a terminal."""
    return _aligned(_cells(summary))


def markdown_table(summary: Summary) -> str:
    """Return the rows as a table in Markdown."""
    header, *rows = _cells(summary)
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _cells(summary: Summary) -> list[list[str]]:
    columns, numbers = summary.columns(), summary.numbers()
    metrics = {name: score.metric for row in summary.rows for name, score in row.scores.items()}
    of_column = {name: [row.numbers[name] for row in summary.rows if name in row.numbers] for name in numbers}
    header = ["", *(f"{name} ({metrics[name]})" for name in columns), *numbers]
    rows = [
        [
            row.name,
            *(str(row.scores[name]) if name in row.scores else "" for name in columns),
            *(_number(of_column[name], row.numbers[name]) if name in row.numbers else "" for name in numbers),
        ]
        for row in summary.rows
    ]
    baselines: dict[str, float] = {}
    for row in summary.rows:
        baselines |= {name: score.baseline for name, score in row.scores.items() if score.baseline is not None}
    if baselines:
        shown = [f"{baselines[name]:.1f}" if name in baselines else "" for name in columns]
        rows.append([TRIVIAL, *shown, *("" for _ in numbers)])
    return [header, *rows]


def _number(values: Sequence[float], value: float) -> str:
    """Return a number of a column: whole ones as such, others with as many decimals as the column's largest needs."""
    if all(float(each).is_integer() for each in values):
        return f"{value:,.0f}"
    digits = 2 if max(map(abs, values)) < 10 else 1
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # no minus before a zero


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    )


def chart(summary: Summary, out: Path) -> Path | None:
    """Draw the scores as points with their standard deviations to `out`, a panel per set; None without scores."""
    columns = summary.columns()
    if not columns:
        return None
    width = max(4.0, 0.5 * len(summary.rows) + 1.6)
    panels = 2 if len(columns) == 4 else min(3, len(columns))
    lines = -(-len(columns) // panels)
    with figure_file(out, width * panels, 2.9 * lines) as figure:
        grid = figure.subplots(lines, panels, squeeze=False).flatten()
        for axes, name in zip(grid, columns, strict=False):
            rows = [row for row in summary.rows if name in row.scores]
            for index, row in enumerate(rows):
                score = row.scores[name]
                style = {**line_style(summary.rows.index(row)), "linestyle": "none", "markersize": 7}
                axes.errorbar(index, score.mean, yerr=score.std or 0.0, capsize=4, label=row.name, **style)
                axes.annotate(
                    f"{score.mean:.1f}", (index, score.mean + (score.std or 0)), ha="center", va="bottom", fontsize=8,
                    xytext=(0, 5), textcoords="offset points",
                )  # fmt: skip
            baseline = next((row.scores[name].baseline for row in rows if row.scores[name].baseline is not None), None)
            ends = [row.scores[name].mean + sign * (row.scores[name].std or 0.0) for row in rows for sign in (-1, 1)]
            ends += [] if baseline is None else [baseline]
            low, high = min(ends), max(ends)
            room = max(high - low, 4.0)
            top = high + 0.35 * room
            axes.set_ylim(max(0.0, low - 0.35 * room), min(top, 108.0) if high <= 100 else top)  # percent, as a rule
            if baseline is not None:
                axes.axhline(baseline, color="0.3", linestyle=":", linewidth=1.4, label=TRIVIAL)
            metric, seeds = rows[0].scores[name].metric, max(len(row.scores[name].values) for row in rows)
            label = {"f1": "F1"}.get(metric, metric)
            axes.set(title=name, ylabel=label if seeds == 1 else f"{label}, {seeds} seeds", xticks=[])
            axes.set_xlim(-0.6, len(rows) - 0.4)
            finish_axes(axes)
        for axes in grid[len(columns) :]:
            axes.set_visible(False)
        legend_below(figure, grid[0].get_legend_handles_labels()[0])
    return out
