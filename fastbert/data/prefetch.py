"""Prepare the data of the next steps in background threads, in order, and measure how long a step waits for it.

Threads are enough: the collator releases the GIL. What a step gets does not depend on their number, because `load` is a
pure function of the step's specification.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

from fastbert.errors import UserError

Specification = TypeVar("Specification")
Data = TypeVar("Data")


class Prefetcher(Generic[Specification, Data]):
    """Load the data of steps that are submitted, and return it in their order.

    Args:
        load: return the data of a specification, such as its micro-batches: a pure function, called in several threads
            at once.
        finish: return the data of a step from that of `load`, where it must be the same step in all processes at a
            time, as for a sum over processes: called in the order of the steps, in one thread.
        workers: number of threads of `load`; with 0, everything is done when a step is taken.

    An error of `load` or `finish` is raised when its step is taken. A context manager, which ends with `close`. Raises
    UserError for a negative number of workers.
    """

    def __init__(
        self,
        load: Callable[[Specification], Data],
        finish: Callable[[Data], Data] | None = None,
        *,
        workers: int = 1,
    ) -> None:
        if workers < 0:
            raise UserError(f"workers={workers} must be at least 0")
        self._load, self._finish = load, finish
        self._pool = ThreadPoolExecutor(workers, "fastbert-data") if workers else None
        self._last_stage = ThreadPoolExecutor(1, "fastbert-data-in-order") if workers and finish else None
        self._steps: deque[Callable[[], Data]] = deque()
        self.depth: int = max(workers, 1)
        """Number of submitted steps that keep all threads at work while one step is computed."""
        self.seconds_waited: float = 0.0
        """Seconds that steps waited for their data, the first one left out: nothing is computed before it."""
        self._is_first = True

    def submit(self, specification: Specification) -> None:
        """Begin to load a step."""
        if self._pool is None:
            self._steps.append(lambda: self._finished(self._load(specification)))
            return
        data = self._pool.submit(self._load, specification)
        if self._last_stage is not None:
            data = self._last_stage.submit(self._finished_result, data)
        self._steps.append(data.result)

    def result(self) -> Data:
        """Return the data of the first submitted step that has not been returned, as soon as it is there."""
        started = time.perf_counter()
        data = self._steps.popleft()()
        if not self._is_first:
            self.seconds_waited += time.perf_counter() - started
        self._is_first = False
        return data

    def close(self) -> None:
        """Wait for the steps that are being loaded, at most one per worker, and give up the others; with `finish`, wait
        for all that were submitted: the other processes do, and a step that only some of them finish never ends."""
        for pool in (self._pool, self._last_stage):
            if pool is not None:
                pool.shutdown(cancel_futures=self._last_stage is None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finished(self, data: Data) -> Data:
        return data if self._finish is None else self._finish(data)

    def _finished_result(self, data: Future[Data]) -> Data:
        return self._finished(data.result())
