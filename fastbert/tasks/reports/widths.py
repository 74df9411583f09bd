"""Draw metrics over the width of truncated vectors (Matryoshka)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fastbert.io.figures import figure_file, finish_axes, legend_below, line_style


def draw_widths(scores: Mapping[int, Mapping[str, float]], out: Path) -> Path:
    """Draw a line per metric, in percent, over the widths, of which `scores` has the metrics by name; return `out`.

    Widths are on a logarithmic axis. Raises UserError for a name that does not end as a picture.
    """
    widths = sorted(scores)
    with figure_file(out, 6.5, 4.2) as figure:
        axes = figure.subplots()
        lines = [
            axes.plot(widths, [scores[width][name] for width in widths], label=name, **line_style(index))[0]
            for index, name in enumerate(scores[widths[0]])
        ]
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        axes.set_xlabel("numbers per vector")
        axes.set_ylabel("%")
        finish_axes(axes)
        legend_below(figure, lines)
    return out
