"""One vector per text, as `model.embed` computes them, bit for bit; similarities of texts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fastbert import _C
from fastbert.embeddings.embed import settings_of
from fastbert.embeddings.pooling import normalized, pool
from fastbert.models.encoder import summary_indices
from fastbert.models.finite import check_finite
from fastbert.packing import PackedBatch
from fastbert.serving.jobs import Job, Operation, Piece
from fastbert.serving.operations.texts import TextReader, check_numbers
from fastbert.serving.served_model import ServedModel

if TYPE_CHECKING:
    from fastbert.embeddings.settings import EmbedSettings


class Embed(Operation):
    """Embeddings of texts. Options: those of `TextReader`, `normalize` (None: as the model's settings say),
    `dimensions`, and `form`: "json", "base64" (a list of strings), "array" or "similarity" of the first text with the
    others."""

    name: ClassVar[str] = "embed"

    def __init__(self, served: ServedModel) -> None:
        super().__init__(served)
        self.reader: TextReader = TextReader(served.tokenizer, served.max_length)
        self.settings: EmbedSettings = settings_of(served.encoder)
        dense = self.settings.dense
        self.width: int = len(dense[-1].weight) if dense else served.encoder.config.hidden_size
        """The dimensions of a vector."""

    def tokenize(self, jobs: Sequence[Job]) -> None:
        self.reader.read(jobs)

    def run(self, pieces: Sequence[Piece]) -> Sequence[np.ndarray]:
        """Return the vector of each row, fp32 (width,), normalised where its job asks for that."""
        vectors = self.vectors(self.pack(pieces).to(self.model.device))
        check_finite(self.model, vectors, "a text of the batch ({})".format)
        wanted = [self._normalizes(job) for job, _, _ in pieces]
        if all(wanted):
            return list(normalized(vectors).numpy())
        plain = vectors.numpy()
        if not any(wanted):
            return list(plain)
        unit = normalized(vectors).numpy()
        sources = (unit if is_wanted else plain for is_wanted in wanted)
        rows = ((source, end - first) for source, (_, first, end) in zip(sources, pieces, strict=True))
        outputs: list[np.ndarray] = []
        for source, count in rows:
            outputs += list(source[len(outputs) : len(outputs) + count])
        return outputs

    def compute(self, batch: PackedBatch) -> Sequence[Tensor]:
        return self.vectors(batch).unbind()

    def vectors(self, batch: PackedBatch) -> Tensor:
        """Return the vector of each row, fp32 (rows, width), not normalised."""
        encoder, pooling = self.served.encoder, self.settings.pooling
        if pooling == "cls":
            vectors = encoder.encode(batch, token_indices=summary_indices(batch, encoder.causal))[0].float()
        else:
            vectors = pool(encoder.encode(batch)[0], batch.cu_seqlens.long(), pooling)
        vectors = vectors.cpu()
        if pooling == "mean":
            vectors = vectors / batch.cu_seqlens.diff().cpu().float()[:, None]
        for dense in self.settings.dense:
            vectors = dense(vectors)
        return vectors

    def _normalizes(self, job: Job) -> bool:
        wanted = job.options.get("normalize")
        return self.settings.normalize if wanted is None else bool(wanted)

    def finish(self, job: Job) -> Any:
        dimensions = job.options.get("dimensions")
        vectors = job.outputs[0][None] if len(job.outputs) == 1 else np.stack(job.outputs)
        if dimensions is not None and dimensions < vectors.shape[1]:
            shorter = torch.from_numpy(vectors[:, :dimensions].copy())
            vectors = (normalized(shorter) if self._normalizes(job) else shorter).numpy()
        return _written(vectors, job.options["form"])


def _written(vectors: np.ndarray, form: str) -> Any:
    if form == "json":
        return _C.json_rows(vectors)
    if form == "base64":
        return [base64.b64encode(vector.tobytes()) for vector in vectors.astype("<f4", copy=False)]
    if form == "rows":
        return [_C.json_row(vector) for vector in vectors]
    if form == "similarity":
        return _C.json_row((vectors[1:].astype(np.float64) @ vectors[0].astype(np.float64)).astype(np.float32))
    return vectors


class EmbedAll(Operation):
    """One vector per token, special ones included: the hidden states of the last layer, as text-embeddings-inference
    returns them. Options: those of `TextReader`."""

    name: ClassVar[str] = "embed_all"

    def __init__(self, served: ServedModel) -> None:
        super().__init__(served)
        self.reader: TextReader = TextReader(served.tokenizer, served.max_length)

    def tokenize(self, jobs: Sequence[Job]) -> None:
        self.reader.read(jobs)
        for job in jobs:
            check_numbers(job, self.served.encoder.config.hidden_size)

    def compute(self, batch: PackedBatch) -> Sequence[Tensor]:
        """Return the states of each row, fp32 (tokens, hidden_size)."""
        states = self.served.encoder.encode(batch)[0].float().cpu()
        return states.split(batch.cu_seqlens.diff().tolist())

    def finish(self, job: Job) -> Any:
        for index, states in enumerate(job.outputs):
            check_finite(self.model, states, lambda _: f"inputs[{index}]")  # noqa: B023 - called at once
        return b"[" + b",".join(_C.json_rows(states.numpy()) for states in job.outputs) + b"]"
