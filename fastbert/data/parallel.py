"""Map a function over a stream on several threads, in order and in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def map_in_order(function: Callable[[T], U], items: Iterable[T], workers: int) -> Iterator[U]:
    """Yield `function(item)` of each item in order, with at most 2 * `workers` items in progress.

    Items are taken on the calling thread; `function` runs on `workers` other threads, or with one worker on the calling
    thread too. The first error, of an item or of the iterable, ends the iteration.
    """
    if workers == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="fastbert")
    pending: deque[Future[U]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
