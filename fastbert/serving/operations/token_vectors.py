"""Vectors of the tokens of queries and documents for late interaction, as `TokenEncoder` computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from fastbert import _C
from fastbert.packing import PackedBatch
from fastbert.retrieval.token_vectors import TokenEncoder
from fastbert.serving.jobs import Job, Operation, Piece
from fastbert.serving.operations.texts import check_numbers, too_long
from fastbert.serving.served_model import ServedModel


class EmbedTokens(Operation):
    """Token vectors. Options: `truncate`, and `prompt_name`, "query" or "document" (the default), which decides over
    markers, lengths, masks and skipped tokens."""

    name: ClassVar[str] = "embed_all"

    def __init__(self, served: ServedModel, encoder: TokenEncoder) -> None:
        super().__init__(served)
        self.encoder = encoder

    def tokenize(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            rows, options = self.encoder.read(job.inputs, role=job.options.get("prompt_name") or "document")
            if rows.truncated and not job.options.get("truncate"):
                job.error = too_long(0, self.served.max_length)
                continue
            job.truncated = rows.truncated
            job.options["rows"], job.options["of_role"] = rows, options
            job.set_rows(rows.rows)
            check_numbers(job, self.encoder.width)

    def run(self, pieces: Sequence[Piece]) -> Sequence[Any]:
        outputs: list[Any] = []
        for job, first, end in pieces:
            rows = job.options["rows"].part(first, end)
            vectors = self.encoder.compute(rows, job.options["of_role"], self.served.batch_tokens)
            outputs += [vectors[index] for index in range(len(vectors))]
        return outputs

    def compute(self, batch: PackedBatch) -> Sequence[Any]:
        raise NotImplementedError("the rows of queries and documents are not packed together")

    def finish(self, job: Job) -> bytes:
        """Return the vectors of each text as JSON."""
        return b"[" + b",".join(_C.json_rows(vectors.numpy()) for vectors in job.outputs) + b"]"
