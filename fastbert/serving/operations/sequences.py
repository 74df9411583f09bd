"""Logits of a sequence classifier: scores of a query with texts, or classes of texts and pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from fastbert.models.finite import check_finite
from fastbert.packing import PackedBatch
from fastbert.serving.jobs import Job, Operation
from fastbert.serving.operations.texts import PairReader
from fastbert.serving.served_model import ServedModel


class Logits(Operation):
    """Logits of each row, fp32 (labels,), not rounded to the 16 bits of a model's weights. Inputs are (text, None) or
    (text, pair); options are those of `PairReader`."""

    name: ClassVar[str] = "logits"

    def __init__(self, served: ServedModel) -> None:
        super().__init__(served)
        self.reader: PairReader = PairReader(served.tokenizer, served.max_length)

    def tokenize(self, jobs: Sequence[Job]) -> None:
        self.reader.read(jobs)

    def compute(self, batch: PackedBatch) -> Sequence[torch.Tensor]:
        return list(self.model.exact_logits(batch).cpu().unbind())

    def finish(self, job: Job) -> Any:
        return self.logits(job)

    def logits(self, job: Job) -> np.ndarray:
        """Return the logits of the job's rows, fp32 (rows, labels)."""
        logits = torch.stack(job.outputs)
        check_finite(self.model, logits, "inputs[{}]".format)
        return logits.numpy()


class Rerank(Logits):
    """Scores of a query with texts. Options: `raw_scores`."""

    name: ClassVar[str] = "rerank"

    def finish(self, job: Job) -> tuple[np.ndarray, np.ndarray]:
        """Return the order of the texts, best first, and the score of each, fp32 (texts,)."""
        scores = torch.from_numpy(self.logits(job))[:, 0]
        if not job.options.get("raw_scores"):
            scores = scores.sigmoid()
        values: np.ndarray = scores.numpy()
        return np.argsort(-values, kind="stable"), values


class Classify(Logits):
    """Classes of texts. Options: `raw_scores`, and `top` (None: all classes)."""

    name: ClassVar[str] = "predict"

    def finish(self, job: Job) -> list[bytes]:
        """Return a JSON array of {score, label} per text, best first."""
        logits = self.logits(job)
        scores = logits if job.options.get("raw_scores") else self._probabilities(logits)
        labels, top = self.served.label_json, job.options.get("top")
        answers = []
        for row in scores:
            order = np.argsort(-row, kind="stable")[:top]
            texts = (f'{{"score":{json.dumps(float(f"{row[i]:.9g}"))},"label":{labels[i]}}}' for i in order.tolist())
            answers.append(f"[{','.join(texts)}]".encode())
        return answers

    def _probabilities(self, logits: np.ndarray) -> Any:
        """Return logits as they are for numbers, their sigmoids for sets of labels and a single label, else their
        softmax."""
        problem = self.served.problem_type
        x = torch.from_numpy(logits).double()
        if problem == "regression":
            return logits
        x = x.sigmoid() if problem == "multi_label_classification" or x.shape[1] == 1 else x.softmax(-1)
        return x.float().numpy()
