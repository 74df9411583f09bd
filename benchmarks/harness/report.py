"""Show rows as a table on the terminal and as a chart, both with the same notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness.measure import FASTBERT, Row
from fastbert.benchmarks.harness.pictures import Bar, bars, draw_workloads
from fastbert.benchmarks.harness.tables import Column, Notes, console_of, milliseconds, number, print_table, span

COLUMNS = (
    Column("contender"),
    Column("ms"),
    Column("p20-p80", 2),
    Column("MB/s", 1),
    Column("tokens/s"),
    Column("x fastbert"),
    Column("threads", 3),
    Column("outputs"),
)


def show(table: Sequence[Row], console: Any = None) -> None:
    """Print a table per workload, with notes on outputs that are wrong and on threads: each note once, below the first
    table that refers to it."""
    console = console_of(console)
    notes = Notes()
    for workload in dict.fromkeys(row.workload for row in table):
        rows, printed = [], len(notes.texts)
        for row in table:
            if row.workload != workload:
                continue
            mark = notes.mark(notes_of(row))
            close = f" (by {row.max_abs_difference:.2g})" if row.agrees and row.max_abs_difference else ""
            cells = (
                row.contender,
                milliseconds(row.median_ms),
                span(row.p20, row.p80),
                number(row.megabytes_per_second, ",.1f"),
                number(row.tokens_per_second, ",.0f"),
                number(row.ratio_to_fastbert, ".2f"),
                str(row.threads),
                " ".join(filter(None, (f"{row.outputs}{close}" if row.agrees else "WRONG", mark))),
            )
            rows.append((cells, "bold" if _is_fastbert(row) else "" if row.agrees else "yellow"))
        console.print(workload, style="bold", markup=False)
        measured = [index for index, column in enumerate(COLUMNS) if column.name != "MB/s" or rows[0][0][index] != "-"]
        columns = [COLUMNS[index] for index in measured]
        selected = [([cells[i] for i in measured], style) for cells, style in rows]
        print_table(console, columns, selected, notes.lines()[printed:])
        console.print()


def notes_of(row: Row) -> list[str]:
    """Return what a table and a chart say about a row: outputs that are wrong, threads that it did not have."""
    wrong = [] if row.agrees else [f"{row.outputs} (by {row.max_abs_difference:.2g})"]
    return wrong + ([str(row.details["note"])] if "note" in row.details else [])


def chart(path: Path, table: Sequence[Row], *, title: str) -> list[Path]:
    """Draw one panel of horizontal bars per workload: throughput where it was measured, else milliseconds.

    fastbert's bars are blue, others are grey, with their speed relative to fastbert's; a contender whose outputs are
    wrong is orange and hatched. More than eight workloads make several numbered files. Returns the files.
    """
    by_workload: dict[str, list[Row]] = {}
    for row in table:
        by_workload.setdefault(row.workload, []).append(row)

    def panel(axis: Any, workload: str, notes: Notes) -> None:
        _panel(axis, workload, by_workload[workload], notes)

    wrong = any(not row.agrees for row in table)
    legend = "\nbar with stripes: its outputs differ from the reference" if wrong else ""
    return draw_workloads(path, by_workload, panel, panel_width=5.6, title=f"{title}{legend}")


def _panel(axis: Any, workload: str, rows: Sequence[Row], notes: Notes) -> None:
    values, unit, better = _values(rows)
    drawn = []
    for row, value in zip(rows, values, strict=True):
        text = _short(value)
        if "worst_over_plain" in row.details:
            text += f"  (worst {row.details['worst_over_plain']:.3g}x plain)"
        elif row.ratio_to_fastbert:
            text += _relative(row.ratio_to_fastbert)
        text = f"{text} {notes.mark(notes_of(row))}".rstrip()
        drawn.append(Bar(row.contender, value, text, _is_fastbert(row), row.agrees))
    bars(axis, drawn, title=workload, unit=f"{unit}, {better} is better")


def _is_fastbert(row: Row) -> bool:
    """Return whether a row is fastbert's, in whatever dtype."""
    return row.contender.startswith(FASTBERT)


def _relative(ratio: float) -> str:
    """Describe a time relative to fastbert's; nothing for equal times."""
    if f"{ratio:.3g}" == "1":
        return ""
    return f"  ({ratio:.3g}x slower)" if ratio > 1 else f"  ({1 / ratio:.3g}x faster)"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _values(rows: Sequence[Row]) -> tuple[list[float], str, str]:
    """Return the values of a panel, in the finest unit that all its rows have."""
    for name, unit, scale in (("megabytes_per_second", "MB/s", 1.0), ("tokens_per_second", "thousand tokens/s", 1e-3)):
        values = [getattr(row, name) for row in rows]
        if all(value is not None for value in values):
            return [value * scale for value in values], unit, "more"
    return [row.median_ms for row in rows], "ms", "less"
