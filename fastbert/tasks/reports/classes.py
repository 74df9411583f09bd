"""Reports on classes: per-class scores of single labels and of label sets, confusions, and collapse to one class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from fastbert.tasks.reports.report import Confusion, Table

COLUMNS = ("class", "precision", "recall", "f1", "support", "predicted")
MOST_CLASSES = 2_000  # of a confusion matrix
COLLAPSED, COMMON = 0.95, 0.80  # shares of the predictions, and of the gold labels, of one class


def per_class(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Table:
    """Compute precision, recall and F1 of each class, in percent; 0 where they are undefined."""
    return per_label([(name,) for name in gold], [(name,) for name in predicted], labels)


def per_label(gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str]) -> Table:
    """Compute the table of `per_class` for sets of labels, each label a yes-or-no question of its own."""
    support, guesses = (Counter(name for names in sets for name in set(names)) for sets in (gold, predicted))
    right = Counter(name for x, y in zip(gold, predicted, strict=True) for name in set(x) & set(y))
    rows = []
    for label in labels:
        precision, recall = (100 * right[label] / max(counts[label], 1) for counts in (guesses, support))
        f1 = 200 * right[label] / max(support[label] + guesses[label], 1)
        rows.append((label, precision, recall, f1, support[label], guesses[label]))
    return Table(COLUMNS, rows)


def confusion(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str], what: str = "classes"
) -> Confusion | None:
    """Count how often each class was predicted as each; None for more than 2,000 classes, whose matrix would be too
    large."""
    if len(labels) > MOST_CLASSES:
        return None
    numbers = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, ([numbers[name] for name in gold], [numbers[name] for name in predicted]), 1)
    return Confusion(tuple(labels), counts, what)


def collapse(gold: Sequence[str], predicted: Sequence[str]) -> tuple[str, ...]:
    """Return a warning if (nearly) all predictions are of one class that most gold labels are not."""
    if len(predicted) < 2:
        return ()
    ((name, count),) = Counter(predicted).most_common(1)
    share, of_gold = count / len(predicted), gold.count(name) / len(gold)
    if share < COLLAPSED or of_gold >= COMMON:
        return ()
    amount = "all" if count == len(predicted) else f"{100 * share:.1f} % of the"
    return (
        f"{amount} predictions are {name!r}, the class of {100 * of_gold:.1f} % of the examples;"
        " train for more steps, or with a different --lr",
    )
