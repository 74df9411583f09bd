"""Measure what a parallel region of the OpenMP runtime and a barrier of fastbert's cost, in a process with a number of
threads.

The runtime is the one that torch loads, whose regions the native kernels use (`csrc/cpu/runtime/parallel.cpp`). A
region here runs a function of the runtime itself that returns at once. With more threads than cores the threads take
turns, which costs more than it would on as many cores: an upper bound.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fastbert import _C
from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import child_process

LIBRARIES = (None, "libgomp.so.1", "libiomp5.so", "libomp.so", "libomp.so.5", "libomp.dylib")
CALLS, REPEATS, SECONDS = 300, 5, 0.3


class RegionCost(NamedTuple):
    """Seconds of a parallel region, from its start to its end, and of a barrier inside of one."""

    region: float
    barrier: float


def measure(threads: int) -> RegionCost:
    """Return the costs with a number of threads, measured in a new process. Raises `ContenderFailed`."""
    answer = child_process.ask(__name__, (threads,), peers.thread_environment(threads))
    return RegionCost(answer["region"], answer["barrier"])


def child(threads: str) -> dict[str, Any]:
    """Return the costs in seconds, without that of the call from Python."""
    import torch

    torch.set_num_threads(int(threads))
    parallel, empty = _runtime()
    call = _percentile(_seconds(lambda: parallel(empty, None, 1, 0)))
    region = _percentile(_seconds(lambda: parallel(empty, None, int(threads), 0)))
    return {"region": max(0.0, region - call), "barrier": _percentile(_C.barrier_seconds(CALLS))}


def _runtime() -> tuple[Callable[..., None], ctypes.c_void_p]:
    """Return GOMP_parallel, and the address of a function that returns at once."""
    for name in LIBRARIES:
        try:
            library = ctypes.PyDLL(name)
            parallel, empty = library.GOMP_parallel, library.omp_get_thread_num
        except (OSError, AttributeError):
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return parallel, ctypes.cast(empty, ctypes.c_void_p)
    raise RuntimeError("no OpenMP runtime with GOMP_parallel is loaded")


def _seconds(run: Callable[[], None]) -> list[float]:
    """Return the times of calls."""
    times: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(CALLS):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
            if time.perf_counter() - began > SECONDS:
                break
    return times


def _percentile(seconds: Sequence[float]) -> float:
    """Return the 20th percentile: what other processes disturb takes longer."""
    return sorted(seconds)[len(seconds) // 5]


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the parent and return the exit code."""
    return 0 if child_process.answered(list(sys.argv[1:] if arguments is None else arguments), child) else 2


if __name__ == "__main__":
    sys.exit(main())
