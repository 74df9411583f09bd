"""Show processes on shared cores, speed over threads, and the model of more threads, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastbert.benchmarks.cpu.lineup import Result, is_own
from fastbert.benchmarks.cpu.report import absent_lines, notes_of, workload_names
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.harness.tables import Column, Notes, console_of, milliseconds, number, print_table, span

ROW_COLUMNS = (Column("contender"), Column("ms"), Column("p20-p80", 3), Column("tokens/s"), Column("x best"))
PAIR_COLUMNS = (*ROW_COLUMNS, Column("x alone"), Column("p20-p80", 2), Column("thr", 4), Column(""))
THREAD_COLUMNS = (*ROW_COLUMNS, Column("scaling"), Column("ms by threads", 2), Column("thr", 4), Column(""))
MODEL_COLUMNS = (
    Column("model"),
    Column("threads"),
    Column("serial", 4),
    Column("work", 5),
    Column("bytes", 3),
    Column("balance"),
    Column("regions", 2),
    Column("barriers", 1),
    Column("ms"),
    Column("scaling"),
    Column("p20-p80"),
    Column("by turns"),
)
LEGEND = (
    "x alone: until both processes are done, relative to one process with all calls",
    "scaling: the speed with all threads relative to linear scaling",
)
MODEL_LEGEND = (
    "model: ms = serial + max(work / (threads x balance), bytes) + regions and barriers x their cost, which grows",
    "linearly beyond the {cores} cores here; p20-p80: by the serial part of each round; by turns: the scaling with the",
    "cost measured with as many threads on {cores} cores (an emulated topology), a lower bound.",
)


def show(result: Result, console: Any = None) -> None:
    """Print a table per workload, a model's below it, then the contenders that were not measured."""
    console = console_of(console)
    notes = Notes()
    legend: dict[str, None] = {}
    for workload in workload_names(result):
        rows = sorted((row for row in result.rows if row.workload == workload), key=lambda row: row.median_ms)
        if not rows:
            continue
        pairs = "relative_time" in rows[0].details
        heading = [workload, str(rows[0].details.get("workload", "")), f"{rows[0].threads} threads"]
        console.print("; ".join(filter(None, heading)), style="bold", markup=False)
        printed = len(notes.texts)
        cells = [((*_cells(row), *(_pair(row) if pairs else _threads(row)), _used(row), notes.mark(notes_of(row))),
                  "bold" if is_own(row.contender) else "" if row.agrees else "yellow") for row in rows]  # fmt: skip
        print_table(console, PAIR_COLUMNS if pairs else THREAD_COLUMNS, cells, notes.lines()[printed:])
        legend |= {LEGEND[0 if pairs else 1]: None}
        models = [(row, row.details["model"]) for row in rows if "model" in row.details]
        if models:
            console.print()
            print_table(console, MODEL_COLUMNS, [(line, "") for row, model in models for line in _model(row, model)])
            legend |= dict.fromkeys(line.format(cores=models[0][1]["cores"]) for line in MODEL_LEGEND)
        console.print()
    for line in [*legend, *absent_lines(result, workload_names(result))]:
        console.print(line, markup=False, soft_wrap=True)


def _cells(row: Row) -> tuple[str, ...]:
    rate, ratio = number(row.tokens_per_second, ",.0f"), number(row.ratio_to_fastbert, ".2f")
    return row.contender, milliseconds(row.median_ms), span(row.p20, row.p80), rate, ratio


def _pair(row: Row) -> tuple[str, ...]:
    details = row.details
    spread = f"{details['relative_time_p20']:.2f}-{details['relative_time_p80']:.2f}"
    return f"{details['relative_time']:.2f}", spread


def _threads(row: Row) -> tuple[str, ...]:
    times = row.details["ms_by_threads"]
    return f"{row.details['scaling']:.0%}", ", ".join(f"{count}: {milliseconds(ms)}" for count, ms in times.items())


def _used(row: Row) -> str:
    return number(row.threads_used, ".1f")


def _model(row: Row, model: dict[str, Any]) -> list[Sequence[str]]:
    lines = []
    for index, (count, terms) in enumerate(model["threads"].items()):
        low, high = terms["scaling_range"]
        emulated = f"{terms['scaling_emulated']:.0%}" if terms["emulated"] else ""
        common = [milliseconds(model[name]) for name in ("serial_ms", "work_ms", "bytes_ms")]
        lines.append(
            (
                row.contender if index == 0 else "",
                count,
                *(common if index == 0 else [""] * 3),
                f"{terms['balance']:.0%}",
                f"{terms['regions']} x {terms['region_us']:.2g} us",
                f"{terms['barriers']} x {terms['barrier_us']:.2g} us",
                milliseconds(terms["predicted_ms"]),
                f"{terms['scaling']:.0%}",
                f"{low:.0%}-{high:.0%}",
                emulated,
            )
        )
    return lines
