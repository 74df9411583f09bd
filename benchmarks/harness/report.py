"""Show rows as a table on the terminal and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness.measure import FASTBERT, Row

# Okabe and Ito's colours: distinguishable with every kind of colour vision, and in grey by lightness.
FASTBERT_COLOR, OTHER_COLOR, WRONG_COLOR = "#0072B2", "#B8B8B8", "#E69F00"
PANELS_ACROSS = 3


def show(table: Sequence[Row], console: Any = None) -> None:
    """Print rows as a table, with notes in the last column."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console(highlight=False)
    # In a file or a pipe nothing is truncated.
    if not console.is_terminal:
        console.width = max(console.width, 150)
    columns = ["workload", "contender", "ms", "p20", "p80", "MB/s", "tokens/s", "x fastbert", "threads", "outputs"]
    numbers = columns[2:9]
    shown = [name for name in columns if name != "MB/s" or any(row.megabytes_per_second is not None for row in table)]
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for name in shown:
        grid.add_column(name, justify="right" if name in numbers else "left", no_wrap=name != "outputs")
    before = None
    for row in table:
        if before is not None and row.workload != before:
            grid.add_row()
        cells = {
            "workload": row.workload if row.workload != before else "",
            "contender": row.contender,
            "ms": f"{row.median_ms:,.4g}" if row.median_ms < 1e4 else f"{row.median_ms:,.0f}",
            "p20": f"{row.p20:.4g}",
            "p80": f"{row.p80:.4g}",
            "MB/s": _number(row.megabytes_per_second, ",.1f"),
            "tokens/s": _number(row.tokens_per_second, ",.0f"),
            "x fastbert": _number(row.ratio_to_fastbert, ".2f"),
            "threads": str(row.threads),
            "outputs": _outputs(row),
        }
        style = "bold" if row.contender == FASTBERT else ("" if row.agrees else "yellow")
        grid.add_row(*(Text(cells[name]) for name in shown), style=style)
        before = row.workload
    console.print(grid)


def _outputs(row: Row) -> str:
    notes = [row.outputs] if row.max_abs_difference == 0 else [f"{row.outputs} (by {row.max_abs_difference:.2g})"]
    if "note" in row.details:
        notes.append(str(row.details["note"]))
    return "; ".join(notes)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def chart(path: Path, table: Sequence[Row], *, title: str) -> None:
    """Draw one panel of horizontal bars per workload: throughput where it was measured, else milliseconds.

    fastbert's bar is blue, others are grey; a contender whose outputs are wrong is orange and hatched.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    workloads = list(dict.fromkeys(row.workload for row in table))
    across = min(PANELS_ACROSS, len(workloads))
    down = -(-len(workloads) // across)
    tallest = max(sum(row.workload == workload for row in table) for workload in workloads)
    figure, axes = plt.subplots(
        down, across, figsize=(4.6 * across, (0.8 + 0.34 * tallest) * down + 1.1), squeeze=False, layout="constrained"
    )
    for axis, workload in zip(axes.flat, workloads):
        _panel(axis, workload, [row for row in table if row.workload == workload])
    for axis in axes.flat[len(workloads) :]:
        axis.set_axis_off()
    wrong = any(not row.agrees for row in table)
    legend = "\nbar with stripes: its outputs differ from the reference" if wrong else ""
    figure.suptitle(f"{title}{legend}", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _panel(axis: Any, workload: str, rows: Sequence[Row]) -> None:
    values, unit, better = _values(rows)
    longest = max(values) or 1.0
    for index, (row, value) in enumerate(zip(rows, values)):
        right = row.agrees
        color = FASTBERT_COLOR if row.contender == FASTBERT else OTHER_COLOR if right else WRONG_COLOR
        axis.barh(index, value, color=color, edgecolor="white" if right else "black", hatch=None if right else "//")
        times = (
            f"  ({row.ratio_to_fastbert:.3g}x fastbert)" if row.ratio_to_fastbert and row.contender != FASTBERT else ""
        )
        if "worst_over_plain" in row.details:
            times = f"  (worst {row.details['worst_over_plain']:.3g}x plain)"
        axis.text(value + 0.02 * longest, index, f"{_short(value)}{times}", va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [row.contender for row in rows], fontsize=8)
    for label, row in zip(axis.get_yticklabels(), rows):
        label.set_fontweight("bold" if row.contender == FASTBERT else "normal")
    axis.invert_yaxis()
    axis.set_xlim(0, 1.75 * longest)
    axis.set_title(f"{workload}\n{unit}, {better} is better", fontsize=9, loc="left")
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _values(rows: Sequence[Row]) -> tuple[list[float], str, str]:
    """Return the values of a panel, in the finest unit that all its rows have."""
    for name, unit, scale in (("megabytes_per_second", "MB/s", 1.0), ("tokens_per_second", "thousand tokens/s", 1e-3)):
        values = [getattr(row, name) for row in rows]
        if all(value is not None for value in values):
            return [value * scale for value in values], unit, "more"
    return [row.median_ms for row in rows], "ms", "less"
