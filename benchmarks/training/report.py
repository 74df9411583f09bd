"""Show the training benchmark's rows as tables (speed, memory, profile) and as a chart."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.cpu import report
from fastbert.benchmarks.cpu.lineup import Result, is_own
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.training.memory import PARTS

# Okabe and Ito's colours, light and dark in turns.
PART_COLORS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#B8B8B8", "#666666")
TITLES = {"weight_copies": "weight copies", "other": "libraries"}
MEGABYTE = 1e6


def show(result: Result, console: Any = None) -> None:
    """Print speed, then memory, then the profiles."""
    from rich.console import Console

    console = console or Console(highlight=False)
    report.show(result, console)
    for workload in dict.fromkeys(row.workload for row in result.rows):
        rows = [row for row in result.rows if row.workload == workload]
        measured = [row for row in rows if "memory" in row.details]
        if measured:
            console.print(f"{workload}: peak memory, MB, and its parts", style="bold", markup=False)
            console.print(_grid(("peak", *map(title_of, PARTS)), [(row, _megabytes(row)) for row in measured]))
            console.print()
        profiled = [row for row in rows if "profile" in row.details]
        for key, title in (("phases_ms", "ms per step by phase"), ("operations_ms", "ms per step by operation")):
            if profiled:
                times = [row.details["profile"][key] for row in profiled]
                names = tuple(dict.fromkeys(name for row_times in times for name in row_times))
                cells = [
                    [_share(row_times.get(name), sum(row_times.values())) for name in names] for row_times in times
                ]
                console.print(f"{workload}: {title}", style="bold", markup=False)
                console.print(_grid(names, list(zip(profiled, cells))))
                console.print()


def title_of(part: str) -> str:
    """Return a part of the memory in words."""
    return TITLES.get(part, part)


def _megabytes(row: Row) -> list[str]:
    memory = row.details["memory"]
    values = [memory["peak_bytes"], *(memory["parts_bytes"][part] for part in PARTS)]
    return [f"{value / MEGABYTE:,.0f}" for value in values]


def _share(value: float | None, whole: float) -> str:
    return "-" if value is None else f"{value:,.3g} ({value / whole:.0%})"


def _grid(names: Sequence[str], rows: Sequence[tuple[Row, Sequence[str]]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, header_style="bold", pad_edge=False)
    grid.add_column("contender", no_wrap=True)
    for name in names:
        grid.add_column(name, justify="right")
    for row, cells in rows:
        grid.add_row(Text(row.contender), *map(Text, cells), style="bold" if is_own(row.contender) else "")
    return grid


def chart(path: Path, result: Result, *, title: str) -> None:
    """Draw a row of two panels per workload: tokens per second, and the parts of the peak memory."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    workloads = list(dict.fromkeys(row.workload for row in result.rows))
    tallest = max(sum(row.workload == workload for row in result.rows) for workload in workloads)
    size = (13.0, (1.3 + 0.34 * tallest) * len(workloads) + 1.2)
    figure, axes = plt.subplots(len(workloads), 2, figsize=size, squeeze=False, layout="constrained")
    for (left, right), workload in zip(axes, workloads):
        rows = [row for row in result.rows if row.workload == workload]
        report.panel(left, rows)
        note = "\n".join(textwrap.wrap(f"{workload}: {rows[0].details['workload']}", 88))
        left.set_title(f"{note}\nreal tokens/s, more is better", fontsize=8, loc="left")
        _memory_panel(right, [row for row in rows if "memory" in row.details])
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in PART_COLORS]
    figure.legend(handles, map(title_of, PARTS), loc="outside lower right", ncols=len(PARTS), fontsize=8, frameon=False)
    wrong = any(not row.agrees for row in result.rows)
    legend = "\nbar with stripes: its loss or gradients differ too much from the reference" if wrong else ""
    figure.suptitle(f"{title}{legend}", fontsize=10)
    with report.whole(path) as unfinished:
        figure.savefig(unfinished, dpi=120)
    plt.close(figure)


def _memory_panel(axis: Any, rows: Sequence[Row]) -> None:
    if not rows:
        axis.set_axis_off()
        return
    rows = sorted(rows, key=lambda row: row.median_ms)  # as in the panel beside it
    longest = max(row.details["memory"]["peak_bytes"] for row in rows) / MEGABYTE
    for index, row in enumerate(rows):
        memory, left = row.details["memory"], 0.0
        for part, color in zip(PARTS, PART_COLORS):
            width = max(0.0, memory["parts_bytes"][part] / MEGABYTE)
            axis.barh(index, width, left=left, color=color, edgecolor="white")
            left += width
        axis.text(left + 0.02 * longest, index, f"{memory['peak_bytes'] / MEGABYTE:,.0f}", va="center", fontsize=7)
    axis.set_yticks(range(len(rows)), [row.contender for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.18 * longest)
    axis.set_title(f"{rows[0].workload}: peak memory of a step\nMB, less is better", fontsize=8, loc="left")
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
