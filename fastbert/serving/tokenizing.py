"""Threads that tokenize the jobs of the event loop."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.serving.jobs import Job, Operation


class TokenizerThread:
    """A thread that tokenizes the jobs that wait, all of an operation's at once."""

    def __init__(self, on_tokenized: Callable[[Iterable[Job]], None], name: str) -> None:
        self._on_tokenized = on_tokenized
        self._jobs: deque[Job] = deque()
        self._event = threading.Semaphore(0)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"fastbert-tokenizer-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; no job may wait."""
        self._closed = True
        self._event.release()
        self._thread.join()

    def put(self, job: Job) -> None:
        """Tokenize a job soon."""
        self._jobs.append(job)
        self._event.release()

    def _run(self) -> None:
        torch.set_num_threads(1)
        while True:
            self._event.acquire()
            if self._closed:
                return
            jobs = []
            with contextlib.suppress(IndexError):
                while True:
                    jobs.append(self._jobs.popleft())
            for group in by_operation(jobs):
                tokenize(group)
                self._on_tokenized(group)


def by_operation(jobs: Iterable[Job]) -> Iterable[list[Job]]:
    """Return the jobs of each operation, without those that were cancelled."""
    groups: dict[Operation, list[Job]] = {}
    for job in jobs:
        if not job.cancelled:
            groups.setdefault(job.operation, []).append(job)
    return groups.values()


def tokenize(jobs: Sequence[Job]) -> None:
    """Tokenize jobs of one operation together, or one by one if that fails, so that each has rows or an error."""
    operation = jobs[0].operation
    try:
        operation.tokenize(jobs)
    except Exception as error:  # noqa: BLE001 - belongs to a request, and must not end the thread
        if len(jobs) > 1:
            for job in jobs:
                tokenize([job])
            return
        if not isinstance(error, UserError):
            logger.error("tokenizing for %s failed", operation.name, exc_info=error)
        jobs[0].error = error
