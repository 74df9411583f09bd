"""Reports on classes: per-class scores of single labels and of label sets, confusions, and collapse to one class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from fastbert.tasks.reports.report import Confusion, Table, shortened

COLUMNS = ("class", "precision", "recall", "f1", "support", "predicted")
COUNTS = ("true_positive", "false_positive", "false_negative", "true_negative")
MOST_CLASSES = 2_000  # of a confusion matrix
COLLAPSED, COMMON = 0.95, 0.80  # shares of the predictions, and of the gold labels, of one class
MOST_NAMES = 3  # of labels in a warning


def per_class(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Table:
    """Compute precision, recall and F1 of each class, in percent; 0 where they are undefined."""
    return per_label([(name,) for name in gold], [(name,) for name in predicted], labels)


def per_label(
    gold: Sequence[Collection[str]],
    predicted: Sequence[Collection[str]],
    labels: Sequence[str],
    *,
    counts: bool = False,
) -> Table:
    """Compute the table of `per_class` for sets of labels, each label a yes-or-no question of its own; with `counts`
    also the 2 x 2 confusion of each label."""
    support, guesses = (Counter(name for names in sets for name in set(names)) for sets in (gold, predicted))
    right = Counter(name for x, y in zip(gold, predicted, strict=True) for name in set(x) & set(y))
    rows = []
    for label in labels:
        precision, recall = (100 * right[label] / max(total[label], 1) for total in (guesses, support))
        f1 = 200 * right[label] / max(support[label] + guesses[label], 1)
        spurious, missed = guesses[label] - right[label], support[label] - right[label]
        confused = (right[label], spurious, missed, len(gold) - right[label] - spurious - missed) if counts else ()
        rows.append((label, precision, recall, f1, support[label], guesses[label], *confused))
    return Table((*COLUMNS, *(COUNTS if counts else ())), rows)


def confusion(
    gold: Sequence[str],
    predicted: Sequence[str],
    labels: Sequence[str],
    what: str = "classes",
    outside: str | None = None,
) -> Confusion | None:
    """Count how often each class was predicted as each; None for more than 2,000 classes, whose matrix would be too
    large. `what` and `outside` are those of `Confusion`."""
    if len(labels) > MOST_CLASSES:
        return None
    numbers = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, ([numbers[name] for name in gold], [numbers[name] for name in predicted]), 1)
    return Confusion(tuple(labels), counts, what, outside)


def collapse(gold: Sequence[str], predicted: Sequence[str]) -> tuple[str, ...]:
    """Return a warning if all predictions are of one class and the gold labels are not, or nearly all are of a class
    that most gold labels are not."""
    if len(predicted) < 2:
        return ()
    ((name, count),) = Counter(predicted).most_common(1)
    share, of_gold = count / len(predicted), gold.count(name) / len(gold)
    is_all = count == len(predicted)
    if share < COLLAPSED or of_gold >= (1 if is_all else COMMON):
        return ()
    amount = "all" if is_all else f"{100 * share:.1f} % of the"
    return (
        f"{amount} predictions are '{shortened(name)}', the class of {100 * of_gold:.1f} % of the examples;"
        " train for more steps, or with a different --lr",
    )


def never_predicted(gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]]) -> tuple[str, ...]:
    """Return a warning if labels that occur in the gold sets occur in no predicted one; it names the most frequent."""
    counts = Counter(name for names in gold for name in set(names))
    missing = counts.keys() - {name for names in predicted for name in names}
    if not missing:
        return ()
    names = sorted(missing, key=lambda name: (-counts[name], name))[:MOST_NAMES]
    shown = ", ".join(f"'{shortened(name)}'" for name in names) + (", ..." if len(missing) > len(names) else "")
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{len(missing):,} of {len(counts):,} labels in the file {verb} never predicted: {shown}; train for more steps,"
        " or with --class-weights balanced",
    )
