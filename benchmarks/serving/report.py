"""Show the serving benchmark's rows as tables and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.cpu.lineup import Result, is_own
from fastbert.benchmarks.cpu.report import absent_lines, note_absent, notes_of, workload_names
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.harness.pictures import Bar, bars, draw_workloads
from fastbert.benchmarks.harness.tables import Column, Notes, console_of, milliseconds, number, print_table

COLUMNS = (
    Column("contender"),
    Column("requests/s"),
    Column("x best"),
    Column("p50 ms"),
    Column("p99 ms"),
    Column("clients"),
    Column("tokens/s", 3),
    Column("generator", 2),
    Column("cores", 4),
    Column("cosine", 1),
    Column(""),  # of notes
)


def show(result: Result, console: Any = None) -> None:
    """Print one table per workload, the fastest first, then the contenders that were not measured."""
    console = console_of(console)
    notes = Notes()
    for workload in workload_names(result):
        rows = sorted((row for row in result.rows if row.workload == workload), key=lambda row: row.median_ms)
        note = f": {rows[0].details['workload']}; {rows[0].threads} cores with the generator" if rows else ""
        console.print(f"{workload}{note}", style="bold", markup=False)
        printed = len(notes.texts)
        cells = [_cells(row, notes) for row in rows]
        print_table(console, COLUMNS, cells, notes.lines()[printed:])
        console.print()
    for line in absent_lines(result, workload_names(result)):
        console.print(line, markup=False)


def _cells(row: Row, notes: Notes) -> tuple[tuple[str, ...], str]:
    details = row.details
    cells = (
        row.contender,
        number(details["requests_per_second"], ",.4g" if details["requests_per_second"] < 100 else ",.0f"),
        number(row.ratio_to_fastbert, ".2f"),
        "-" if details["p50_ms"] is None else milliseconds(details["p50_ms"]),
        "-" if details["p99_ms"] is None else milliseconds(details["p99_ms"]),
        str(details["clients"]),
        number(row.tokens_per_second, ",.0f"),
        f"{details['generator_share']:.1%}",
        number(row.threads_used, ".1f"),
        number(details.get("smallest_cosine"), ".5f"),
        notes.mark(notes_of(row)),
    )
    return cells, "bold" if is_own(row.contender) else "" if row.agrees else "yellow"


def chart(path: Path, result: Result, *, title: str) -> list[Path]:
    """Draw one panel of horizontal bars per workload: requests per second, the fastest on top. Returns the files."""
    by_workload: dict[str, list[Row]] = {}
    for row in result.rows:
        by_workload.setdefault(row.workload, []).append(row)
    return draw_workloads(
        path,
        by_workload,
        lambda axis, workload, notes: _panel(axis, by_workload[workload], notes),
        panel_width=5.8,
        title=title,
        page_notes=lambda page, notes: note_absent(result, page, notes),
    )


def _panel(axis: Any, rows: Sequence[Row], notes: Notes) -> None:
    drawn = []
    for row in sorted(rows, key=lambda row: row.median_ms):
        rate, p99 = row.details["requests_per_second"], row.details["p99_ms"]
        latency = "" if p99 is None else f" (p99 {milliseconds(p99)} ms, {row.details['clients']} clients)"
        text = f"{rate:,.4g}{latency} {notes.mark(notes_of(row))}".rstrip()
        drawn.append(Bar(row.contender, rate, text, is_own(row.contender), row.agrees))
    bars(axis, drawn, title=f"{rows[0].workload}: {rows[0].details['workload']}", unit="requests/s, more is better")
