"""Read the files of a folder behind a URL: byte ranges with retries, and whole files that are verified."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from fastbert.errors import UserError
from fastbert.io.atomic_write import atomic_write
from fastbert.io.locations import filesystem, is_transient, join, reason_of
from fastbert.io.log import logger

T = TypeVar("T")
PART_BYTES = 1 << 23  # of a download
PARTS_AHEAD = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0  # seconds between tries, doubled each time


class RemoteFolder:
    """A folder behind a URL. Threads may read at the same time.

    Args:
        url: of a file system that fsspec opens.
        patience: seconds for which a failing read is repeated.

    Raises UserError for a URL that cannot be opened (`fastbert.io.locations.filesystem`).
    """

    def __init__(self, url: str, *, patience: float = 300.0) -> None:
        self.url: str = url.rstrip("/")
        self.patience = patience
        self.retries: int = 0
        """Reads that failed and were repeated."""
        self._lock = threading.Lock()
        self._inherited: list[Any] = []
        self._opened: tuple[int, Any, str] = (os.getpid(), *filesystem(self.url))

    def address(self, name: str) -> str:
        """Return the URL of a file of the folder."""
        return join(self.url, name)

    def read(self, name: str, begin: int = 0, end: int | None = None, *, patience: float | None = None) -> bytes:
        """Return the bytes of a file from `begin` to `end` (default: all).

        A transient failure is repeated, with growing pauses, for `patience` seconds (default: the folder's). Raises
        UserError, which names the URL and the reason, for others, for a file that ends before `end`, and for a server
        that does not support ranges.
        """
        address = self.address(name)

        def call() -> bytes:
            fs, folder = self._filesystem()
            path = f"{folder}/{name}"
            data: bytes = fs.cat_file(path) if end is None else fs.cat_file(path, start=begin, end=end)
            return data

        data = repeated(call, address, patience=self.patience if patience is None else patience, retry=self._count)
        if end is None or len(data) == end - begin:
            return data
        if len(data) > end - begin:
            raise UserError(
                f"{address}: the server does not support byte ranges, which streaming needs; use another server,"
                " or copy the folder"
            )
        raise UserError(f"{address}: is truncated: {len(data)} of the bytes from {begin} to {end}; copy it again")

    def _count(self) -> None:
        with self._lock:
            self.retries += 1

    def _filesystem(self) -> tuple[Any, str]:
        """Return the file system and the path of the folder in it; connections are not shared with forked processes."""
        process, fs, path = self._opened
        if process != os.getpid():
            # Closing the parent's connections here would take them out of its event loop, which the fork shares.
            self._inherited.append(fs)
            fs, path = filesystem(self.url)
            self._opened, self._lock = (os.getpid(), fs, path), threading.Lock()
        return fs, path.rstrip("/")

    def check_ranges(self, name: str, size: int, *, patience: float | None = None) -> None:
        """Raise UserError if the server does not support byte ranges, which a small file of this size shows; `patience`
        is that of `read`."""
        if size > 1:
            self.read(name, 0, 1, patience=patience)

    def download(self, name: str, size: int, digest: str, target: Path, progress: Callable[[int], None]) -> None:
        """Write a file of this size and SHA-256 to a local path, atomically; `progress` is called with bytes done.

        Raises UserError where the content differs, and OSError where it cannot be written.
        """
        hashed, done = hashlib.sha256(), 0
        with atomic_write(target) as partial, partial.open("wb") as file:
            for part in self._parts(name, size):
                hashed.update(part)
                file.write(part)
                done += len(part)
                progress(done)
            if hashed.hexdigest() != digest:
                raise UserError(
                    f"{self.address(name)}: is damaged: its SHA-256 is not the one in the index; copy it again from"
                    " where it was prepared, or prepare the shards again"
                )

    def _parts(self, name: str, size: int) -> Iterator[bytes]:
        """Yield a file in order, reading some parts ahead."""

        def read(begin: int) -> bytes:
            return self.read(name, begin, min(begin + PART_BYTES, size))

        begins = range(0, size, PART_BYTES)
        if len(begins) <= 1:
            yield from map(read, begins)
            return
        with ThreadPoolExecutor(PARTS_AHEAD, thread_name_prefix="fastbert-download") as pool:
            yield from in_order(pool, read, begins, PARTS_AHEAD)


def repeated(
    call: Callable[[], T], address: str, *, patience: float, problem: str = "cannot be read", retry: Callable[[], None]
) -> T:
    """Return the result of a call to a file system, which is repeated after transient failures.

    Args:
        call: may raise UserError, which is passed on.
        address: the file's, for messages.
        patience: seconds for which calls are repeated, with growing pauses.
        problem: what is wrong when they end.
        retry: called before each repetition.

    Raises UserError, which names the address and the reason, for other failures, and at the end of the patience.
    """
    began, pause, tries = time.monotonic(), _FIRST_PAUSE, 0
    while True:
        try:
            return call()
        except UserError:
            raise
        except Exception as error:
            tries += 1
            waited = time.monotonic() - began
            if not is_transient(error):
                raise UserError(f"{address}: {reason_of(error)}") from error
            if waited + pause > patience:
                raise UserError(
                    f"{address}: {problem}, after {tries} tries in {waited:.0f} s ({reason_of(error)}); check"
                    " the server and the network, and repeat the command"
                ) from error
            if tries == 3:  # not a hiccup
                logger.warning("%s: %s; trying again for %.0f s", address, reason_of(error), patience - waited)
            retry()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def in_order(
    pool: ThreadPoolExecutor, call: Callable[[Any], bytes], arguments: Iterable[Any], ahead: int
) -> Iterator[bytes]:
    """Yield the results of calls in order, of which at most `ahead` are pending. Calls that were not begun are dropped
    when the iterator is closed or one of them raises."""
    remaining = iter(arguments)
    pending: list[Future[bytes]] = [pool.submit(call, argument) for argument in islice(remaining, ahead)]
    try:
        while pending:
            result = pending.pop(0).result()
            pending += [pool.submit(call, argument) for argument in islice(remaining, 1)]
            yield result
    finally:
        for future in pending:
            future.cancel()
