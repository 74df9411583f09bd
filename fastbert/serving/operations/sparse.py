"""Sparse vectors and token vectors of texts, as `SparseEncoder` and `TokenEncoder` compute them, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from fastbert import _C
from fastbert.models.finite import check_finite
from fastbert.packing import PackedBatch
from fastbert.retrieval.sparse import SparseEncoder
from fastbert.serving.jobs import Job, Operation
from fastbert.serving.operations.texts import TextReader
from fastbert.serving.served_model import ServedModel


class EmbedSparse(Operation):
    """Sparse vectors over the vocabulary. Options: those of `TextReader`."""

    name: ClassVar[str] = "embed_sparse"

    def __init__(self, served: ServedModel, encoder: SparseEncoder) -> None:
        super().__init__(served)
        self.encoder = encoder
        self.reader: TextReader = TextReader(served.tokenizer, served.max_length)

    def tokenize(self, jobs: Sequence[Job]) -> None:
        self.reader.read(jobs)

    def compute(self, batch: PackedBatch) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """Return the ids, int32 ascending, and the weights, fp32, of each row's vector."""
        vectors = self.encoder.vectors(batch)
        return [_entries(vector) for vector in vectors]

    def finish(self, job: Job) -> bytes:
        """Return the vectors as JSON."""
        for index, (_, weights) in enumerate(job.outputs):
            check_finite(self.model, torch.from_numpy(weights)[None], lambda _: f"inputs[{index}]")  # noqa: B023
        return b"[" + b",".join(_C.json_entries(ids, weights) for ids, weights in job.outputs) + b"]"


def _entries(vector: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    values: Any = vector.numpy()
    ids = np.flatnonzero(values)
    return ids.astype(np.int32), values[ids]
