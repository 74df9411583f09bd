"""Prepare the data of the next steps in background threads, in order, and measure how long a step waits for it.

Threads are enough: the collator releases the GIL. What a step gets does not depend on the number of threads, because
`load` is a pure function of the step's specification.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

from fastbert.errors import UserError

Specification = TypeVar("Specification")
Data = TypeVar("Data")


class Prefetcher(Generic[Specification, Data]):
    """Iterate over steps: each the specification of a step and its data, prepared while earlier steps are computed.

    Args:
        specify: return the specification of a step, such as its range of samples, mask rate and length, or None behind
            the last one. Called once per step, in order, in one thread at a time, up to `ahead` steps before the step
            is taken: what depends on the clock or on losses must be decided there, and is handed out with the data.
        load: return the data of a specification, such as its micro-batches: a pure function, called in several threads
            at once.
        first: the first step.
        workers: number of threads; with 0, data is prepared when a step is taken.
        ahead: number of steps in memory that are prepared or being prepared; at least `workers`.

    An error of `specify` or `load` is raised when its step is taken, in order, and again each time that it is. A
    context manager: at its end, or after `close`, steps that have not begun to be prepared are given up.
    Raises UserError for numbers out of range.
    """

    def __init__(
        self,
        specify: Callable[[int], Specification | None],
        load: Callable[[Specification], Data],
        *,
        first: int = 0,
        workers: int = 1,
        ahead: int | None = None,
    ) -> None:
        if workers < 0:
            raise UserError(f"workers={workers} must be at least 0")
        ahead = max(workers, 2) if ahead is None else ahead
        if ahead < max(workers, 1):
            raise UserError(f"ahead={ahead} must be at least 1, and at least workers={workers}")
        self._specify, self._load = specify, load
        self._next_taken = self._next_specified = self._next_submitted = first
        self._last: int | None = None  # the first step without a specification
        self._results: dict[int, Future[tuple[Specification, Data] | None]] = {}
        self._in_order = threading.Lock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="fastbert-data") if workers else None
        self.startup_seconds: float | None = None
        """Seconds until the data of the first step was there."""
        self.waited_seconds = 0.0
        """Seconds that later steps waited for data, in all."""
        for _ in range(ahead if self._pool else 0):
            self._submit()

    def __iter__(self) -> Iterator[tuple[Specification, Data]]:
        return self

    def __next__(self) -> tuple[Specification, Data]:
        """Return the next step's specification and data, as soon as they are there."""
        started = time.perf_counter()
        try:
            return self._take()
        finally:
            waited = time.perf_counter() - started
            if self.startup_seconds is None:
                self.startup_seconds = waited
            else:
                self.waited_seconds += waited

    def close(self) -> None:
        """Wait for the steps that are being prepared, at most one per worker; give up the others."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> tuple[Specification, Data]:
        if self._pool is None and self._next_taken not in self._results:
            self._results[self._next_taken] = Future()
            self._prepare()
        result = self._results[self._next_taken].result()
        if result is None:
            raise StopIteration
        del self._results[self._next_taken]
        self._next_taken += 1
        if self._pool is not None:
            self._submit()
        return result

    def _submit(self) -> None:
        assert self._pool is not None
        self._results[self._next_submitted] = Future()
        self._next_submitted += 1
        self._pool.submit(self._prepare)

    def _prepare(self) -> None:
        """Prepare the next step that nobody prepares."""
        with self._in_order:
            step = self._next_specified
            result = self._results[step]
            if self._last is not None:
                return
            try:
                specification = self._specify(step)
            except BaseException as error:
                # No step follows one whose specification is unknown.
                self._last = step
                result.set_exception(error)
                return
            self._next_specified += 1
            if specification is None:
                self._last = step
                result.set_result(None)
                return
        try:
            result.set_result((specification, self._load(specification)))
        except BaseException as error:
            result.set_exception(error)
