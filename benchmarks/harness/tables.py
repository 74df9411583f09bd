"""Tables on the terminal and their notes, which charts repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

FILE_WIDTH = 100  # columns of a table in a file or a pipe
FIRST_WIDTH = 21  # the least that the first column may have before others are left out


class Column(NamedTuple):
    """A column; of those with a rank, the highest are left out first where the terminal is too narrow."""

    name: str
    rank: int = 0


class Notes:
    """Notes below a table or a chart, each text once: those that rows refer to numbered in their order, then others."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.others: list[str] = []

    def mark(self, texts: Sequence[str]) -> str:
        """Add notes; return their numbers as they are shown behind a row: "[1, 2]", or nothing."""
        self.texts += [text for text in dict.fromkeys(texts) if text not in self.texts]
        numbers = sorted(self.texts.index(text) + 1 for text in set(texts))
        return f"[{', '.join(map(str, numbers))}]" if numbers else ""

    def add(self, texts: Sequence[str]) -> None:
        """Add notes that no row refers to."""
        self.others += [text for text in dict.fromkeys(texts) if text not in self.others]

    def lines(self) -> list[str]:
        """Return the notes, those that rows refer to with their numbers."""
        return [*(f"[{number}] {text}" for number, text in enumerate(self.texts, start=1)), *self.others]


def console_of(console: Any = None) -> Any:
    """Return the console, or one on standard output; a file is as wide as `FILE_WIDTH`."""
    from rich.console import Console

    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def print_table(
    console: Any, columns: Sequence[Column], rows: Sequence[tuple[Sequence[str], str]], notes: Sequence[str] = ()
) -> None:
    """Print rows, each its cells and a style, and notes below them, within the width of the console.

    The first column and the last are to the left, and the first is wrapped; the others are numbers.
    """
    from rich.table import Table
    from rich.text import Text

    widths = [max(map(len, cells)) for cells in zip([column.name for column in columns], *(row[0] for row in rows))]
    kept = [index for index in range(len(columns)) if index == 0 or any(row[0][index] for row in rows)]
    left_out: list[str] = []
    while True:
        taken = sum(widths[index] + 1 for index in kept[1:])
        ranked = [index for index in kept if columns[index].rank]
        if taken + min(widths[0], FIRST_WIDTH) <= console.width or not ranked:
            break
        worst = max(ranked, key=lambda index: columns[index].rank)
        kept.remove(worst)
        left_out.append(columns[worst].name)
    gap = 2 if taken + len(kept) - 1 + widths[0] <= console.width else 1
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    for index in kept:
        ends = index in (0, len(columns) - 1)
        grid.add_column(columns[index].name, justify="left" if ends else "right", no_wrap=index != 0, overflow="fold")
    for cells, style in rows:
        grid.add_row(*(Text(cells[index]) for index in kept), style=style)
    console.print(grid)
    for note in notes:
        console.print(note, markup=False)
    if left_out:
        names = ", ".join(reversed(left_out))
        console.print(f"(left out here, in --json: {names})", style="dim", markup=False)


def number(value: float | None, form: str) -> str:
    """Format a number, "-" without one."""
    return "-" if value is None else format(value, form)


def milliseconds(value: float) -> str:
    """Format milliseconds with four digits, never as a power of ten."""
    return f"{value:,.0f}" if value >= 1e3 else f"{value:.4g}"


def span(low: float, high: float) -> str:
    """Format the 20th and the 80th percentile."""
    return f"{milliseconds(low)}-{milliseconds(high)}"
