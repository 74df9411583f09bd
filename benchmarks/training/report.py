"""Show the training benchmark's rows as tables (speed, memory, profile) and as a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.cpu import report
from fastbert.benchmarks.cpu.lineup import Result, is_own
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.harness.pictures import draw_pages
from fastbert.benchmarks.harness.tables import Column, Notes, console_of, milliseconds, print_table
from fastbert.benchmarks.training.memory import PARTS
from fastbert.io.figures import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILION

# Light and dark in turns, and neighbours of equal lightness with different hatching, for pictures in grey.
PART_STYLES = (
    (BLUE, ""), (SKY, "//"), (VERMILION, ""), (ORANGE, ".."), (GREEN, "\\\\"), (GREY, ""), (BLACK, "")
)  # fmt: skip
TITLES = {"weight_copies": "weight copies", "other": "libraries"}
MEGABYTE = 1e6


def show(result: Result, console: Any = None) -> None:
    """Print speed, then memory, then the profiles."""
    console = console_of(console)
    report.show(result, console)
    for workload in dict.fromkeys(row.workload for row in result.rows):
        rows = [row for row in result.rows if row.workload == workload]
        measured = [row for row in rows if "memory" in row.details]
        if measured:
            console.print(f"{workload}: peak memory, MB, and its parts", style="bold", markup=False)
            columns = [Column(name) for name in ("contender", "peak", *map(title_of, PARTS), "")]
            styles = ["bold" if is_own(row.contender) else "" for row in measured]
            cells = [[row.contender, *_megabytes(row), ""] for row in measured]
            print_table(console, columns, list(zip(cells, styles, strict=True)))
            console.print()
        profiled = [row for row in rows if "profile" in row.details]
        for key, title in (("phases_ms", "ms per step by phase"), ("operations_ms", "ms per step by operation")):
            if profiled:
                console.print(f"{workload}: {title}", style="bold", markup=False)
                _show_times(console, {row.contender: row.details["profile"][key] for row in profiled})
                console.print()


def _show_times(console: Any, times: Mapping[str, Mapping[str, float]]) -> None:
    """Print a row per part of the step, a column per contender: milliseconds and share."""
    parts = dict.fromkeys(part for of_contender in times.values() for part in of_contender)
    rows = [
        ([part, *(_share(by_part.get(part), sum(by_part.values())) for by_part in times.values()), ""], "")
        for part in parts
    ]
    print_table(console, [Column("part"), *map(Column, times), Column("")], rows)


def title_of(part: str) -> str:
    """Return a part of the memory in words."""
    return TITLES.get(part, part)


def _megabytes(row: Row) -> list[str]:
    memory = row.details["memory"]
    values = [memory["peak_bytes"], *(memory["parts_bytes"][part] for part in PARTS)]
    return [f"{value / MEGABYTE:,.0f}" for value in values]


def _share(value: float | None, whole: float) -> str:
    return "-" if value is None else f"{milliseconds(value)} ({value / whole:.0%})"


def chart(path: Path, result: Result, *, title: str) -> list[Path]:
    """Draw a row of two panels per workload: tokens per second, and the parts of the peak memory. More than four
    workloads make several numbered files. Returns the files."""

    def rows_of(workload: str) -> list[Row]:
        return [row for row in result.rows if row.workload == workload]

    def size(page: Sequence[str]) -> tuple[float, float]:
        tallest = max(len(rows_of(workload)) for workload in page)
        return 13.0, (1.3 + 0.34 * tallest) * len(page) + 1.0

    def draw(figure: Any, page: Sequence[str], notes: Notes) -> None:
        for (left, right), workload in zip(figure.subplots(len(page), 2, squeeze=False), page):
            report.panel(left, rows_of(workload), notes)
            _memory_panel(right, [row for row in rows_of(workload) if "memory" in row.details])
        report.note_absent(result, page, notes)
        handles = [
            Rectangle((0, 0), 1, 1, **part_style(index), label=title_of(part)) for index, part in enumerate(PARTS)
        ]
        figure.legend(handles=handles, loc="outside lower right", ncols=len(PARTS), fontsize=8, frameon=False)

    from matplotlib.patches import Rectangle

    wrong = any(not row.agrees for row in result.rows)
    legend = "\nbar with stripes: its loss or gradients differ too much from the reference" if wrong else ""
    workloads = list(dict.fromkeys(row.workload for row in result.rows))
    return draw_pages(path, workloads, draw, size=size, title=f"{title}{legend}", panels=2)


def part_style(index: int) -> dict[str, Any]:
    """Return colour and hatching of a part of the memory."""
    color, hatch = PART_STYLES[index]
    return {"facecolor": color, "hatch": hatch, "edgecolor": "white"}


def _memory_panel(axis: Any, rows: Sequence[Row]) -> None:
    if not rows:
        axis.set_axis_off()
        return
    rows = sorted(rows, key=lambda row: row.median_ms)  # as in the panel beside it
    longest = max(row.details["memory"]["peak_bytes"] for row in rows) / MEGABYTE
    for index, row in enumerate(rows):
        memory, left = row.details["memory"], 0.0
        for number, part in enumerate(PARTS):
            width = max(0.0, memory["parts_bytes"][part] / MEGABYTE)
            axis.barh(index, width, left=left, **part_style(number))
            left += width
        axis.text(left + 0.02 * longest, index, f"{memory['peak_bytes'] / MEGABYTE:,.0f}", va="center", fontsize=7)
    axis.set_yticks(range(len(rows)), [row.contender for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.18 * longest)
    axis.set_title(f"{rows[0].workload}: peak memory of a step\nMB, less is better", fontsize=8, loc="left")
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
