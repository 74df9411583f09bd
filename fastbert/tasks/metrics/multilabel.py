"""Metrics of sets of labels, by scikit-learn; in percent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastbert.io.log import logger
from fastbert.tasks.metrics.classification import EVALUATION_SET, log_missing
from fastbert.tasks.metrics.library import library


def multilabel_scores(
    gold: np.ndarray,
    predicted: np.ndarray,
    probabilities: np.ndarray | None,
    labels: Sequence[str],
    *,
    where: str = EVALUATION_SET,
) -> dict[str, float]:
    """Compute `micro_f1`, `micro_precision` and `micro_recall` over all labels of all examples, `macro_f1`, the mean
    over the labels that occur in `gold` or `predicted`, and `subset_accuracy`, the examples whose whole set is right;
    in percent.

    `gold` and `predicted` are bool (examples, labels). With `probabilities` of the same shape also `lrap`, label
    ranking average precision: the mean over an example's labels of the share of its labels among those ranked at least
    as high; 1 for an example without labels, or with all. Labels without a gold example are logged. If no gold example
    has a label, F1, precision and recall are undefined and left out, with a warning.
    """
    if gold.shape != predicted.shape or not len(gold):
        raise ValueError(f"predictions of shape {predicted.shape} for examples of {gold.shape}; there must be one each")
    sklearn = library("sklearn.metrics")
    scores: dict[str, float] = {}
    if gold.any():
        log_missing([labels[index] for index in np.flatnonzero(gold.sum(axis=0) == 0).tolist()], len(labels), where)
        precision, recall, f1, _ = sklearn.precision_recall_fscore_support(
            gold, predicted, average="micro", zero_division=0
        )
        occurring = np.flatnonzero(gold.any(axis=0) | predicted.any(axis=0))
        macro = sklearn.f1_score(gold, predicted, labels=occurring, average="macro", zero_division=0)
        scores = {"micro_f1": f1, "micro_precision": precision, "micro_recall": recall, "macro_f1": macro}
    else:
        logger.warning("%s: no example has a label: F1, precision and recall are not defined and left out", where)
    scores["subset_accuracy"] = np.mean((gold == predicted).all(axis=1))
    if probabilities is not None:
        scores["lrap"] = sklearn.label_ranking_average_precision_score(gold, probabilities)
    return {name: 100 * float(value) for name, value in scores.items()}
