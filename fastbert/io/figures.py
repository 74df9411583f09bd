"""Figures: the palette, the style of axes and the way a picture is written, shared by all plots and charts.

Colours are Okabe and Ito's, which every kind of colour vision tells apart. Series also differ in line and marker, and
bars in hatching, so that a picture in grey can be read. The background is opaque white, on light and dark pages alike.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.atomic_write import atomic_write

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
COLORS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK)  # of series, in this order
GREY = "#B8B8B8"  # of bars beside the one that matters
SEQUENTIAL = "Blues"  # the colour map of matrices: darker is more, in grey too
PICTURES = (".png", ".pdf", ".svg")

_FONT = "DejaVu Sans"  # comes with matplotlib
_BOXES = "Last Resort"  # a font that has a box for every character
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v")
_HATCHES = ("", "//", "..", "\\\\", "xx")
_BASELINES = (":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 4)), (0, (8, 3)), (0, (3, 1, 1, 1)))
_BASELINE_COLOR = "0.3"
_DOTS_PER_INCH = 120
_LEGEND_SIZE, _LEGEND_ROW = 8, 0.19  # points and inches


@contextmanager
def figure_file(out: Path, width: float, height: float) -> Iterator[Any]:
    """Yield an empty matplotlib figure of `width` by `height` inches; at the end of the block write it to `out` whole.

    The figure has the project's style whatever the user's matplotlibrc says. Raises `UserError` for a name that does
    not end in .png, .pdf, .svg or another ending that matplotlib supports.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    if not out.name:
        raise UserError(f"{str(out)!r} is not a file name; end it in {', '.join(PICTURES)}")
    with style.context(["default", {"text.parse_math": False}]):  # names of files and classes may hold a $
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        ending = out.suffix.removeprefix(".").lower()
        if ending not in figure.canvas.get_supported_filetypes():
            raise UserError(f"{out} does not end as a picture; end the name in {', '.join(PICTURES)}")
        yield figure
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(out) as partial:
            figure.savefig(partial, dpi=_DOTS_PER_INCH, format=ending)


def font_families(text: str) -> tuple[list[str], set[str]]:
    """Return the font families that draw `text`, for `fontfamily` of matplotlib: its default font, then installed ones
    for characters that it lacks; and the characters that no installed font has."""
    from matplotlib import font_manager, rcParams

    default = font_manager.FontEntry(fname=font_manager.findfont(_FONT), name=_FONT)
    others = [entry for entry in font_manager.fontManager.ttflist if not entry.name.startswith(_BOXES)]
    families, missing = [], {character for character in text if character.isprintable() and not character.isspace()}
    for entry in (default, *sorted(others, key=lambda entry: (entry.name, entry.fname))):
        if not missing:
            break
        try:
            characters = font_manager.get_font(entry.fname).get_charmap()
        except (OSError, RuntimeError):  # a file that is gone or damaged, and fonts of pictures
            continue
        if entry is default or any(ord(character) in characters for character in missing):
            families.append(entry.name)
            missing = {character for character in missing if ord(character) not in characters}
    return families or list(rcParams["font.family"]), missing


def line_style(index: int) -> dict[str, Any]:
    """Return colour, line and marker of the series number `index`, from 0: arguments of `axes.plot`."""
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": _LINES[index % len(_LINES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 4.5,
    }


def bar_style(index: int) -> dict[str, Any]:
    """Return colour and hatching of the bars number `index`, from 0: arguments of `axes.bar` and `axes.barh`."""
    hatch = _HATCHES[index % len(_HATCHES)]
    return {"color": COLORS[index % len(COLORS)], "hatch": hatch, "edgecolor": "white"}


def draw_baseline(axes: Any, value: float, name: str, index: int = 0) -> Any:
    """Draw a dotted horizontal line at a baseline's value, named with the value in the legend; return the line.
    `index` distinguishes several in one panel."""
    line = _BASELINES[index % len(_BASELINES)]
    return axes.axhline(value, color=_BASELINE_COLOR, linestyle=line, linewidth=1.4, label=f"{name} ({value:.3g})")


def finish_axes(axes: Any, *, legend: bool = False) -> None:
    """Apply the style of all plots: a light grid behind the data, no frame on the top and right."""
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=_LEGEND_SIZE)


def caption(figure: Any, text: str) -> None:
    """Write a caption below a figure, wrapped to its width."""
    characters = int(figure.get_size_inches()[0] * 16)
    wrapped = textwrap.fill(text.replace(" %", "\u00a0%"), characters)
    figure.supxlabel(wrapped, fontsize=8.5, x=0.01, ha="left", color="0.25")


def legend_below(figure: Any, handles: Sequence[Any]) -> None:
    """Draw one legend below all panels, where it covers no data, and make the figure higher by its height."""
    if not handles:
        return
    width, height = figure.get_size_inches()
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(4, len(handles), int(width * 72 / (_LEGEND_SIZE * 0.6 * (longest + 8)))))
    figure.set_size_inches(width, height + _LEGEND_ROW * math.ceil(len(handles) / columns) + 0.1)
    where = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles=handles, **where, frameon=False, fontsize=_LEGEND_SIZE)
