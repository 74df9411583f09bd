"""`fastbert.TextClassifier`: fine-tune a model on texts and labels, as a classifier of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastbert.errors import UserError
from fastbert.integrations.sklearn.bases import BaseEstimator, ClassifierMixin, library, mark_text_input
from fastbert.integrations.sklearn.trained_model import TrainedModel
from fastbert.integrations.sklearn.training import TrainingOptions, train
from fastbert.io.columns import is_missing, items_of, refuse_surrogates, wrong_item
from fastbert.io.plain_numbers import plain_number
from fastbert.tasks.classifier import Classifier, Items
from fastbert.tasks.classifier_inputs import Pair, texts_and_pairs
from fastbert.tasks.inference import Device

if TYPE_CHECKING:
    from numpy.random import RandomState

DIFFERENT_TYPES = "y holds labels of different types, which cannot be sorted: make them strings"


class TextClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of texts that `fit` fine-tunes from a pre-trained model, as an estimator of scikit-learn.

    Attributes after `fit`: `classes_`, the sorted labels (classes,) in the dtype of `y`. Pickles and copies of a fitted
    estimator hold the trained model's files, so that they need no folder; `save_pretrained` writes them for
    `fastbert.Classifier` and transformers.

    Example:
        import fastbert

        classifier = fastbert.TextClassifier("runs/mine/model", steps=2, random_state=0)
        classifier.fit(["a short one.", "one", "short", "a"], ["long", "short", "long", "short"])
        print(classifier.classes_, classifier.predict(["one short"]))
    """

    def __init__(
        self,
        model: str | Path,
        *,
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        max_length: int | None = None,
        class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
        frozen: bool = False,
        validation_fraction: float | None = None,
        early_stopping: int | None = None,
        random_state: int | RandomState | None = None,
        device: Device | None = "auto",
        dtype: Literal["auto", "fp32", "bf16"] = "auto",
        show_progress_bar: bool | None = False,
    ) -> None:
        """Keep the options; `fit` checks them.

        Args:
            model: the folder of a pre-trained model or of its run, or its name in the Hub's local cache.
            epochs: passes over the texts; None is chosen by their number and that of the classes (2 to 20).
            steps: optimiser steps; with `epochs`, whichever ends first.
            batch_size: texts per step; None is 8 to 32, by their number.
            lr: the highest learning rate; None is chosen by the model's width.
            max_length: tokens per text or pair, special ones included; None is 128, or what the model allows.
            class_weight: "balanced", or the weight of each class in the loss, 1 for those left out.
            frozen: train only the new layer on top of the model.
            validation_fraction: the part of the texts on which the best epoch is chosen; None trains on all of them.
            early_stopping: epochs without a better score before stopping, with `validation_fraction`.
            random_state: the seed of the new layer, the order of the texts and dropout; None draws one.
            device: "auto" (a GPU if there is one), "cpu" or "cuda".
            dtype: of matmuls; "auto" is the fastest on the device.
            show_progress_bar: True shows a bar, None one on a terminal after two seconds.
        """
        self.model: str | Path = model
        self.epochs: float | None = epochs
        self.steps: int | None = steps
        self.batch_size: int | None = batch_size
        self.lr: float | None = lr
        self.max_length: int | None = max_length
        self.class_weight: Literal["balanced"] | Mapping[Any, float] | None = class_weight
        self.frozen: bool = frozen
        self.validation_fraction: float | None = validation_fraction
        self.early_stopping: int | None = early_stopping
        self.random_state: int | RandomState | None = random_state
        self.device: Device | None = device
        self.dtype: Literal["auto", "fp32", "bf16"] = dtype
        self.show_progress_bar: bool | None = show_progress_bar

    def fit(self, X: Items, y: ArrayLike) -> Self:
        """Fine-tune the model on texts or pairs of texts X (texts,), a list, an array or a column, and their labels `y`
        (texts,) of any dtype that can be sorted; return the estimator.

        The same `random_state` on the same machine gives the same model. Raises UserError for wrong options, for a text
        or label that is missing, by its index, for fewer than two classes, and for a model that cannot be trained.

        Example:
            import fastbert

            classifier = fastbert.TextClassifier("runs/mine/model", epochs=1, lr=1e-3)
            classifier.fit(["a short one.", "one"], [1, 0])
        """
        texts = _texts(X)
        classes, numbers = _labels(y, len(texts))
        if len(classes) < 2:
            raise UserError(f"y has one class, {classes.tolist()[0]!r}: a classifier needs two classes or more")
        seed = int(library("sklearn.utils").check_random_state(self.random_state).randint(2**31 - 1))
        names = tuple(map(str, classes.tolist()))
        self._trained: TrainedModel = train(
            texts, [names[number] for number in numbers.tolist()], names, self._options(classes), seed
        )
        self.classes_: NDArray[Any] = classes
        return self

    def predict(self, X: Items) -> NDArray[Any]:
        """Return the label of each text of X (texts,), a list, a generator, an array or a column: (texts,) in the dtype
        of the labels.

        Raises NotFittedError before `fit`, and UserError for an item that is missing or not a text, by its index.

        Example:
            import fastbert

            classifier = fastbert.TextClassifier("runs/mine/model", steps=1).fit(["a", "one"], ["x", "y"])
            print(classifier.predict(["a short one."]))
        """
        probabilities = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Items) -> NDArray[np.float64]:
        """Return the probability of each class, in the order of `classes_`, for texts X (texts,): float64 (texts,
        classes).

        Raises NotFittedError before `fit`, and UserError for an item that is missing or not a text, by its index.

        Example:
            import fastbert

            classifier = fastbert.TextClassifier("runs/mine/model", steps=1).fit(["a", "one"], ["x", "y"])
            print(classifier.predict_proba(["a short one."]).round(3))
        """
        return self._classifier().predict_proba(_several(X), show_progress_bar=self.show_progress_bar)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the trained model to a new folder, which `fastbert.Classifier`, `fastbert predict` and transformers
        load; its classes are the labels as text.

        Raises NotFittedError before `fit`, and UserError for a folder that is not empty.

        Example:
            import tempfile

            import fastbert

            classifier = fastbert.TextClassifier("runs/mine/model", steps=1).fit(["a", "one"], ["x", "y"])
            with tempfile.TemporaryDirectory() as folder:
                classifier.save_pretrained(folder)
                print(fastbert.Classifier(folder).classes_)
        """
        self._checked().save(Path(folder))

    def _checked(self) -> TrainedModel:
        """Return the trained model. Raises NotFittedError before `fit`."""
        library("sklearn.utils.validation").check_is_fitted(self)
        return self._trained

    def _classifier(self) -> Classifier:
        return self._checked().classifier(self.device, self.dtype)

    def _options(self, classes: NDArray[Any]) -> TrainingOptions:
        """Return the options of the training; a search over parameters may have set them to scalars of NumPy."""
        return TrainingOptions(
            model=self.model,
            epochs=plain_number(self.epochs),
            steps=plain_number(self.steps),
            batch_size=plain_number(self.batch_size),
            lr=plain_number(self.lr),
            max_length=plain_number(self.max_length),
            class_weights=_weights(self.class_weight, classes),
            frozen=plain_number(self.frozen),
            validation_fraction=plain_number(self.validation_fraction),
            early_stopping=plain_number(self.early_stopping),
            device=self.device,
            dtype=self.dtype,
            show_progress_bar=self.show_progress_bar,
        )

    def __sklearn_tags__(self) -> Any:
        return mark_text_input(super().__sklearn_tags__())


def _several(texts: Items) -> Items:
    if isinstance(texts, str):
        raise UserError("X is a single text: give a list of texts, [text] for example")
    return texts


def _texts(X: Items) -> list[Pair]:
    """Return the training texts, each with the second of a pair or None."""
    texts = list(texts_and_pairs(items_of(_several(X), "X"), X, None, paired=None, name="X"))
    for part in (0, 1):
        refuse_surrogates((pair[part] or "" for pair in texts), "X")
    if not texts:
        raise UserError("X has no texts (0 samples): a classifier needs two or more")
    return texts


def _labels(y: ArrayLike | None, texts: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the classes, sorted, and the number of each text's class (texts,)."""
    if y is None:
        raise UserError("TextClassifier requires y to be passed, but the target y is None: give a label per text")
    labels: NDArray[Any] = library("sklearn.utils.validation").column_or_1d(_label_array(y), warn=True)
    _refuse_missing(labels.tolist())
    if len(labels) != texts:
        raise UserError(f"X has {texts} texts and y {len(labels)} labels: give as many")
    try:
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError:
        raise UserError(DIFFERENT_TYPES) from None
    library("sklearn.utils.multiclass").check_classification_targets(labels)
    return classes, numbers


