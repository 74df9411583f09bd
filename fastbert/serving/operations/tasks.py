"""Predictions of fine-tuned models of any task that `fastbert.predict` takes: tags, answers, choices, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from fastbert.models.finite import refuse_non_finite
from fastbert.packing import PackedBatch
from fastbert.serving.jobs import Job, Operation, Piece, joined
from fastbert.serving.served_model import ServedModel
from fastbert.tasks.base import Task
from fastbert.tasks.prediction import dataset_of
from fastbert.tasks.rows import Rows, TaskBatch


class Predict(Operation):
    """Predictions as `fastbert.predict` returns them, a dictionary per example; inputs are its examples."""

    name: ClassVar[str] = "predict"

    def __init__(self, served: ServedModel, task: Task[Any]) -> None:
        super().__init__(served)
        self.task = task
        self._joined = 1
        """Rows that are computed together, such as the two orders of a pair."""

    def tokenize(self, jobs: Sequence[Job]) -> None:
        """Set the rows of each job; examples with several rows, such as choices, are computed as one."""
        for job in jobs:
            dataset = dataset_of(self.task, job.inputs)
            rows = self.task.encode(dataset, self.served.tokenizer, labelled=False)
            job.options["dataset"] = dataset
            job.set_rows(rows)
            if rows.joined:  # scheduled as one row
                self._joined = rows.per_unit
                job.lengths = np.diff(rows.offsets[rows.unit_offsets]).tolist()
                job.outputs = [None] * rows.units
                job.remaining = rows.units

    def pack(self, pieces: Sequence[Piece]) -> PackedBatch:
        batches = []
        for job, first, end in pieces:
            rows = job.rows
            assert rows is not None
            units = np.arange(first, end)
            batches.append(self.task.packed(rows, rows.of_units(units) if rows.joined else units))
        return joined(batches)

    def compute(self, batch: PackedBatch) -> Sequence[Any]:
        outputs = self.task.outputs(self.model, TaskBatch(inputs=batch, targets={}))
        size = self._joined
        return outputs if size == 1 else [outputs[i : i + size] for i in range(0, len(outputs), size)]

    def finish(self, job: Job) -> Any:
        return self.predictions(job)

    def predictions(self, job: Job) -> list[dict[str, Any]]:
        """Return a prediction per example."""
        rows = job.rows
        assert rows is not None
        outputs = list(chain.from_iterable(job.outputs)) if rows.joined else job.outputs
        _check_finite(self.model, rows, outputs)
        return self.task.decode(job.options["dataset"], rows, outputs)


def _check_finite(model: Any, rows: Rows, outputs: Sequence[np.ndarray]) -> None:
    for row, values in enumerate(outputs):
        if not np.isfinite(values).all():
            refuse_non_finite(model, f"inputs[{int(rows.examples[row])}]")
