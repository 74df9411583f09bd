"""A job: the work of one request on one model, from texts to the body of its response.

A job is made on the event loop, its texts are tokenized on a tokenizer thread, its rows are computed on worker threads,
together with rows of other jobs, and the last worker writes its result. Every step is the operation's.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.packing import PackedBatch
from fastbert.tasks.rows import Rows

Piece = tuple["Job", int, int]
"""Some rows of a job: the first one, and the end."""


class Served(Protocol):
    """What a job needs to know of a model."""

    name: str
    model: Any


class TooLong(UserError):
    """An input is longer than the model or the limits of the server allow."""


class Overloaded(UserError):
    """The queue is full; `retry_after` is an estimate in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TimedOut(UserError):
    """A job waited in the queue for longer than the server's limit."""


class Unavailable(UserError):
    """The server is starting or stopping."""


class Job:
    """The work of one request.

    `inputs` are what the operation tokenizes, `options` what it reads in `finish`; `characters` is the size of the
    texts. `rows` are set by the operation's `tokenize`, as is `truncated`, the number of truncated texts; `outputs` has
    one item per row, and `result` is what `finish` returned. `on_done` is called once, on any thread, when there is a
    result or an error, unless the job was cancelled.
    """

    __slots__ = (
        "cancelled", "characters", "computed_at", "deadline", "enqueued", "error", "inputs", "lengths", "next_row",
        "on_done", "operation", "options", "outputs", "queued_at", "remaining", "result", "rows", "started_at",
        "tokens", "truncated",
    )  # fmt: skip

    def __init__(
        self,
        operation: Operation,
        inputs: Sequence[Any],
        characters: int,
        on_done: Callable[[Job], None],
        *,
        timeout: float = float("inf"),
        **options: Any,
    ) -> None:
        self.operation: Operation = operation
        self.inputs: Sequence[Any] = inputs
        self.characters: int = characters
        self.on_done: Callable[[Job], None] = on_done
        self.options: dict[str, Any] = options
        self.rows: Rows | None = None
        self.lengths: list[int] = []
        self.tokens: int = 0
        self.truncated: int = 0
        self.outputs: list[Any] = []
        self.next_row: int = 0
        self.remaining: int = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.cancelled: bool = False
        self.enqueued: bool = False
        self.queued_at: float = time.perf_counter()
        self.deadline: float = self.queued_at + timeout
        self.started_at: float = 0.0
        self.computed_at: float = 0.0

    def set_rows(self, rows: Rows) -> None:
        """Set the rows that are to be computed."""
        self.rows = rows
        self.lengths = rows.lengths.tolist()
        self.tokens = int(rows.offsets[-1] - rows.offsets[0])
        self.outputs = [None] * len(self.lengths)
        self.remaining = len(self.lengths)

    def finish(self) -> None:
        """Set the result from the outputs of all rows, or the error that this has."""
        try:
            self.result = self.operation.finish(self)
        except Exception as error:  # noqa: BLE001 - belongs to a request
            if not isinstance(error, UserError):
                logger.error("finishing a request of %s failed", self.operation.name, exc_info=error)
            self.error = error


class Operation(ABC):
    """What a model computes for the requests of a route, such as embeddings or logits."""

    name: ClassVar[str]
    weights: float = math.inf
    """Weights that each token is multiplied by."""

    def __init__(self, served: Served) -> None:
        self.served: Any = served

    @property
    def model(self) -> Any:
        """The model, in eval mode on its device."""
        return self.served.model

    @abstractmethod
    def tokenize(self, jobs: Sequence[Job]) -> None:
        """Set the rows of jobs, or their errors: one call for all jobs that wait."""

    def run(self, pieces: Sequence[Piece]) -> Sequence[Any]:
        """Return the outputs of rows of several jobs."""
        return self.compute(self.pack(pieces).to(self.model.device))

    def pack(self, pieces: Sequence[Piece]) -> PackedBatch:
        """Return rows of several jobs as one batch."""
        return packed(pieces)

    @abstractmethod
    def compute(self, batch: PackedBatch) -> Sequence[Any]:
        """Return the output of each row."""

    @abstractmethod
    def finish(self, job: Job) -> Any:
        """Return a job's result from the outputs of its rows."""


def packed(pieces: Sequence[Piece]) -> PackedBatch:
    """Return rows of several jobs, without positions of their own, as one batch."""
    import torch

    ids, types, lengths = [], [], []
    for job, first, end in pieces:
        rows = job.rows
        assert rows is not None
        tokens = slice(int(rows.offsets[first]), int(rows.offsets[end]))
        ids.append(rows.input_ids[tokens])
        types.append(rows.token_type_ids[tokens])
        lengths += job.lengths[first:end]
    sizes = np.array(lengths, dtype=np.int64)
    ends = np.cumsum(sizes)
    begins = ends - sizes
    sequences = np.repeat(np.arange(len(sizes)), sizes)
    return PackedBatch(
        input_ids=torch.from_numpy(np.concatenate(ids).astype(np.int64)),
        token_type_ids=torch.from_numpy(np.concatenate(types).astype(np.int64)),
        cu_seqlens=torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32)),
        max_seqlen=max(lengths),
        position_ids=torch.from_numpy(np.arange(ends[-1]) - begins[sequences]),
        sequence_ids=torch.from_numpy(sequences),
    )


def joined(batches: Sequence[PackedBatch]) -> PackedBatch:
    """Return the sequences of several batches as one batch, with their masked positions and labels."""
    import torch

    if len(batches) == 1:
        return batches[0]
    tokens = np.cumsum([0, *(batch.num_tokens for batch in batches)])
    masked = [
        batch.masked_positions + int(before)
        for batch, before in zip(batches, tokens, strict=False)
        if batch.masked_positions is not None
    ]
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return PackedBatch(
        input_ids=torch.cat([batch.input_ids for batch in batches]),
        token_type_ids=torch.cat([batch.token_type_ids for batch in batches]),
        position_ids=torch.cat([batch.position_ids for batch in batches]),
        cu_seqlens=torch.cat(
            [batches[0].cu_seqlens[:1]]
            + [batch.cu_seqlens[1:] + int(before) for batch, before in zip(batches, tokens, strict=False)]
        ),
        max_seqlen=max(batch.max_seqlen for batch in batches),
        masked_positions=torch.cat(masked) if masked else None,
        labels=torch.cat(labels) if labels else None,
    )