def _label_array(y: ArrayLike) -> NDArray[Any]:
    """Return labels as an array. NumPy would make strings of numbers and missing labels beside strings: they are
    refused."""
    try:
        labels = np.asarray(y)
    except ValueError:  # lists of different lengths
        raise UserError(
            "y holds lists of labels: give one label per text (sets: `fastbert finetune --task multilabel`)"
        ) from None
    if isinstance(y, list | tuple) and labels.dtype.kind == "U" and labels.ndim == 1:
        _refuse_missing(y)
        if not all(isinstance(label, str) for label in y):
            raise UserError(DIFFERENT_TYPES)
    return labels


def _refuse_missing(labels: Sequence[object]) -> None:
    for index, label in enumerate(labels):
        if is_missing(label):
            raise wrong_item(label, f"y[{index}]", labels)


def _weights(class_weight: object, classes: NDArray[Any]) -> dict[str, float] | Literal["balanced"] | None:
    """Return the weights of classes by their names."""
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        return "balanced"
    if not isinstance(class_weight, Mapping):
        raise UserError(f"class_weight={class_weight!r} must be 'balanced', a dictionary of weights by class, or None")
    known = {label: str(label) for label in classes.tolist()}
    weights = {name: plain_number(weight) for name, weight in class_weight.items()}
    for name, weight in weights.items():
        if name not in known:
            raise UserError(f"class_weight: {name!r} is not one of the classes {', '.join(map(repr, known))}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e6:
            raise UserError(
                f"class_weight: the weight of {name!r} is {weight!r}; it must be above 0 and below a million"
            )
    return {known[name]: float(weight) for name, weight in weights.items()}
