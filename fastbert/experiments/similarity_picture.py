"""Heat maps of the similarities between occurrences of a word, one per system, beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.io.figures import SEQUENTIAL, figure_file, font_families

_PANEL, _LABELS, _BAR = 2.9, 2.9, 0.6  # inches
_DARK = 0.6  # from which numbers are white


def draw_similarities(
    words: Mapping[str, tuple[Sequence[str], Mapping[str, Sequence[Sequence[float]]]]], out: Path
) -> Path:
    """Draw a row of panels per word to `out`.

    `words` holds the labels of a word's occurrences, and by the name of a system the cosines (occurrences, occurrences)
    between them. Each cell has its number, so that the picture can be read without its colours.
    """
    systems = list(next(iter(words.values()))[1])
    fonts, missing = font_families("".join(label for labels, _ in words.values() for label in labels))
    readable = str.maketrans(dict.fromkeys(missing, "·"))
    width, height = _LABELS + _PANEL * len(systems) + _BAR, (_PANEL + 0.35) * len(words)
    with figure_file(out, width, height) as figure:
        grid = figure.subplots(len(words), len(systems), squeeze=False)
        for row, (word, (labels, matrices)) in zip(grid, words.items(), strict=True):
            numbers = [str(number) for number in range(1, len(labels) + 1)]
            for axes, name in zip(row, systems, strict=True):
                image = axes.imshow(np.asarray(matrices[name]), cmap=SEQUENTIAL, vmin=0.0, vmax=1.0)
                axes.set_title(f"{word}: {name}", fontsize=10)
                axes.set_xticks(range(len(labels)), numbers, fontsize=7)
                first = axes is row[0]
                names = [
                    f"{label.translate(readable)}  {number}" for label, number in zip(labels, numbers, strict=True)
                ]
                axes.set_yticks(range(len(labels)), names if first else numbers, fontsize=7)
                if first:
                    for text in axes.get_yticklabels():
                        text.set_fontfamily(fonts)
                axes.tick_params(length=0)
                axes.spines[:].set_visible(False)
                _write_numbers(axes, matrices[name])
        figure.colorbar(image, ax=grid, label="cosine (white: 0 and below)", shrink=min(1.0, 0.9 / len(words) + 0.1))
    return out


def _write_numbers(axes: Any, matrix: Sequence[Sequence[float]]) -> None:
    """Write each number in its cell."""
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            color = "white" if value >= _DARK else "black"
            axes.text(j, i, short(value), ha="center", va="center", fontsize=6, color=color)


def short(value: float) -> str:
    """Return a cosine with two digits and without the zero before the point."""
    text = f"{value:.2f}"
    if text in ("1.00", "-1.00"):
        return text[:-3]
    return text.replace("0.", ".", 1) if text not in ("0.00", "-0.00") else "0"
