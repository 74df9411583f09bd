"""The server's metrics, for Prometheus and for the page."""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fastbert.serving.jobs import Job
from fastbert.serving.scheduler import BatchReport, Scheduler

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536, 262144)
_FILL = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
HISTORY = 60
"""Seconds of throughput that are kept."""


class Metrics:
    """Counters and histograms of one server, in a registry of its own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._requests = Counter("fastbert_requests", "Answered requests", ["route", "status"], registry=registry)
        self._request_seconds = Histogram(
            "fastbert_request_seconds", "From the request's head to its answer", ["route"], buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self._queue_seconds = Histogram(
            "fastbert_queue_seconds", "From the request's body to its first batch", buckets=_SECONDS, registry=registry
        )
        self._request_tokens = Histogram(
            "fastbert_request_tokens", "Tokens per request", buckets=_TOKENS, registry=registry
        )
        self._batch_tokens = Histogram("fastbert_batch_tokens", "Tokens per batch", buckets=_TOKENS, registry=registry)
        self._batch_fill = Histogram(
            "fastbert_batch_fill", "Tokens of a batch as share of its budget", buckets=_FILL, registry=registry
        )
        self._batch_requests = Histogram(
            "fastbert_batch_requests", "Requests per batch", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=registry,
        )  # fmt: skip
        self._batch_seconds = Histogram(
            "fastbert_batch_seconds", "Computation of a batch", buckets=_SECONDS, registry=registry
        )
        self._dropped = Counter("fastbert_dropped_requests", "Requests whose client left", registry=registry)
        self._queued = Gauge("fastbert_queued_tokens", "Tokens that wait or are computed", registry=registry)
        self._running = Gauge("fastbert_running_requests", "Requests that wait or are computed", registry=registry)
        self._children: dict[tuple[str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}
        self.requests = self.tokens = 0
        """Answered requests and computed tokens since the start."""
        self.started = time.monotonic()
        self._history: deque[tuple[int, int]] = deque(maxlen=HISTORY + 1)

    def watch(self, scheduler: Scheduler) -> None:
        """Read the gauges of a scheduler."""
        self._queued.set_function(lambda: scheduler.queued_tokens)
        self._running.set_function(lambda: scheduler.jobs)

    def on_request(self, route: str, status: int, seconds: float, job: Job | None) -> None:
        """Count an answered request."""
        child = self._children.get((route, status))
        if child is None:
            child = self._children[route, status] = self._requests.labels(route, str(status))
            self._timers.setdefault(route, self._request_seconds.labels(route))
        child.inc()
        self._timers[route].observe(seconds)
        self.requests += 1
        if job is not None:
            self._request_tokens.observe(job.tokens)
            if job.started_at:
                self._queue_seconds.observe(job.started_at - job.queued_at)

    def on_dropped(self) -> None:
        """Count a request whose client left."""
        self._dropped.inc()

    def on_batch(self, report: BatchReport) -> None:
        """Count a batch."""
        self.tokens += report.tokens
        self._batch_tokens.observe(report.tokens)
        self._batch_fill.observe(report.tokens / report.budget)
        self._batch_requests.observe(report.jobs)
        self._batch_seconds.observe(report.seconds)

    def on_second(self) -> None:
        """Note the throughput of the last second."""
        self._history.append((self.requests, self.tokens))

    def history(self) -> list[tuple[int, int]]:
        """Return requests and tokens of each of the last seconds, oldest first."""
        pairs = list(self._history)
        return [(r - p, t - u) for (p, u), (r, t) in pairwise(pairs)]

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self.registry)
