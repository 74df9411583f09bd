"""Batch rows across requests: threads that tokenize, and workers that compute packed batches.

A batch holds rows of one operation up to a budget of tokens, whatever their number. Requests take turns: each gives a
quantum of tokens at a time, so that small ones do not wait for a large one. An idle worker takes what is there at once;
several idle workers share it. Where a batch takes Python longer than the kernels, the next one is left to its worker.
Each worker computes on its own few threads, by default one: there is no barrier between workers, and a busy event loop
delays one of them at most.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.ops.native import matmul_table
from fastbert.serving.batches import Batch, BatchReport, Limits
from fastbert.serving.jobs import Job, Operation, Overloaded, Piece, TimedOut, TooLong, Unavailable
from fastbert.serving.tokenizing import TokenizerThread, by_operation, tokenize

QUANTUM = 512
"""Tokens that a request contributes to a batch before the next one has its turn."""
LEAST_BATCH = 256
"""Tokens of a batch that are not shared with an idle worker."""
BULK_CHARACTERS = 1 << 16
"""Characters of a request that is tokenized on the thread for large ones."""
BATCH_SECONDS = 0.05
"""Aim of a batch's duration where requests of several sizes wait, so that small ones are answered soon."""
SHORT_MULTIPLICATIONS = 50_000_000
"""Multiplications of a batch that takes the kernels less time than Python: two workers would wait for each other."""
_DECAY = 0.8


