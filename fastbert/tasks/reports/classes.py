"""Reports on classes: per-class scores of single labels and of label sets, confusions, and collapse to one class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fastbert.tasks.metrics.library import library
from fastbert.tasks.reports.report import Confusion, Table

COLUMNS = ("class", "precision", "recall", "f1", "support", "predicted")
COLLAPSED, COMMON = 0.95, 0.80  # shares of the predictions, and of the gold labels, of one class


def per_class(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Table:
    """Compute precision, recall and F1 of each class, in percent, by scikit-learn; 0 where they are undefined."""
    scores = library("sklearn.metrics").precision_recall_fscore_support(
        list(gold), list(predicted), labels=list(labels), zero_division=0
    )
    return _table(labels, scores, Counter(predicted))


def per_label(gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str]) -> Table:
    """Compute the table of `per_class` for sets of labels, each label a yes-or-no question of its own."""
    binarizer = library("sklearn.preprocessing").MultiLabelBinarizer(classes=list(labels), sparse_output=True)
    matrices = [binarizer.fit_transform([set(names) for names in sets]) for sets in (gold, predicted)]
    scores = library("sklearn.metrics").precision_recall_fscore_support(*matrices, zero_division=0)
    return _table(labels, scores, Counter(name for names in predicted for name in set(names)))


def _table(labels: Sequence[str], scores: Any, counts: Counter[str]) -> Table:
    precision, recall, f1, support = (values.tolist() for values in scores)
    return Table(
        COLUMNS,
        [
            (label, 100 * precision[i], 100 * recall[i], 100 * f1[i], int(support[i]), counts[label])
            for i, label in enumerate(labels)
        ],
    )


def confusion(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str], what: str = "classes") -> Confusion:
    """Count how often each class was predicted as each."""
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
