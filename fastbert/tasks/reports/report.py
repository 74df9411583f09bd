"""A report on the predictions for a file: its tables, and the baselines of the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True)
class Table:
    """A table; None is an empty cell."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]] = ()

    def to_tsv(self) -> str:
        """Return the table under a header: floats with four decimals; backslash, TAB, line feed and carriage return in
        texts as `\\\\`, `\\t`, `\\n` and `\\r`."""
        lines = (self.columns, *self.rows)
        return "".join("\t".join(map(_cell, line)) + "\n" for line in lines)

    def to_records(self) -> list[dict[str, Any]]:
        """Return a dictionary per row, with floats rounded to four decimals."""
        return [
            {name: round(value, 4) if isinstance(value, float) else value for name, value in zip(self.columns, row)}
            for row in self.rows
        ]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value).translate(_ESCAPES)


@dataclass(frozen=True)
class Confusion:
    """Counts of (gold class, predicted class): `counts` is int64 (classes, classes), in the order of `labels`."""

    labels: tuple[str, ...]
    counts: np.ndarray
    what: str = "classes"
    """The classes in words, for the title of the picture."""

    def to_table(self) -> Table:
        """Return the whole matrix, one gold class per row."""
        rows = [(label, *row) for label, row in zip(self.labels, self.counts.tolist(), strict=True)]
        return Table(("gold / predicted", *self.labels), rows)

    def pairs(self) -> Table:
        """Return the pairs of different classes that were confused, most frequent first, with the number and percentage
        of the gold class's examples."""
        import numpy as np

        off = self.counts.copy()
        np.fill_diagonal(off, 0)
        totals = self.counts.sum(axis=1)
        gold, predicted = np.nonzero(off)
        order = np.argsort(-off[gold, predicted], kind="stable")
        rows = [
            (self.labels[i], self.labels[j], int(off[i, j]), int(totals[i]), 100 * float(off[i, j]) / float(totals[i]))
            for i, j in zip(gold[order].tolist(), predicted[order].tolist(), strict=True)
        ]
        return Table(("gold", "predicted", "count", "support", "percent"), rows)


@dataclass(frozen=True)
class Baseline:
    """The scores of predictions that need no model."""

    key: str
    """The key in results.json: `majority`, `chance`, `lookup`, `all` or `linear`."""
    name: str
    """The baseline in words: `majority class`, `all O`."""
    scores: Mapping[str, float]
    """Metric -> score; only the metrics that are defined."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A model's errors on a file. Tasks fill in the fields that apply to them; `errors` is always there."""

    errors: Table
    per_class: Table | None = None
    """Precision, recall, F1 (in percent), support and number of predictions of each class, label or entity type."""
    confusion: Confusion | None = None
    groups: Table | None = None
    """Scores of parts of the file: by length, by question word, by whether an entity occurs in the training set."""
    warnings: tuple[str, ...] = field(default=())
    """Signs that the model has not learned the task, without the file's name."""


def by_key(baselines: Sequence[Baseline]) -> dict[str, dict[str, float]]:
    """Return baseline -> metric -> score, as results.json stores it."""
    return {
        baseline.key: {metric: round(value, 4) for metric, value in baseline.scores.items()} for baseline in baselines
    }
