"""The picture of a confusion matrix."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

import numpy as np

from fastbert.io.figures import SEQUENTIAL, figure_file, font_families
from fastbert.tasks.reports.report import Confusion, escaped, shortened

MAX_CLASSES = 20
OTHER = "(other)"
CELL = 0.42  # inches
MAX_ZEROS = 10  # classes up to which zeros are written
DARK = 0.6  # share of a row from which a cell's number is white


def draw_confusion(confusion: Confusion, out: Path) -> None:
    """Draw a confusion matrix as a PNG: colour is the share of the gold class, the number is the
    count, and frames mark correct predictions.

    Of more than 20 classes only the most confused are drawn, with the predictions of all others in a last column; if
    all predictions are of one class, the largest classes.
    """
    from matplotlib.patches import Rectangle

    chosen = most_confused(confusion)
    families, missing = font_families(escaped("".join(confusion.labels[i] for i in chosen)))
    numbered = [bool(missing.intersection(confusion.labels[i])) for i in chosen]
    labels = [f"row {i + 1}" if number else shortened(confusion.labels[i]) for i, number in zip(chosen, numbered)]
    counts, total = confusion.counts[np.ix_(chosen, chosen)], confusion.counts[chosen].sum(axis=1)
    columns, title = list(labels), f"confusion of {confusion.what}"
    single = _single_class(confusion)
    if len(chosen) < len(confusion.labels):
        counts = np.column_stack((counts, total - counts.sum(axis=1)))
        columns.append(OTHER)
        which = "most confused" if single is None else "largest"
        title = f"the {len(chosen)} {which} of {len(confusion.labels):,} {confusion.what}"
    if single is not None:
        title += f"; all predictions are '{labels[chosen.index(single)]}'"
    if any(numbered):
        title += "; no installed font has the script of some, which are named by their row in confusion.tsv"
    shares = counts / np.maximum(total, 1)[:, None]
    longest = max(map(len, columns))
    margin = 1.2 + 0.075 * longest
    width, height = (max(CELL * count + margin, 3.2) for count in (len(columns), len(labels)))
    with figure_file(out, width + 0.8, height) as figure:
        figure.set_layout_engine("compressed")
        axes = figure.subplots()
        image = axes.imshow(shares, cmap=SEQUENTIAL, vmin=0, vmax=1)
        slanted = longest > 4
        axes.set_xticks(range(len(columns)), columns, parse_math=False, fontsize=8, rotation=45 if slanted else 0)
        axes.set_yticks(range(len(labels)), labels, parse_math=False, fontsize=8)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_fontfamily(families)
        if slanted:
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
        axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(labels) + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="0.85", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
        for (row, column), count in np.ndenumerate(counts):
            if count or len(labels) <= MAX_ZEROS:
                color = "white" if shares[row, column] >= DARK else "black"
                axes.text(
                    column, row, str(count), ha="center", va="center", fontsize=9 if count < 1000 else 7, color=color
                )
            if row == column:
                axes.add_patch(
                    Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="0.3", linewidth=1.2, zorder=3)
                )
        axes.set(xlabel="predicted", ylabel="gold")
        axes.set_title(fill(title, int(11 * width)), fontsize=10, fontfamily=families)
        figure.colorbar(image, label="share of the gold class")


def most_confused(confusion: Confusion) -> list[int]:
    """Return the numbers of the classes to draw, in their order: all, or the 20 of the most frequent confusions."""
    if len(confusion.labels) <= MAX_CLASSES:
        return list(range(len(confusion.labels)))
    off = confusion.counts.copy()
    np.fill_diagonal(off, 0)
    # Pairs of equal counts are in the order of their classes' sizes. After the confused classes come the largest.
    sizes = confusion.counts.sum(axis=1)
    gold, predicted = np.nonzero(off)
    order = np.lexsort((-sizes[predicted], -sizes[gold], -off[gold, predicted]))
    confused = zip(gold[order].tolist(), predicted[order].tolist())
    largest = np.argsort(-sizes, kind="stable").tolist()
    ranked = dict.fromkeys([*(number for pair in confused for number in pair), *largest])
    return sorted(list(ranked)[:MAX_CLASSES])


def _single_class(confusion: Confusion) -> int | None:
    """Return the class of all predictions, None if there are several, or the gold labels are of that class too."""
    (predicted,) = np.nonzero(confusion.counts.any(axis=0))
    (gold,) = np.nonzero(confusion.counts.any(axis=1))
    return int(predicted[0]) if len(predicted) == 1 and gold.tolist() != predicted.tolist() else None
