"""Charts: panels of horizontal bars, at most eight in a picture, with the notes of the table below them."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fastbert.benchmarks.harness.tables import Notes
from fastbert.io.figures import BLUE, GREY, ORANGE, figure_file

FASTBERT_COLOR, OTHER_COLOR, WRONG_COLOR = BLUE, GREY, ORANGE
MOST_PANELS = 8  # in a picture
PANELS_ACROSS = 2
ROOM = 1.9  # of a panel's longest bar: for the text behind it
NOTE_HEIGHT = 0.14  # inches per line
TITLE_WIDTH = 62  # characters

T = TypeVar("T")


class Bar(NamedTuple):
    """A bar: its name and length, the text behind it, and whether it is fastbert's and its outputs are right."""

    name: str
    length: float
    text: str
    own: bool
    right: bool


def draw_pages(
    path: Path,
    items: Sequence[T],
    draw: Callable[[Any, Sequence[T], Notes], None],
    *,
    size: Callable[[Sequence[T]], tuple[float, float]],
    title: str,
    panels: int = 1,
) -> list[Path]:
    """Draw items, of `panels` panels each, to `path`, or to several numbered files; return the files.

    `draw` draws the items of a page to a figure of `size` and adds to its notes.
    """
    most = MOST_PANELS // panels
    pages = [items[first : first + most] for first in range(0, len(items), most)]
    # Pages of about equal size.
    share = -(-len(items) // max(len(pages), 1))
    pages = [items[first : first + share] for first in range(0, len(items), share)] if pages else []
    names = [path] if len(pages) == 1 else [path.with_stem(f"{path.stem}-{n}") for n in range(1, len(pages) + 1)]
    for index, (name, page) in enumerate(zip(names, pages, strict=True), start=1):
        width, height = size(page)
        with figure_file(name, width, height) as figure:
            notes = Notes()
            draw(figure, page, notes)
            part = f" ({index} of {len(pages)})" if len(pages) > 1 else ""
            figure.suptitle(f"{title}{part}", fontsize=10)
            _write_notes(figure, notes)
    if len(names) > 1:
        print(f"{path}: more than {MOST_PANELS} panels, in {names[0].name} to {names[-1].name}", file=sys.stderr)
    return names


def draw_workloads(
    path: Path,
    rows: Mapping[str, Sequence[Any]],
    panel: Callable[[Any, str, Notes], None],
    *,
    panel_width: float,
    title: str,
    page_notes: Callable[[Sequence[str], Notes], None] = lambda page, notes: None,
) -> list[Path]:
    """Draw one panel per workload, two across, as `draw_pages` does; return the files.

    `rows` are those of each workload; `panel` draws a workload to its axes, and `page_notes` adds to the notes of a
    page.
    """

    def size(page: Sequence[str]) -> tuple[float, float]:
        across = min(PANELS_ACROSS, len(page))
        tallest = max(len(rows[workload]) for workload in page)
        return max(7.5, panel_width * across), (0.8 + 0.3 * tallest) * -(-len(page) // across) + 0.9

    def draw(figure: Any, page: Sequence[str], notes: Notes) -> None:
        across = min(PANELS_ACROSS, len(page))
        axes = figure.subplots(-(-len(page) // across), across, squeeze=False)
        for axis in axes.flat[len(page) :]:
            axis.set_axis_off()
        for axis, workload in zip(axes.flat, page):
            panel(axis, workload, notes)
        page_notes(page, notes)

    return draw_pages(path, list(rows), draw, size=size, title=title)


def bars(axis: Any, rows: Sequence[Bar], *, title: str, unit: str) -> None:
    """Draw horizontal bars from the top: fastbert blue and in bold, others grey, wrong ones orange and hatched."""
    longest = max((row.length for row in rows), default=0.0) or 1.0
    for index, row in enumerate(rows):
        color = WRONG_COLOR if not row.right else FASTBERT_COLOR if row.own else OTHER_COLOR
        edge, hatch = ("white", None) if row.right else ("black", "//")
        axis.barh(index, row.length, color=color, edgecolor=edge, hatch=hatch)
        axis.text(row.length + 0.02 * longest, index, row.text, va="center", fontsize=7)
    axis.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    for label, row in zip(axis.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.own else "normal")
    axis.invert_yaxis()
    axis.set_xlim(0, ROOM * longest)
    axis.set_title("\n".join([*textwrap.wrap(title, TITLE_WIDTH), unit]), fontsize=8, loc="left")
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)


def _write_notes(figure: Any, notes: Notes) -> None:
    """Write the notes below the panels, and make the figure higher by them."""
    width, height = figure.get_size_inches()
    lines = [line for note in notes.lines() for line in textwrap.wrap(note, int(15 * width), subsequent_indent="    ")]
    if lines:
        figure.set_size_inches(width, height + NOTE_HEIGHT * (len(lines) + 1))
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7)
