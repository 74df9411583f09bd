"""Metrics of classes and of numbers, by scikit-learn and scipy; in percent, as GLUE publishes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from fastbert.io.log import logger
from fastbert.tasks.metrics.library import library

EVALUATION_SET = "the evaluation set"

# Names of the positive class in binary classification.
POSITIVE = ("1", "entailment", "true", "yes", "positive", "pos", "duplicate", "paraphrase", "acceptable")


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Return labels in the order of the model's outputs: numbers by their value, else sorted as strings."""
    names = set(labels)
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def positive_class(labels: Sequence[str]) -> str:
    """Return the positive class of two labels: the one with a usual name (`1`, `entailment`, `true`, `yes`, `positive`,
    ...), else the second in order."""
    named = [label for label in labels if label.lower() in POSITIVE]
    return named[0] if len(named) == 1 else labels[1]


def classification_scores(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str], *, where: str = EVALUATION_SET
) -> dict[str, float]:
    """Compute `accuracy`, `f1`, `macro_f1` and `matthews`, in percent.

    `f1` is that of the `positive_class` if there are two labels, else `macro_f1`: the mean over the classes that occur
    in `gold` or `predicted`. A class of `labels` without a gold example is logged. If all gold examples are of
    one class, Matthews' correlation is undefined and left out, with a warning. `where`: the file.
    """
    _same_length(gold, predicted)
    sklearn = library("sklearn.metrics")
    present = set(gold)
    missing = [label for label in labels if label not in present]
    log_missing(missing, len(labels), where)
    macro = 100 * float(sklearn.f1_score(gold, predicted, average="macro", zero_division=0))
    scores = {"accuracy": 100 * float(sklearn.accuracy_score(gold, predicted))}
    if len(labels) == 2:
        positive = [positive_class(labels)]
        scores["f1"] = 100 * float(sklearn.f1_score(gold, predicted, labels=positive, average="micro", zero_division=0))
    else:
        scores["f1"] = macro
    scores["macro_f1"] = macro
    if len(present) == 1:
        known = f"all {len(gold)} examples are of the class {gold[0]!r}"
        logger.warning("%s: %s: Matthews' correlation is not defined and left out", where, known)
    else:
        scores["matthews"] = 100 * float(sklearn.matthews_corrcoef(gold, predicted))
    return scores


def log_missing(missing: Sequence[str], classes: int, where: str) -> None:
    """Log the classes, of this number, that have no gold example."""
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        counted = "1 class has" if len(missing) == 1 else f"{len(missing)} of {classes} classes have"
        logger.warning("%s: %s no example: %s", where, counted, some)


def choice_scores(gold: Sequence[int | None], predicted: Sequence[int]) -> dict[str, float]:
    """Compute `accuracy` in percent, of the numbers of endings."""
    _same_length(gold, predicted)
    return {"accuracy": 100 * sum(a == b for a, b in zip(gold, predicted, strict=True)) / len(gold)}


def regression_scores(
    gold: Sequence[float], predicted: Sequence[float], *, where: str = EVALUATION_SET
) -> dict[str, float]:
    """Compute `pearson_spearman`, the mean of `pearson` and `spearman`, in percent; and `mse`, in the labels' unit
    squared.

    If all gold or all predicted numbers are equal, correlations are undefined and left out, with a warning.
    """
    _same_length(gold, predicted)
    stats = library("scipy.stats")
    x, y = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    scores = {"mse": float(np.mean((x - y) ** 2))}
    for name, values in (("gold", x), ("predicted", y)):
        if np.all(values == values[0]):
            count = f"all {len(values)} {name} numbers are {values[0]:g}" if len(values) > 1 else "there is one example"
            logger.warning("%s: %s: correlations are not defined and left out", where, count)
            return scores
    with warnings.catch_warnings():
        # scipy warns of a spread of a few rounding errors, and may then return NaN.
        warnings.simplefilter("ignore")
        pearson, spearman = float(stats.pearsonr(x, y)[0]), float(stats.spearmanr(x, y)[0])
    if not np.isfinite([pearson, spearman]).all():
        logger.warning("%s: the numbers hardly differ: correlations are not defined and left out", where)
        return scores
    return {
        "pearson_spearman": 50 * (pearson + spearman),
        "pearson": 100 * pearson,
        "spearman": 100 * spearman,
        **scores,
    }


def _same_length(gold: Sequence[object], predicted: Sequence[object]) -> None:
    if len(gold) != len(predicted) or not gold:
        raise ValueError(f"{len(predicted)} predictions for {len(gold)} examples; there must be one for each")
