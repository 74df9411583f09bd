"""Weights of classes in the training loss: rare classes count more, or each as a file says.

Imports neither torch nor numpy: the command line is generated from the flags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

from fastbert.errors import UserError
from fastbert.flags import TRAINING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

BALANCED = "balanced"
MOST = 20.0
"""The largest weight that `balanced_positives` gives."""


@dataclass(frozen=True, kw_only=True)
class ClassWeightFlags:
    """The weights of classes, for training."""

    GROUP: ClassVar = TRAINING

    class_weights: str | None = None
    """Weight of each class in the loss: "balanced", or a .json file by label."""


def check_setting(setting: str) -> None:
    """Raise UserError for a setting of `ClassWeightFlags` that is neither `BALANCED` nor the name of a .json file."""
    if setting != BALANCED and not setting.endswith(".json"):
        raise UserError(f"--class-weights {setting}: must be {BALANCED}, or a .json file of weights by label")


def class_weights(setting: str, labels: Sequence[str], classes: np.ndarray) -> np.ndarray:
    """Return the weight of each class, fp32 (labels,), for training examples with these classes, int64 (examples,).

    `setting` is that of `ClassWeightFlags`. Balanced weights are scikit-learn's: n / (classes * count), over the
    classes that occur. Raises UserError for a file that does not fit.
    """
    import numpy as np

    if setting != BALANCED:
        return file_weights(setting, labels)
    counts = np.bincount(classes, minlength=len(labels))
    weights = counts.sum() / (max(np.count_nonzero(counts), 1) * np.maximum(counts, 1))
    return weights.astype(np.float32)


def positive_weights(setting: str, labels: Sequence[str], targets: np.ndarray) -> np.ndarray:
    """Return the weight of the examples that have a label, fp32 (labels,); those without it weigh 1.

    `targets` are 0 and 1, (examples, labels). Balanced weights are negatives / positives, at most `MOST`, so that a few
    examples do not decide everything; a label without examples weighs 1. Raises UserError for a file that does not fit.
    """
    import numpy as np

    if setting != BALANCED:
        return file_weights(setting, labels)
    positives = targets.sum(axis=0, dtype=np.float64)
    ratios = np.minimum((len(targets) - positives) / np.maximum(positives, 1), MOST)
    # A label that all examples have would weigh nothing.
    weights = np.where((positives == 0) | (ratios == 0), 1.0, ratios)
    return weights.astype(np.float32)


def file_weights(path: str, labels: Sequence[str]) -> np.ndarray:
    """Read weights by label from a JSON file, fp32 (labels,); the labels that it lacks weigh 1. Raises UserError."""
    import numpy as np

    from fastbert.tasks.readers.cells import number
    from fastbert.tasks.readers.tables import read_json

    check_setting(path)
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f'{path}, line 1: must be a JSON object of weights by label, {{"rare": 3}} for example')
    weights = dict.fromkeys(labels, 1.0)
    for label, value in values.items():
        if label not in weights:
            close = get_close_matches(label, labels, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(labels[:8])}"
            raise UserError(f"{path}: the training set has no label {label!r}; {meant}")
        weights[label] = number(value, path, f"the weight of {label!r}")
        if not 0 < weights[label] < 1e6:
            raise UserError(f"{path}: the weight of {label!r} is {value}; it must be above 0 and below a million")
    return np.array(list(weights.values()), dtype=np.float32)


def weighted_class_loss(logits: Tensor, labels: Tensor, weights: Tensor, items: float) -> Tensor:
    """Return the sum of the labels' cross-entropies times their weights, divided by `items`, fp32 ().

    Logits are (rows, classes), `labels` int64 (rows,), `weights` fp32 (rows,). With the sum of all weights as `items`
    it is the mean of torch's CrossEntropyLoss(weight).
    """
    from torch.nn import functional as F

    return (F.cross_entropy(logits.float(), labels, reduction="none") * weights).sum() / items


def weighted_label_set_loss(logits: Tensor, labels: Tensor, weights: Tensor, items: float) -> Tensor:
    """Return the sum of the binary cross-entropies times their weights, divided by `items`, fp32 ().

    Logits, labels (0 and 1) and weights are (rows, classes). With `weights` of 1 where a label is 0, and the number of
    elements as `items`, it is the mean of torch's BCEWithLogitsLoss(pos_weight).
    """
    from torch.nn import functional as F

    return F.binary_cross_entropy_with_logits(logits.float(), labels, weights, reduction="sum") / items
