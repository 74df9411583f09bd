"""Limits of the queue, and the batches that workers take from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fastbert.serving.jobs import Job, Operation, Piece


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of the queue and of batches."""

    batch_tokens: int = 4096
    """Tokens of a batch; a longer row stands alone."""
    max_queue_tokens: int = 131_072
    """Tokens that wait or are computed; more are refused."""
    max_queue_jobs: int = 1024
    """Requests that wait or are computed; more are refused."""
    max_seconds: float = float("inf")
    """Time that the queue may take, estimated from the batches before; requests beyond it are refused."""


@dataclass(frozen=True)
class BatchReport:
    """What a worker did: the batch's size and times in seconds."""

    operation: Operation
    rows: int
    tokens: int
    jobs: int
    budget: int
    seconds: float


class Batch(NamedTuple):
    """What a worker took from the queue."""

    operation: Operation
    pieces: list[Piece]
    budget: int
    late: list[Job]
    """Jobs that waited for too long."""
    is_long: bool
    """Whether other workers should not wait for its end."""
