"""Show the encoder benchmark's rows as a table and as a chart, with the reasons why contenders were not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastbert.benchmarks.cpu.lineup import Result, is_own
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.harness.pictures import Bar, bars, draw_workloads
from fastbert.benchmarks.harness.tables import Column, Notes, console_of, milliseconds, number, print_table, span

COLUMNS = (
    Column("contender"),
    Column("ms"),
    Column("p20-p80", 3),
    Column("tokens/s"),
    Column("x best"),
    Column("x dtype", 2),
    Column("GFLOP/s", 5),
    Column("peak", 4),
    Column("model", 4),
    Column("cosine", 1),
    Column("thr", 6),
    Column("MB", 7),
    Column(""),  # of notes
)


def show(result: Result, console: Any = None) -> None:
    """Print one table per workload, the fastest first, then the contenders that were not measured."""
    console = console_of(console)
    notes = Notes()
    for workload in workload_names(result):
        rows = sorted((row for row in result.rows if row.workload == workload), key=lambda row: row.median_ms)
        console.print(_heading(workload, rows), style="bold", markup=False)
        printed = len(notes.texts)
        cells = [_cells(row, notes) for row in rows]
        print_table(console, COLUMNS, cells, notes.lines()[printed:])
        console.print()
    for line in absent_lines(result, workload_names(result)):
        console.print(line, markup=False)


def workload_names(result: Result) -> list[str]:
    """Return the workloads, those without a measured contender last."""
    return list(
        dict.fromkeys([row.workload for row in result.rows] + [contender.workload for contender in result.absent])
    )


def _heading(workload: str, rows: Sequence[Row]) -> str:
    words = [workload]
    if rows:
        details = rows[0].details
        words += [str(details["workload"])] if "workload" in details else []
        words.append(f"{rows[0].threads} threads")
        peaks = {row.dtype: row.details["peak_gflops"] for row in rows if "peak_gflops" in row.details}
        if peaks:
            words.append("peak " + ", ".join(f"{dtype} {peak:,.0f}" for dtype, peak in peaks.items()) + " GFLOP/s")
        if "copy_gigabytes_per_second" in details:
            words.append(f"copy {details['copy_gigabytes_per_second']:.3g} GB/s")
    return "; ".join(words)


def _cells(row: Row, notes: Notes) -> tuple[tuple[str, ...], str]:
    details = row.details
    gflops = details["gflops"]
    cells = (
        row.contender,
        milliseconds(row.median_ms),
        span(row.p20, row.p80),
        number(row.tokens_per_second, ",.0f"),
        number(row.ratio_to_fastbert, ".2f"),
        number(details["ratio_to_same_dtype"], ".2f"),
        number(gflops, ",.0f" if gflops >= 10 else ".2f"),
        f"{details['share_of_peak']:.0%}" if "share_of_peak" in details else "",
        f"{details['share_of_model']:.0%}" if "share_of_model" in details else "",
        number(details.get("smallest_cosine"), ".5f"),
        number(row.threads_used, ".1f"),
        number(details["peak_megabytes"], ",.0f") if "peak_megabytes" in details else "",
        notes.mark(notes_of(row)),
    )
    return cells, "bold" if is_own(row.contender) else "" if row.agrees else "yellow"


def notes_of(row: Row) -> list[str]:
    """Return what a table and a chart say about a row: values that do not agree, threads that it did not have, a
    machine that was not steady, versions."""
    notes = [] if row.agrees else [f"does not agree: {row.outputs}"]
    notes += [str(row.details[name]) for name in ("note", "frequency") if name in row.details]
    return notes + list(row.details.get("notes", ()))


def absent_lines(result: Result, workloads: Sequence[str]) -> list[str]:
    """Return a line per contender that was not measured and reason, with its workloads unless these are all."""
    missing: dict[tuple[str, str], list[str]] = {}
    for absent in result.absent:
        if absent.workload in workloads:
            missing.setdefault((absent.contender, absent.reason), []).append(absent.workload)
    lines = []
    for (contender, reason), names in missing.items():
        where = "" if len(names) == len(workloads) else f" ({', '.join(names)})"
        lines.append(f"{contender}{where}: not measured: {reason}")
    return lines


def record_rows(result: Result) -> list[dict[str, Any]]:
    """Return an object per row for a record, and one without figures per contender that was not measured."""
    missing = dict.fromkeys(("median_ms", "p20", "p80", "tokens_per_second", "ratio_to_fastbert", "max_abs_difference"))
    threads = result.rows[0].threads if result.rows else None
    return [asdict(row) for row in result.rows] + [
        {
            "workload": absent.workload,
            "contender": absent.contender,
            **missing,
            "outputs": "not measured",
            "dtype": absent.dtype,
            "threads": threads,
            "details": {"reason": absent.reason},
        }
        for absent in result.absent
    ]


def chart(path: Path, result: Result, *, title: str) -> list[Path]:
    """Draw one panel of horizontal bars per workload: tokens per second. fastbert is blue, others grey; contenders that
    do not agree are orange and hatched. More than eight workloads make several numbered files. Returns the files."""

    by_workload: dict[str, list[Row]] = {}
    for row in result.rows:
        by_workload.setdefault(row.workload, []).append(row)
    wrong = any(not row.agrees for row in result.rows)
    legend = "\nbar with stripes: its values differ too much from the reference" if wrong else ""
    return draw_workloads(
        path,
        by_workload,
        lambda axis, workload, notes: panel(axis, by_workload[workload], notes),
        panel_width=5.8,
        title=f"{title}{legend}",
        page_notes=lambda page, notes: note_absent(result, page, notes),
    )


def note_absent(result: Result, workloads: Sequence[str], notes: Notes) -> None:
    """Add the contenders that were not measured to a chart's notes, as the table lists them."""
    notes.add(absent_lines(result, workloads))


def panel(axis: Any, rows: Sequence[Row], notes: Notes) -> None:
    """Draw the rows of one workload: tokens per second, the fastest on top."""
    drawn = []
    for row in sorted(rows, key=lambda row: row.median_ms):
        rate = row.tokens_per_second or 0.0
        share = f", {row.details['share_of_peak']:.0%} of peak" if "share_of_peak" in row.details else ""
        time = f"{row.median_ms:,.0f}" if row.median_ms >= 100 else f"{row.median_ms:.3g}"
        text = f"{rate:,.0f}  ({time} ms{share}) {notes.mark(notes_of(row))}".rstrip()
        drawn.append(Bar(row.contender, rate, text, is_own(row.contender), row.agrees))
    note = f": {rows[0].details['workload']}" if "workload" in rows[0].details else ""
    bars(axis, drawn, title=f"{rows[0].workload}{note}", unit="real tokens/s, more is better")