class Scheduler:
    """The queue between requests and models. `submit` is for the event loop; callbacks come from other threads."""

    def __init__(
        self,
        limits: Limits,
        workers: int,
        threads: int,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        on_finished: Callable[[Sequence[Job]], None] | None = None,
    ) -> None:
        self.limits = limits
        self.workers = workers
        self.threads = threads
        self.on_batch = on_batch
        self._on_finished = on_finished or _call_each
        self._lock = threading.Lock()
        # The worker that fell asleep last wakes up first: its caches are warmest.
        self._sleeping: list[threading.Lock] = []
        self._queues: dict[Operation, deque[Job]] = {}
        self._order: deque[Operation] = deque()
        self._untokenized: deque[Job] = deque()
        self._waiting_tokens = 0
        self._busy = 0
        self._rates: dict[Operation, float] = {}
        self._queued: dict[Operation, int] = {}
        self._long_batches = 0
        """Workers that compute a batch which is not expected to be short."""
        self._tokenizers = (TokenizerThread(self._tokenized, "texts"), TokenizerThread(self._tokenized, "bulk"))
        self._stopping = False
        self.queued_tokens: int = 0
        """Tokens of jobs that wait or are computed."""
        self.jobs: int = 0
        """Jobs that are not done."""
        self._threads = [
            threading.Thread(target=self._work, name=f"fastbert-worker-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    # The event loop's side

    def submit(self, job: Job) -> None:
        """Tokenize and compute a job. Raises `Overloaded` while the queue is full, `Unavailable` after `close`."""
        limits = self.limits
        if self._stopping:
            raise Unavailable("the server is stopping; send the request to another one, or again later")
        if self.jobs >= limits.max_queue_jobs:
            raise Overloaded(
                f"{self.jobs} requests are waiting, the limit of the queue; try again later", self.retry_after()
            )
        if self.queued_tokens >= limits.max_queue_tokens or self.retry_after() > limits.max_seconds:
            raise self._full(0)
        is_bulk = job.characters > BULK_CHARACTERS
        with self._lock:
            self.jobs += 1
            # An idle worker tokenizes too: one thread less that has to wake up.
            to_worker = not is_bulk and bool(self._sleeping)
            if to_worker:
                self._untokenized.append(job)
                if not self._ends_soon():
                    self._wake(1)
        if not to_worker:
            self._tokenizers[is_bulk].put(job)

    def cancel(self, job: Job) -> None:
        """Drop what is not computed of a job whose client has gone; `on_done` is not called any more."""
        with self._lock:
            if job.cancelled or job.remaining < 0:
                return
            job.cancelled = True
            self._forget(job)

    def retry_after(self) -> float:
        """Return the seconds until the present queue is computed, an estimate."""
        queued = list(self._queued.items())  # at once: other threads change it
        seconds = sum(tokens / self._rates[operation] for operation, tokens in queued if operation in self._rates)
        return seconds / self.workers

    def forget_rates(self) -> None:
        """Measure the rates of operations anew."""
        self._rates.clear()

    def close(self) -> None:
        """Refuse new jobs, and end the threads once all accepted jobs are done. An interpreter must not end before
        threads that are in native code."""
        with self._lock:
            self._stopping = True
            self._wake(self.workers)
        for thread in self._threads:
            thread.join()
        for tokenizer in self._tokenizers:
            tokenizer.close()

    def _wake(self, count: int) -> None:
        """Wake up to `count` workers. Called with the lock held."""
        for _ in range(min(count, len(self._sleeping))):
            self._sleeping.pop().release()

    def _ends_soon(self) -> bool:
        """Return whether a busy worker will take what waits before another one could. Called with the lock held."""
        return self._busy > self._long_batches

    def _count_done(self, jobs: int) -> None:
        """Note that jobs are done; behind the last one before the end, workers end. Called with the lock held."""
        self.jobs -= jobs
        if self._stopping and not self.jobs:
            self._wake(self.workers)

    def _full(self, tokens: int) -> Overloaded:
        return Overloaded(
            f"{self.queued_tokens + tokens} tokens are waiting, about {self.retry_after():.1f} s of work; the limit of"
            f" the queue is {self.limits.max_queue_tokens} tokens and {self.limits.max_seconds:g} s; try again later",
            self.retry_after(),
        )

    # The tokenizer threads' side

    def _tokenized(self, jobs: Iterable[Job], notify: bool = True) -> None:
        """Queue jobs that have rows; end those that have an error, or that the queue has no room for."""
        ended = []
        with self._lock:
            for job in jobs:
                if job.cancelled:
                    continue
                if job.error is None and job.tokens > self.limits.max_queue_tokens:
                    job.error = TooLong(
                        f"the request has {job.tokens} tokens, and the limit is {self.limits.max_queue_tokens}: send"
                        " several requests"
                    )
                elif job.error is None and self._exceeds(job):
                    job.error = self._full(job.tokens)
                if job.error is not None or not job.remaining:
                    ended.append(self._ended(job))
                else:
                    self._enqueue(job)
            if notify and self._order:
                extra = self._waiting_tokens // LEAST_BATCH
                self._wake(extra if self._ends_soon() else 1 + extra)
        for job in ended:
            if job.error is None:
                job.finish()
        self._on_finished(ended)

    def _count_queued(self, job: Job, tokens: int) -> None:
        self.queued_tokens += tokens
        self._queued[job.operation] = self._queued.get(job.operation, 0) + tokens

    def _exceeds(self, job: Job) -> bool:
        return self.queued_tokens + job.tokens > self.limits.max_queue_tokens

    def _enqueue(self, job: Job) -> None:
        job.enqueued = True
        self._count_queued(job, job.tokens)
        self._waiting_tokens += job.tokens
        queue = self._queues.get(job.operation)
        if queue is None:
            queue = self._queues[job.operation] = deque()
            self._order.append(job.operation)
        queue.append(job)

    def _ended(self, job: Job) -> Job:
        """Note that a job is done, which never was in the queue."""
        job.remaining = -1
        self._count_done(1)
        return job

    # The workers' side

    def _work(self) -> None:
        torch.set_num_threads(self.threads)
        signal = threading.Lock()
        signal.acquire()
        while True:
            untokenized = []
            with self._lock:
                while not self._order and not self._untokenized:
                    if self._stopping and not self.jobs:
                        return
                    self._sleeping.append(signal)
                    self._lock.release()
                    signal.acquire()
                    self._lock.acquire()
                self._busy += 1
                if self._untokenized:
                    untokenized = list(self._untokenized)
                    self._untokenized.clear()
            for group in by_operation(untokenized):
                tokenize(group)
                self._tokenized(group, notify=False)
            with self._lock:
                if not self._order:
                    self._busy -= 1
                    continue
                batch = self._take()
                self._long_batches += batch.is_long
                if batch.is_long and (self._order or self._untokenized):
                    self._wake(1)
            if batch.late:
                self._on_finished(batch.late)
            if batch.pieces:
                self._compute(batch)
            with self._lock:
                self._busy -= 1
                self._long_batches -= batch.is_long

    def _take(self) -> Batch:
        """Take rows for a batch from the queue of the operation whose turn it is. Called with the lock held."""
        operation = self._order.popleft()
        queue = self._queues[operation]
        budget = self._budget(operation)
        now = time.perf_counter()
        pieces: list[Piece] = []
        late: list[Job] = []
        taken = 0
        while queue and taken < budget:
            job = queue.popleft()
            if job.cancelled:
                continue
            if job.deadline < now and not job.next_row:
                job.error = TimedOut(
                    "the request waited in the queue for longer than the server's limit; try again later"
                )
                self._forget(job)
                late.append(job)
                continue
            first, tokens = job.next_row, 0
            room = min(budget - taken, QUANTUM)
            end = first
            while end < len(job.lengths) and (end == first or tokens + job.lengths[end] <= room):
                if end == first and pieces and taken + job.lengths[end] > budget:
                    break  # for the next batch
                tokens += job.lengths[end]
                end += 1
            if end == first:
                queue.appendleft(job)
                break
            if not first:
                job.started_at = now
            job.next_row = end
            taken += tokens
            if pieces and pieces[-1][0] is job:  # whose turn it is again, since it waits alone
                pieces[-1] = (job, pieces[-1][1], end)
            else:
                pieces.append((job, first, end))
            if end < len(job.lengths):
                queue.append(job)
        self._waiting_tokens -= taken
        if queue:
            self._order.append(operation)
            self._wake(1)
        else:
            del self._queues[operation]
        is_long = taken * operation.weights > SHORT_MULTIPLICATIONS
        return Batch(operation, pieces, budget, late, is_long)

    def _budget(self, operation: Operation) -> int:
        """Return the tokens of the next batch: what waits, shared with the other idle workers, up to the limit."""
        most = self.limits.batch_tokens
        rate = self._rates.get(operation)
        if rate:
            most = min(most, max(QUANTUM, int(rate * BATCH_SECONDS)))
        idle = self.workers - self._busy + 1
        return min(most, max(LEAST_BATCH, math.ceil(self._waiting_tokens / idle)))

    def _compute(self, batch: Batch) -> None:
        operation, pieces, budget, *_ = batch
        begin = time.perf_counter()
        try:
            outputs = _outputs(operation, pieces)
        except Exception as error:  # noqa: BLE001 - belongs to a request, and must not end the worker
            self._compute_apart(operation, pieces, error)
            return
        tokens = sum(sum(job.lengths[first:end]) for job, first, end in pieces)
        seconds = time.perf_counter() - begin
        rate = tokens / seconds
        self._rates[operation] = _DECAY * self._rates.get(operation, rate) + (1 - _DECAY) * rate
        position, jobs = 0, []
        for job, first, end in pieces:
            job.outputs[first:end] = outputs[position : position + end - first]
            position += end - first
            jobs.append((job, end - first))
        self._complete(jobs)
        self.on_batch(BatchReport(operation, position, tokens, len(pieces), budget, seconds))

    def _compute_apart(self, operation: Operation, pieces: list[Piece], error: Exception) -> None:
        """Compute the pieces of a batch that failed one by one, so that only the job at fault has an error."""
        for piece in pieces:
            job, first, end = piece
            try:
                if len(pieces) == 1:
                    raise error
                job.outputs[first:end] = _outputs(operation, [piece])
            except Exception as own:  # noqa: BLE001
                if not isinstance(own, UserError):
                    logger.error("a batch of %s failed", operation.name, exc_info=own)
                job.error = own
            self._complete([(job, end - first)])

    def _complete(self, pieces: Sequence[tuple[Job, int]]) -> None:
        """Count rows as computed, and finish the jobs that have no other."""
        done = []
        with self._lock:
            for job, rows in pieces:
                if job.cancelled or job.remaining < 0:
                    continue
                job.remaining -= rows
                if job.error is not None or not job.remaining:
                    if job.error is not None:
                        self._drop_waiting(job)
                    job.remaining = -1
                    done.append(job)
        if not done:
            return
        now = time.perf_counter()
        for job in done:
            job.computed_at = now
            if job.error is None:
                job.finish()
        with self._lock:
            for job in done:
                self._count_queued(job, -job.tokens)
            self._count_done(len(done))
        self._on_finished(done)

    def _drop_waiting(self, job: Job) -> None:
        self._waiting_tokens -= sum(job.lengths[job.next_row :])
        job.next_row = len(job.lengths)
        queue = self._queues.get(job.operation)
        if queue is not None and job in queue:
            queue.remove(job)
            if not queue:
                del self._queues[job.operation]
                self._order.remove(job.operation)

    def _forget(self, job: Job) -> None:
        """Remove what is left of a job. Called with the lock held."""
        if job.enqueued:
            self._drop_waiting(job)
            self._count_queued(job, -job.tokens)
        job.remaining = -1
        self._count_done(1)


def _outputs(operation: Operation, pieces: list[Piece]) -> Sequence[Any]:
    with torch.no_grad(), matmul_table.same_in_every_batch():
        return operation.run(pieces)


def _call_each(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.on_done(job)
