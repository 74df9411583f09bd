"""A number for each text or pair of texts: STS-B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastbert.config import BertConfig
from fastbert.models.heads.sequence import BertForSequenceClassification
from fastbert.tasks.base import Prediction
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.rows import Rows
from fastbert.tasks.texts import TextTask
from fastbert.tokenizers import WordPieceTokenizer


class Regression(TextTask):
    """A linear unit on the pooled first token, trained by squared error."""

    name = "regression"
    head = BertForSequenceClassification
    metrics = ("spearman", "pearson", "pearson_spearman")
    regression = True

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

    def right(self, example: TextExample) -> Prediction:
        return {"id": example.id, "score": example.label}

    def score(self, dataset: Dataset[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        from fastbert.tasks.metrics.classification import regression_scores

        gold = [float(example.label) for example in dataset]  # type: ignore[arg-type]
        return regression_scores(gold, [float(one["score"]) for one in predictions], where=dataset.path)
