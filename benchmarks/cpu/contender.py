"""An encoder or a matmul as a contender: it opens a workload, saves its values, and returns the times of its calls.

The object lives in a process of its own or in the parent's (`fastbert.benchmarks.harness.isolation`), so its methods
take and return JSON values; arrays are passed as files.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness.measure import Timing, clock

TURN_SECONDS = 0.1  # the target duration of a round
MOST_CALLS = 50


class CpuContender:
    """One contender with a fixed number of threads; nothing heavy is imported before `load`."""

    def __init__(self, kind: str, name: str, folder: str | None, threads: int, scratch: str) -> None:
        self.kind, self.name, self.threads = kind, name, threads
        self.folder, self.scratch = Path(folder) if folder else None, Path(scratch)

    def load(self) -> None:
        """Construct the contender: read the model, convert it if necessary."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        make = peers.load(self.kind, self.name)
        options = peers.options(self.kind, self.name)
        self.peer = make(self.folder, threads=self.threads, scratch=self.scratch, **options)

    def open(self, path: str) -> dict[str, Any]:
        """Prepare for the workload in a file; the time of the second call determines the calls per round."""
        began = time.perf_counter()
        with np.load(path) as arrays:
            details = self.peer.open(dict(arrays))
        self.peer.run()
        prepared = time.perf_counter() - began
        second = clock(self.peer.run).seconds
        self.calls = max(1, min(MOST_CALLS, math.ceil(TURN_SECONDS / max(second, 1e-6))))
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

    def _several(self) -> None:
        for _ in range(self.calls):
            self.peer.run()


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
