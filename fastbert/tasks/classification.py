"""A class per text or pair of texts: CoLA, SST-2, MRPC, QQP, QNLI, MNLI, RTE, WNLI, SNLI, stance, intents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, TextExample
from fastbert.tasks.metrics.classification import classification_scores, ordered
from fastbert.tasks.readers.cells import class_name
from fastbert.tasks.rows import Rows
from fastbert.tasks.texts import TextTask
from fastbert.tokenizers import WordPieceTokenizer

SHOWN = 8  # labels in an error
MOST_SCORES = 20  # different numbers with fractions that may be classes, as half stars are
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _refuse_scores(train: Dataset[TextExample]) -> None:
    """Raise UserError for labels that are scores: many different numbers, some of them fractions."""
    labels = {str(example.label) for example in train}
    if len(labels) <= MOST_SCORES or not all(map(_NUMBER.fullmatch, labels)) or not any("." in name for name in labels):
        return
    index, label = next((i, str(e.label)) for i, e in enumerate(train) if "." in str(e.label))
    raise UserError(
        f"{train.where(index)}: the label {label!r} is one of {len(labels)} different numbers, which are scores rather"
        " than classes; use --task regression"
    )


class Classification(TextTask):
    """softmax(W C), C the pooled first token (Devlin et al. 2019, section 4.1); labels are sorted as strings, numbers
    by their value."""

    name = "classification"
    metrics = ("accuracy", "f1", "macro_f1", "matthews")
    prediction_format = PredictionFormat(
        "label", (".tsv", ".txt"), lambda value, where, example: class_name(value, where, "the predicted label")
    )

    def learn_labels(self, train: Dataset[TextExample]) -> None:
        super().learn_labels(train)
        if self.labels is not None:
            return
        _refuse_scores(train)
        labels = {str(example.label) for example in train}
        if len(labels) < 2:
            raise UserError(
                f"{train.path}: all {len(train)} examples have the label {next(iter(labels), None)!r}; training needs"
                " two classes or more"
            )
        self.labels = ordered(labels)

    def check_labels(self, dataset: Dataset[TextExample]) -> None:
        known = self.known_labels
        unknown = [
            (i, str(e.label)) for i, e in enumerate(dataset) if e.label is not None and str(e.label) not in known
        ]
        if unknown:
            index, label = unknown[0]
            names = ", ".join(known[:SHOWN]) + (", ..." if len(known) > SHOWN else "")
            close = get_close_matches(label, known, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            more = f" ({len(unknown)} such examples in all)" if len(unknown) > 1 else ""
            raise UserError(
                f"{dataset.where(index)}: the label {label!r} is not one of the training set's: {names}{meant}{more}"
            )

    @classmethod
    def labels_of(cls, config: BertConfig, folder: Path) -> tuple[str, ...] | None:
        return tuple(config.id2label.values())

    def head_config(self, config: BertConfig) -> BertConfig:
        return replace(super().head_config(config), problem_type="single_label_classification")

    def encode(self, dataset: Dataset[TextExample], tokenizer: WordPieceTokenizer, *, labelled: bool) -> Rows:
        rows = self.rows(dataset, tokenizer)
        if not labelled:
            return rows
        self.check_labels(dataset)
        numbers = {label: number for number, label in enumerate(self.known_labels)}
        labels = np.array([numbers[str(example.label)] for example in dataset], dtype=np.int64)
        return replace(rows, unit_targets={"labels": labels})

    def decode(self, dataset: Dataset[TextExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        known = self.known_labels
        logits = np.stack(outputs).astype(np.float64)
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        probabilities = powers / powers.sum(-1, keepdims=True)
        return [
            {
                "id": example.id,
                "label": known[int(row.argmax())],
                "probabilities": {label: round(float(p), 6) for label, p in zip(known, row, strict=True)},
            }
            for example, row in zip(dataset, probabilities, strict=True)
        ]

    def score(self, dataset: Dataset[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        gold = [str(example.label) for example in dataset]
        predicted = [str(prediction["label"]) for prediction in predictions]
        return classification_scores(gold, predicted, self.labels or ordered([*gold, *predicted]), where=dataset.path)

    def gold_prediction(self, example: TextExample) -> Prediction:
        return {"id": example.id, "label": str(example.label)}
