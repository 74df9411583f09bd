"""A report on the predictions for a file: its tables, and the baselines of the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

QUESTIONS = "first word of the question"  # of groups of answers
MAX_NAME = 24  # characters of a class's name in a summary or a picture
# C0 and C1 controls, line separators, and the marks that change the direction of a text: a terminal obeys them.
CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in CONTROLS}
_ESCAPES |= {ord("\\"): "\\\\", ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}


def escaped(text: str) -> str:
    """Return a text without control characters and marks of direction, which are written as `\\t`, `\\n`, `\\r`,
    `\\xNN` or `\\uNNNN`, and backslash as `\\\\`."""
    return text.translate(_ESCAPES)


def shortened(text: str, length: int = MAX_NAME) -> str:
    """Return an escaped text, cut to `length` characters between two escapes."""
    characters = list(map(escaped, text))
    if sum(map(len, characters)) <= length:
        return "".join(characters)
    ends = accumulate(map(len, characters))
    return "".join(character for character, end in zip(characters, ends) if end < length) + "…"


@dataclass(frozen=True)
class Table:
    """A table; None is an empty cell."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]] = ()

    def to_tsv(self) -> str:
        """Return the table under a header: floats with four decimals, texts as `escaped` returns them."""
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
    return f"{value:.4f}" if isinstance(value, float) else escaped(str(value))


@dataclass(frozen=True)
class Confusion:
    """Counts of (gold class, predicted class): `counts` is int64 (classes, classes), in the order of `labels`."""

    labels: tuple[str, ...]
    counts: np.ndarray
    what: str = "classes"
    """The classes in words, for the title of the picture."""
    outside: str | None = None
    """The label of no entity: as the gold class its row counts spurious entities, as the predicted one missed ones."""

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
