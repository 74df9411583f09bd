"""Multilabel: a set of classes per text or pair of texts, each of them by a sigmoid of its own, such as emotions,
topics, or kinds of abuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tasks.class_weights import ClassWeightFlags, positive_weights, weighted_label_set_loss
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, TextExample
from fastbert.tasks.metrics.classification import ordered
from fastbert.tasks.multilabel.flags import MultiLabelFlags
from fastbert.tasks.multilabel.label_sets import (
    find_separator,
    read_cell,
    read_prediction,
    split,
    write_cell,
)
from fastbert.tasks.probabilities import label_probabilities
from fastbert.tasks.readers.cells import number
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tasks.texts import TextSettings, TextTask, refuse_unknown

if TYPE_CHECKING:
    from torch import Tensor

    from fastbert.tasks.reports.report import Baseline, Report

PROBLEM = "multi_label_classification"


@dataclass(frozen=True, kw_only=True)
class MultiLabelSettings(TextSettings, MultiLabelFlags, ClassWeightFlags):
    """Settings of sets of labels."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise UserError(f"--threshold {self.threshold:g} must be above 0 and below 1 (a probability)")
        if self.label_separator == "":
            raise UserError("--label-separator '': is empty; give the text between two labels, | for example")


def _probabilities(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the probabilities of a prediction, checked, if it has any."""
    values = record.get("probabilities")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{where}: 'probabilities' must be an object, not {type(values).__name__}")
    return {
        "probabilities": {
            label: number(value, where, f"the probability of {label!r}") for label, value in values.items()
        }
    }


class MultiLabel(TextTask):
    """sigmoid(W C) per class, C the pooled first token, trained by binary cross-entropy; labels are sorted like those
    of classification.

    `read` sets the separator of labels, which the trained model keeps, if it is not set.
    """

    name = "multilabel"
    metrics: ClassVar[tuple[str, ...]] = (
        "micro_f1",
        "macro_f1",
        "subset_accuracy",
        "micro_precision",
        "micro_recall",
        "lrap",
    )
    prediction_format: ClassVar[PredictionFormat] = PredictionFormat(
        "labels",
        (".tsv", ".txt"),
        lambda value, where, example: list(read_prediction(value, where, "the predicted labels")),
        details=_probabilities,
        write_cell=write_cell,
    )
    settings_type: ClassVar[type[MultiLabelSettings]] = MultiLabelSettings
    weighted_loss: ClassVar[Callable[..., Tensor]] = staticmethod(weighted_label_set_loss)
    settings: MultiLabelSettings

    def read(self, path: str, *, labelled: bool = True) -> Dataset[TextExample]:
        from fastbert.tasks.readers.texts import read_texts

        columns, skip_bad = self.settings.columns, self.settings.skip_bad
        dataset = read_texts(
            path, columns, labelled=labelled, regression=False, skip_bad=skip_bad, read_label=read_cell
        )
        return self._split(dataset) if labelled else dataset

    def _split(self, dataset: Dataset[TextExample]) -> Dataset[TextExample]:
        """Return the examples with labels that are text split at the separator."""
        separator = self.settings.label_separator
        texts = [example.label for example in dataset if isinstance(example.label, str)]
        if separator is None and (separator := find_separator(texts)) is not None:
            logger.warning("%s: labels are separated by %r; --label-separator names another", dataset.path, separator)
            self.settings = replace(self.settings, label_separator=separator)
        examples = [
            replace(example, label=split(example.label, separator)) if isinstance(example.label, str) else example
            for example in dataset
        ]
        return Dataset(dataset.path, tuple(examples))

    def learn_labels(self, train: Dataset[TextExample]) -> None:
        super().learn_labels(train)
        if self.labels is not None:
            return
        sets = [labels_of(example) for example in train]
        labels = {label for labels in sets for label in labels}
        if not labels:
            raise UserError(f"{train.path}: none of the {len(train)} examples has a label, so nothing can be learned")
        if all(len(labels) == 1 for labels in sets):
            logger.warning(
                "%s: each example has one label: --task classification is for these, unless --label-separator is wrong",
                train.path,
            )
        self.labels: tuple[str, ...] = ordered(labels)

    def check_labels(self, dataset: Dataset[TextExample]) -> None:
        refuse_unknown(
            dataset,
            [(index, label) for index, example in enumerate(dataset) for label in labels_of(example)],
            self.known_labels,
        )

    @classmethod
    def labels_of(cls, config: BertConfig, folder: Path) -> tuple[str, ...] | None:
        if config.problem_type not in (None, PROBLEM):
            raise UserError(
                f"--task multilabel: {folder} was trained for another kind of output"
                f" (problem_type={config.problem_type!r} in its config.json); use --task"
                f" {'regression' if config.problem_type == 'regression' else 'classification'}"
            )
        return tuple(config.id2label.values())

    def head_config(self, config: BertConfig) -> BertConfig:
        return replace(super().head_config(config), problem_type=PROBLEM)

    def targets(self, dataset: Dataset[TextExample]) -> np.ndarray:
        """Return 1 for each class of an example and 0 for the others, fp32 (examples, classes)."""
        self.check_labels(dataset)
        return indicators([labels_of(example) for example in dataset], self.known_labels).astype(np.float32)

    def label_weights(self, labels: np.ndarray) -> np.ndarray | None:
        setting = self.settings.class_weights
        if setting is None:
            return None
        return np.where(labels > 0, positive_weights(setting, self.known_labels, labels), np.float32(1))

    def items(self, batch: TaskBatch) -> int:
        return batch.targets["labels"].numel()

    def decode(self, dataset: Dataset[TextExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Return the classes whose probability reaches the threshold, in the order of the labels, and the probability
        of every class."""
        known, threshold = self.known_labels, self.settings.threshold
        probabilities = label_probabilities(np.stack(outputs[:: self._orders]))
        return [
            {
                "id": example.id,
                "labels": [label for label, p in zip(known, row, strict=True) if p >= threshold],
                "probabilities": {label: round(float(p), 6) for label, p in zip(known, row, strict=True)},
            }
            for example, row in zip(dataset, probabilities, strict=True)
        ]

    def gold_prediction(self, example: TextExample) -> Prediction:
        labels = labels_of(example)
        return {"id": example.id, "labels": list(labels), "probabilities": dict.fromkeys(labels, 1.0)}

    def score(self, dataset: Dataset[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        from fastbert.tasks.metrics.multilabel import multilabel_scores

        gold, predicted = [labels_of(example) for example in dataset], [item["labels"] for item in predictions]
        labels = self.labels or ordered(label for labels in (*gold, *predicted) for label in labels)
        probabilities = None
        if all("probabilities" in item for item in predictions):
            probabilities = np.array(
                [[item["probabilities"].get(label, 0.0) for label in labels] for item in predictions]
            )
        return multilabel_scores(
            indicators(gold, labels), indicators(predicted, labels), probabilities, labels, where=dataset.path
        )

    def baselines(
        self, dataset: Dataset[TextExample], train: Dataset[TextExample] | None = None
    ) -> tuple[Baseline, ...]:
        """Return the scores of predicting the most frequent set of labels, whatever their order, and every label, for
        all examples."""
        from fastbert.tasks.reports.baselines import scored

        sets = Counter(tuple(sorted(labels_of(example))) for example in train or dataset)
        labels = self.labels or ordered(label for names in sets for label in names)
        ((frequent, _),) = sets.most_common(1)
        constant = {"majority": ("most frequent set", frequent), "all": ("every label", labels)}
        return tuple(
            scored(self.score, dataset, key, name, "labels", [list(value)] * len(dataset))
            for key, (name, value) in constant.items()
        )

    def constant_loss(self, rows: Rows) -> float:
        """Return the mean entropy of the labels in the training set, weighted as the loss is, in nats."""
        from fastbert.tasks.reports.baselines import label_set_loss

        return label_set_loss(rows.unit_targets["labels"], rows.unit_targets.get("weights"))

    def report(
        self,
        dataset: Dataset[TextExample],
        predictions: Sequence[Prediction],
        train: Dataset[TextExample] | None = None,
    ) -> Report:
        from fastbert.tasks.reports.texts import label_sets_report

        gold = [labels_of(example) for example in dataset]
        predicted = [tuple(prediction["labels"]) for prediction in predictions]
        labels = self.labels or ordered(label for names in (*gold, *predicted) for label in names)
        return label_sets_report(dataset, predictions, gold, labels)


def labels_of(example: TextExample) -> tuple[str, ...]:
    """Return the labels of an example that was read with them."""
    return example.label if isinstance(example.label, tuple) else ()


def indicators(sets: Sequence[Sequence[str]], labels: Sequence[str]) -> np.ndarray:
    """Return True for each label of a set: bool (sets, labels). Labels that are not among these are counted nowhere."""
    columns = {label: column for column, label in enumerate(labels)}
    values = np.zeros((len(sets), len(labels)), dtype=bool)
    for row, names in enumerate(sets):
        values[row, [columns[name] for name in names if name in columns]] = True
    return values
