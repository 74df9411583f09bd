"""The server's metrics, for Prometheus and for the page.

They are plain counters, which a collector of prometheus_client writes when it is asked: counting a request takes less
time than one observation of a histogram of that package.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from fastbert.serving.batches import BatchReport
from fastbert.serving.jobs import Job
from fastbert.serving.scheduler import Scheduler

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536, 262144)
_FILL = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
HISTORY = 60
"""Seconds of throughput that are kept."""


class _Histogram:
    """Counts of values up to each bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the counts up to each bound as Prometheus has them."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


class Metrics:
    """Counters and histograms of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()
        self.registry.register(self)
        self.requests: int = 0
        self.tokens: int = 0
        """Answered requests and computed tokens since the start."""
        self.dropped: int = 0
        self.truncated: int = 0
        self.started: float = time.monotonic()
        self._by_route: dict[str, dict[int, int]] = {}
        self._request_seconds: dict[str, _Histogram] = {}
        self._queue_seconds = _Histogram(_SECONDS)
        self._request_tokens = _Histogram(_TOKENS)
        self._batches = threading.Lock()  # of the workers; requests are counted on the event loop alone
        self._batch_tokens = _Histogram(_TOKENS)
        self._batch_fill = _Histogram(_FILL)
        self._batch_requests = _Histogram(_COUNTS)
        self._batch_seconds = _Histogram(_SECONDS)
        self._scheduler: Scheduler | None = None
        self._history: deque[tuple[int, int]] = deque(maxlen=HISTORY + 1)

    def watch(self, scheduler: Scheduler) -> None:
        """Read the gauges of a scheduler."""
        self._scheduler = scheduler

    def on_request(self, route: str, status: int, seconds: float, job: Job | None) -> None:
        """Count an answered request."""
        statuses = self._by_route.get(route)
        if statuses is None:
            statuses = self._by_route[route] = {}
            self._request_seconds[route] = _Histogram(_SECONDS)
        statuses[status] = statuses.get(status, 0) + 1
        self._request_seconds[route].observe(seconds)
        self.requests += 1
        if job is not None:
            self._request_tokens.observe(job.tokens)
            self.truncated += job.truncated
            if job.started_at:
                self._queue_seconds.observe(job.started_at - job.queued_at)

    def on_dropped(self) -> None:
        """Count a request whose client left."""
        self.dropped += 1

    def on_batch(self, report: BatchReport) -> None:
        """Count a batch."""
        with self._batches:
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
        return [(r - p, t - u) for (p, u), (r, t) in pairwise(list(self._history))]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as a collector of prometheus_client does."""
        requests = CounterMetricFamily("fastbert_requests", "Answered requests", labels=("route", "status"))
        seconds = HistogramMetricFamily(
            "fastbert_request_seconds", "From the request's head to its answer", labels=("route",)
        )
        for route, statuses in list(self._by_route.items()):
            for status, count in list(statuses.items()):
                requests.add_metric((route, str(status)), count)
            histogram = self._request_seconds[route]
            seconds.add_metric((route,), histogram.buckets(), histogram.sum)
        yield requests
        yield seconds
        for name, what, histogram in (
            ("queue_seconds", "From the request's body to its first batch", self._queue_seconds),
            ("request_tokens", "Tokens per request", self._request_tokens),
            ("batch_tokens", "Tokens per batch", self._batch_tokens),
            ("batch_fill", "Tokens of a batch as share of its budget", self._batch_fill),
            ("batch_requests", "Requests per batch", self._batch_requests),
            ("batch_seconds", "Computation of a batch", self._batch_seconds),
        ):
            yield HistogramMetricFamily(f"fastbert_{name}", what, histogram.buckets(), histogram.sum)
        yield CounterMetricFamily("fastbert_dropped_requests", "Requests whose client left", self.dropped)
        yield CounterMetricFamily("fastbert_truncated_texts", "Texts that were truncated", self.truncated)
        yield CounterMetricFamily("fastbert_tokens", "Computed tokens", self.tokens)
        scheduler = self._scheduler
        for name, what, value in (
            ("queued_tokens", "Tokens that wait or are computed", scheduler.queued_tokens if scheduler else 0),
            ("running_requests", "Requests that wait or are computed", scheduler.jobs if scheduler else 0),
        ):
            yield GaugeMetricFamily(f"fastbert_{name}", what, value)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self.registry)
