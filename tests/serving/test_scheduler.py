"""Batches by tokens: fair, full, shared among workers, and apart where one request is at fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fastbert.errors import UserError
from fastbert.packing import PackedBatch
from fastbert.serving.batches import BatchReport, Limits
from fastbert.serving.jobs import Job, Operation, Overloaded, TooLong
from fastbert.serving.scheduler import Scheduler
from fastbert.tasks.rows import Rows, bounds


class Echo(Operation):
    """Rows of so many tokens as the inputs say, each of them the number of its row; the output is their sum."""

    name = "echo"

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(model=SimpleNamespace(device=torch.device("cpu"))))  # type: ignore[arg-type]
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.batches: list[list[int]] = []

    def tokenize(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if "long" in job.inputs:
                job.error = TooLong("too long")
                continue
            if "odd" in job.inputs:
                raise RuntimeError("odd")
            sizes = np.array(job.inputs, dtype=np.int64)
            ids = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
            rows = Rows(
                input_ids=ids, token_type_ids=np.zeros_like(ids), offsets=bounds(sizes), examples=np.arange(len(sizes))
            )
            job.set_rows(rows)

    def compute(self, batch: PackedBatch) -> Sequence[Any]:
        self.entered.release()
        assert self.gate.wait(20)
        lengths = batch.cu_seqlens.diff().tolist()
        self.batches.append(lengths)
        if 13 in lengths:
            raise UserError("13 tokens")
        return [int(row.sum()) for row in batch.input_ids.split(lengths)]

    def finish(self, job: Job) -> Any:
        return job.outputs


class Requests:
    """Jobs of one operation on a scheduler of its own."""

    def __init__(self, workers: int = 1, **limits: int) -> None:
        self.operation, self.order, self.reports = Echo(), list[Job](), list[BatchReport]()
        self.scheduler = Scheduler(Limits(**limits), workers, 1, self.reports.append)

    def send(self, *sizes: Any, timeout: float = 60.0) -> tuple[Job, threading.Event]:
        done = threading.Event()

        def on_done(job: Job) -> None:
            self.order.append(job)
            done.set()

        job = Job(self.operation, list(sizes), 0, on_done, timeout=timeout)
        self.scheduler.submit(job)
        return job, done

    def wait(self, *sent: tuple[Job, threading.Event]) -> None:
        assert all(done.wait(20) for _, done in sent)

    def waiting(self, tokens: int) -> None:
        for _ in range(1000):
            if self.scheduler.queued_tokens == tokens:
                return
            time.sleep(0.005)
        raise AssertionError(f"{self.scheduler.queued_tokens} tokens are queued, not {tokens}")


@pytest.fixture
def requests() -> Any:
    made: list[Requests] = []

    def make(workers: int = 1, **limits: int) -> Requests:
        made.append(Requests(workers, **limits))
        return made[-1]

    yield make
    for each in made:
        each.operation.gate.set()
        each.scheduler.close()
        assert not each.scheduler.jobs
        assert not each.scheduler.queued_tokens


def test_rows_return_to_their_requests(requests: Any) -> None:
    calls = requests(workers=2, batch_tokens=64)
    rng = np.random.default_rng(0)
    sent = [calls.send(*(int(size) for size in rng.choice([1, 2, 5, 30, 100], rng.integers(1, 9)))) for _ in range(200)]
    calls.wait(*sent)
    for job, _ in sent:
        assert job.result == [row * size for row, size in enumerate(job.inputs)]
    assert sum(report.tokens for report in calls.reports) == sum(job.tokens for job, _ in sent)
    assert any(report.jobs > 1 for report in calls.reports)


def test_a_small_request_does_not_wait_for_a_large_one(requests: Any) -> None:
    """It is in one of the next two batches, behind at most a quantum of the large one in each."""
    calls = requests(batch_tokens=1024)
    calls.operation.gate.clear()
    first = calls.send(8)
    assert calls.operation.entered.acquire(timeout=20)
    large = calls.send(*[256] * 64)
    calls.waiting(8 + 256 * 64)
    small = [calls.send(20) for _ in range(5)]
    calls.waiting(8 + 256 * 64 + 100)
    calls.operation.gate.set()
    calls.wait(first, large, *small)
    assert calls.order[-1] is large[0]
    with_small = [index for index, batch in enumerate(calls.operation.batches) if 20 in batch]
    assert with_small == with_small[:1]
    assert with_small[0] <= 2
    assert sorted(calls.operation.batches[with_small[0]])[:5] == [20] * 5
    assert all(sum(batch) <= 1024 for batch in calls.operation.batches)


def test_idle_workers_share_what_waits(requests: Any) -> None:
    calls = requests(workers=2, batch_tokens=4096)
    calls.operation.gate.clear()
    job = calls.send(*[64] * 32)  # 2,048 tokens
    for _ in range(2):
        assert calls.operation.entered.acquire(timeout=20)
    calls.operation.gate.set()
    calls.wait(job)
    assert max(sum(batch) for batch in calls.operation.batches) <= 1024


def test_one_worker_is_enough_for_short_batches(requests: Any) -> None:
    """A second one begins beside a batch of many tokens, or of a large model."""
    calls = requests(workers=2, batch_tokens=4096)
    operation = calls.operation

    def begins(*sizes: int) -> tuple[Any, bool]:
        sent = calls.send(*sizes)
        return sent, operation.entered.acquire(timeout=0.3)

    def let_go(*sent: Any) -> None:
        operation.gate.set()
        calls.wait(*sent)
        while operation.entered.acquire(timeout=0.05):
            pass
        operation.gate.clear()

    operation.gate.clear()
    for operation.weights, begins_too in ((10**9, True), (10**6, False)):
        first, first_begins = begins(3)
        second, second_begins = begins(3)
        assert first_begins
        assert second_begins is begins_too
        let_go(first, second)
    first, _ = begins(*[100] * 3)  # long, because of its tokens
    second, second_begins = begins(3)
    assert second_begins
    let_go(first, second)
    operation.gate.set()


def test_the_time_of_the_queue_is_that_of_its_operations(requests: Any) -> None:
    calls = requests()
    calls.operation.gate.clear()
    waits = calls.send(1000)
    calls.waiting(1000)
    calls.scheduler._rates = {calls.operation: 2000.0, Echo(): 1.0}
    assert calls.scheduler.retry_after() == 0.5
    calls.operation.gate.set()
    calls.wait(waits)
    assert calls.scheduler.retry_after() == 0


def test_errors_are_of_one_request(requests: Any) -> None:
    calls = requests(batch_tokens=4096)
    calls.operation.gate.clear()
    first = calls.send(1)
    assert calls.operation.entered.acquire(timeout=20)
    sent = [calls.send(*sizes) for sizes in ((5,), (13, 2), ("long",), (7, 7), ("odd",), ())]
    calls.waiting(1 + 5 + 15 + 14)
    calls.operation.gate.set()
    calls.wait(first, *sent)
    results = [job.result if job.error is None else type(job.error) for job, _ in sent]
    assert results == [[0], UserError, TooLong, [0, 7], RuntimeError, []]


def test_limits_of_the_queue(requests: Any) -> None:
    calls = requests(max_queue_tokens=100, max_queue_jobs=3)
    calls.operation.gate.clear()
    first = calls.send(60)
    calls.waiting(60)
    over = calls.send(50)
    calls.wait(over)
    assert isinstance(over[0].error, Overloaded)
    second = calls.send(40)
    calls.waiting(100)
    with pytest.raises(Overloaded, match="100 tokens are waiting"):
        calls.send(1)
    calls.operation.gate.set()
    calls.wait(first, second)
    alone = calls.send(500)  # more than the queue ever has room for
    calls.wait(alone)
    assert isinstance(alone[0].error, TooLong)
    calls.operation.gate.clear()
    sent = [calls.send(1) for _ in range(3)]
    with pytest.raises(Overloaded, match="3 requests are waiting"):
        calls.send(1)
    calls.operation.gate.set()
    calls.wait(*sent)


def test_cancelled_requests_are_dropped(requests: Any) -> None:
    calls = requests(batch_tokens=256)
    calls.operation.gate.clear()
    first = calls.send(10)
    assert calls.operation.entered.acquire(timeout=20)
    dropped, kept = calls.send(*[50] * 40), calls.send(30)
    calls.waiting(10 + 2000 + 30)
    calls.scheduler.cancel(dropped[0])
    calls.scheduler.cancel(dropped[0])
    assert calls.scheduler.queued_tokens == 40
    calls.operation.gate.set()
    calls.wait(first, kept)
    assert not dropped[1].is_set()
    assert sum(map(sum, calls.operation.batches)) == 40
