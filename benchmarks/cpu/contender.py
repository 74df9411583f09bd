"""An encoder or a matmul as a contender: it opens a workload, saves its values, and returns the times of its calls.

The object lives in a process of its own or in the parent's (`fastbert.benchmarks.harness.isolation`), so its methods
take and return JSON values; arrays are passed as files.
"""

from __future__ import annotations

import math
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import process_memory
from fastbert.benchmarks.harness.measure import Timing, clock

TURN_SECONDS = 0.1  # the target duration of a round
MOST_CALLS = 50
WARMING = "first"  # the array of a workload with the texts that warm up


class CpuContender:
    """One contender with a fixed number of threads; nothing heavy is imported before `load`."""

    def __init__(self, kind: str, name: str, folder: str | None, threads: int, scratch: str) -> None:
        self.kind = kind
        self.name = name
        self.threads = threads
        self.folder: Path | None = Path(folder) if folder else None
        self.scratch: Path = Path(scratch)

    def export(self) -> None:
        """Write the files that the contender reads besides the model, if any; runs in fastbert's environment."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        export = peers.exporter(self.kind, self.name)
        if export is not None:
            export(self.folder, dtype=peers.options(self.kind, self.name)["dtype"], scratch=self.scratch)

    def load(self) -> dict[str, Any]:
        """Construct the contender: read the model, convert it if necessary. Return the versions of its packages, None
        for an unknown one, and of Python."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        make = peers.load(self.kind, self.name)
        options = peers.options(self.kind, self.name)
        self.before: int | None = process_memory.resident()
        self.peer: Any = make(self.folder, threads=self.threads, scratch=self.scratch, **options)
        return {"python": platform.python_version(), **peers.versions(self.kind, self.name)}

    def open(self, path: str) -> dict[str, Any]:
        """Prepare for the workload in a file; the time of the second call determines the calls per round."""
        began = time.perf_counter()
        with np.load(path) as arrays:
            details = self.peer.open(dict(arrays))
        process_memory.forget_high_water()
        self.peer.run()
        prepared = time.perf_counter() - began
        second = clock(self.peer.run).seconds
        self.calls: int = max(1, min(MOST_CALLS, math.ceil(TURN_SECONDS / max(second, 1e-6))))
        return {**details, "prepare_seconds": round(prepared, 2), "calls_per_round": self.calls}

    def save(self, path: str) -> None:
        """Write the values to be compared: fp32 (tokens, width)."""
        np.save(path, self.peer.values(self.peer.run()))

    def time(self) -> Timing:
        """Time one round: one call, or the mean of several short ones after an untimed call that refills the caches."""
        if self.calls == 1:
            return clock(self.peer.run)
        self.peer.run()
        total = clock(self._several)
        return Timing(total.seconds / self.calls, total.processor_seconds / self.calls)

    def peak_memory(self) -> int | None:
        """Return the bytes by which the process grew since before the model was loaded, at most while the workload ran;
        None except on Linux. Where the system does not reset the high-water mark, loading counts too."""
        peak = process_memory.high_water()
        return None if peak is None or self.before is None else max(peak - self.before, 0)

    def _several(self) -> None:
        for _ in range(self.calls):
            self.peer.run()


class TextContender(CpuContender):
    """An embedder or a cross-encoder: it is too slow to be run without being timed."""

    def open(self, path: str) -> dict[str, Any]:
        """Read the texts of a file and compute the first of them to warm up."""
        with np.load(path) as arrays:
            loaded = dict(arrays)
        self.peer.open({"texts": loaded[WARMING]})
        process_memory.forget_high_water()
        self.peer.run()
        details: dict[str, Any] = self.peer.open(loaded)
        self.calls = 1
        return details


class QueryContender(TextContender):
    """An embedder that receives one text at a time, as a search does."""

    def open(self, path: str) -> dict[str, Any]:
        """Read the texts of a file, and compute each of them once to warm up."""
        with np.load(path) as arrays:
            texts = dict(arrays)["texts"].tobytes().split(b"\n")
        self.queries: list[dict[str, NDArray[np.uint8]]] = [
            {"texts": np.frombuffer(text, dtype=np.uint8)} for text in texts
        ]
        self.seconds: list[float] = []
        process_memory.forget_high_water()
        self.calls = 1
        for query in self.queries:
            details: dict[str, Any] = self.peer.open(query)
            self.peer.run()
        return details

    def save(self, path: str) -> None:
        """Write the vectors of all texts, fp32 (texts, width)."""
        vectors = []
        for query in self.queries:
            self.peer.open(query)
            vectors.append(self.peer.values(self.peer.run()))
        np.save(path, np.concatenate(vectors))

    def time(self) -> Timing:
        """Return the median over the texts, each computed by a call of its own."""
        timings = []
        for query in self.queries:
            self.peer.open(query)
            timings.append(clock(self.peer.run))
        self.seconds += [timing.seconds for timing in timings]
        return sorted(timings)[len(timings) // 2]

    def measured(self) -> dict[str, Any]:
        """Return the percentiles of all calls in milliseconds, and their number."""
        percentiles = zip(("p50_ms", "p99_ms"), np.percentile(self.seconds, (50, 99)) * 1e3, strict=True)
        return {**{name: float(f"{value:.4g}") for name, value in percentiles}, "queries": len(self.seconds)}


def environment(threads: int, scratch: Path) -> dict[str, str]:
    """Return the environment of a contender's process: exact thread pools, caches in a temporary folder."""
    return {
        **peers.thread_environment(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool of compilers could outlive its parent
        "TMPDIR": str(scratch),
        "HF_HUB_OFFLINE": "1",
        "OPENVINO_TELEMETRY_OPT_OUT": "1",
        "KINETO_LOG_LEVEL": "99",  # silence torch's profiler
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore"),
    }
