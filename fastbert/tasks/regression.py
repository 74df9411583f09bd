"""A number per text or pair of texts: STS-B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, TextExample
from fastbert.tasks.readers.cells import number
from fastbert.tasks.rows import Rows
from fastbert.tasks.texts import TextTask
from fastbert.tokenizers import WordPieceTokenizer


class Regression(TextTask):
    """A linear unit on the pooled first token, trained by squared error."""

    name = "regression"
    metrics = ("spearman", "pearson", "pearson_spearman")
    prediction_format = PredictionFormat(
        "score", (".tsv", ".txt"), lambda value, where, example: number(value, where, "the predicted score")
    )
    regression = True

    @classmethod
    def labels_of(cls, config: BertConfig, folder: Path) -> tuple[str, ...] | None:
        if config.num_labels != 1:
            raise UserError(f"--task regression: {folder} has {config.num_labels} outputs; a number is a single output")
        return None

    def head_config(self, config: BertConfig) -> BertConfig:
        return replace(config, num_labels=1, label_names=None, problem_type="regression")

    def encode(self, dataset: Dataset[TextExample], tokenizer: WordPieceTokenizer, *, labelled: bool) -> Rows:
        rows = self.rows(dataset, tokenizer)
        if not labelled:
            return rows
        labels = np.array([example.label for example in dataset], dtype=np.float32)
        return replace(rows, unit_targets={"labels": labels[:, None]})

    def decode(self, dataset: Dataset[TextExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        return [{"id": example.id, "score": float(row[0])} for example, row in zip(dataset, outputs, strict=True)]

    def gold_prediction(self, example: TextExample) -> Prediction:
        return {"id": example.id, "score": example.label}

    def score(self, dataset: Dataset[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        from fastbert.tasks.metrics.classification import regression_scores

        gold = [float(example.label) for example in dataset]  # type: ignore[arg-type]
        return regression_scores(gold, [float(prediction["score"]) for prediction in predictions], where=dataset.path)
