"""Watches a process from inside: memory, handles and threads while something runs."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Sample:
    """The state of this process: bytes in memory, open handles, threads, and seconds of its processor time."""

    resident: int
    handles: int
    threads: int
    processor: float

    @classmethod
    def now(cls) -> Sample:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return cls(resident, len(os.listdir("/proc/self/fd")), threading.active_count(), time.process_time())


class Watch:
    """Takes a sample of this process every `seconds` until the block ends."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(self.seconds):
            self.samples.append(Sample.now())

    def growth(self) -> dict[str, float]:
        """Return how much more memory, and how many more handles and threads, the last quarter of the samples had than
        those between a third and a half; and the size at the end. Memory is compared by medians, handles and threads by
        minima: a file that is open while it is written or read is no handle that stays."""
        count = len(self.samples)
        assert count >= 12, f"{count} samples are too few"
        early, late = self.samples[count // 3 : count // 2], self.samples[-(count // 4) :]

        def change(name: str, of: Callable[[Iterator[int]], float]) -> float:
            return of(getattr(sample, name) for sample in late) - of(getattr(sample, name) for sample in early)

        memory = change("resident", statistics.median)
        return {
            "largest_growth_megabytes": round(memory / MEGABYTE, 2),
            "largest_growth_percent": round(100 * memory / early[0].resident, 3),
            "largest_growth_handles": change("handles", min),
            "largest_growth_threads": change("threads", min),
            "largest_megabytes": round(max(sample.resident for sample in self.samples) / MEGABYTE),
        }
