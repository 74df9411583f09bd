"""Show the encoder benchmark's rows as a table and as a chart, with the reasons why contenders were not measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastbert.benchmarks.cpu.lineup import Absent, Result, is_own
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.harness.report import FASTBERT_COLOR, OTHER_COLOR, WRONG_COLOR

COLUMNS = (
    "contender",
    "ms",
    "p20",
    "p80",
    "tokens/s",
    "x best",
    "x dtype",
    "GFLOP/s",
    "peak",
    "cosine",
    "thr",
    "notes",
)
PICTURES = (".png", ".pdf", ".svg")
PANELS_ACROSS = 2


def show(result: Result, console: Any = None) -> None:
    """Print one table per workload, the fastest first, with the contenders that were not measured."""
    from rich.console import Console

    console = console or Console(highlight=False)
    if not console.is_terminal:  # in a file nothing is truncated
        console.width = max(console.width, 170)
    for workload in _workloads(result):
        rows = sorted((row for row in result.rows if row.workload == workload), key=lambda row: row.median_ms)
        absent = [contender for contender in result.absent if contender.workload == workload]
        console.print(_heading(workload, rows), style="bold", markup=False)
        console.print(_table(rows, absent))
        console.print()


def _workloads(result: Result) -> list[str]:
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


def _table(rows: Sequence[Row], absent: Sequence[Absent]) -> Any:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, header_style="bold", pad_edge=False)
    with_peak = any("share_of_peak" in row.details for row in rows)
    columns = [name for name in COLUMNS if with_peak or name != "peak"]
    for name in columns:
        grid.add_column(name, justify="left" if name in ("contender", "notes") else "right", no_wrap=name != "notes")
    for row in rows:
        details = row.details
        cells = (
            row.contender,
            f"{row.median_ms:,.4g}",
            f"{row.p20:,.4g}",
            f"{row.p80:,.4g}",
            _number(row.tokens_per_second, ",.0f"),
            _number(row.ratio_to_fastbert, ".2f"),
            _number(details["ratio_to_same_dtype"], ".2f"),
            _number(details["gflops"], ",.0f" if details["gflops"] >= 10 else ".2f"),
            _number(details.get("share_of_peak"), ".0%"),
            _number(details.get("smallest_cosine"), ".5f"),
            _number(row.threads_used, ".1f"),
            "; ".join(_notes(row)),
        )
        style = "bold" if is_own(row.contender) else ("" if row.agrees else "yellow")
        shown = (cell for name, cell in zip(COLUMNS, cells, strict=True) if name in columns)
        grid.add_row(*map(Text, shown), style=style)
    for contender in absent:
        grid.add_row(
            Text(contender.contender),
            *["-"] * (len(columns) - 2),
            Text(f"not measured: {contender.reason}"),
            style="dim",
        )
    return grid


def _notes(row: Row) -> list[str]:
    notes = [] if row.agrees else [f"does not agree: {row.outputs}"]
    return notes + ([str(row.details["note"])] if "note" in row.details else [])


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


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


def chart(path: Path, result: Result, *, title: str) -> None:
    """Draw one panel of horizontal bars per workload: tokens per second. fastbert is blue, others grey; contenders that
    do not agree are orange and hatched."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    workloads = list(dict.fromkeys(row.workload for row in result.rows))
    across = min(PANELS_ACROSS, len(workloads))
    down = -(-len(workloads) // across)
    tallest = max(sum(row.workload == workload for row in result.rows) for workload in workloads)
    size = (5.6 * across, (0.8 + 0.3 * tallest) * down + 1.1)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    for axis, workload in zip(axes.flat, workloads):
        panel(axis, [row for row in result.rows if row.workload == workload])
    for axis in axes.flat[len(workloads) :]:
        axis.set_axis_off()
    wrong = any(not row.agrees for row in result.rows)
    legend = "\nbar with stripes: its values differ too much from the reference" if wrong else ""
    figure.suptitle(f"{title}{legend}", fontsize=10)
    with whole(path) as unfinished:
        figure.savefig(unfinished, dpi=120)
    plt.close(figure)


def panel(axis: Any, rows: Sequence[Row]) -> None:
    """Draw the rows of one workload: tokens per second, the fastest on top."""
    rows = sorted(rows, key=lambda row: row.median_ms)
    longest = max(row.tokens_per_second or 0.0 for row in rows)
    for index, row in enumerate(rows):
        rate = row.tokens_per_second or 0.0
        color = WRONG_COLOR if not row.agrees else FASTBERT_COLOR if is_own(row.contender) else OTHER_COLOR
        axis.barh(
            index, rate, color=color, edgecolor="white" if row.agrees else "black", hatch=None if row.agrees else "//"
        )
        share = f", {row.details['share_of_peak']:.0%} of peak" if "share_of_peak" in row.details else ""
        milliseconds = f"{row.median_ms:,.0f}" if row.median_ms >= 100 else f"{row.median_ms:.3g}"
        text = f"{rate:,.0f}  ({milliseconds} ms{share})"
        axis.text(rate + 0.02 * longest, index, text, va="center", fontsize=7)
    axis.set_yticks(range(len(rows)), [row.contender for row in rows], fontsize=8)
    for label, row in zip(axis.get_yticklabels(), rows):
        label.set_fontweight("bold" if is_own(row.contender) else "normal")
    axis.invert_yaxis()
    axis.set_xlim(0, 1.75 * longest)
    note = f": {rows[0].details['workload']}" if "workload" in rows[0].details else ""
    axis.set_title(f"{rows[0].workload}{note}\nreal tokens/s, more is better", fontsize=9, loc="left")
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` once the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.unfinished{path.suffix}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
