"""A model in training as a contender: it takes steps on batches and reports their time and memory."""

from __future__ import annotations

import gc
import itertools
import math
import time
from typing import Any

import numpy as np

from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu.contender import MOST_CALLS, TURN_SECONDS, CpuContender
from fastbert.benchmarks.harness import process_memory
from fastbert.benchmarks.harness.measure import Timing, clock
from fastbert.benchmarks.training import memory, profile, workloads

REHEARSAL = "rehearsal"  # folder of the toy model, inside the model's
AGREEMENT = 0.05
MOST_WARMING = 8  # rounds
WARMING_SECONDS = 120.0  # no warm-up round starts later
PROFILED_SECONDS = 30.0  # of timed steps: at least one, at most:
MOST_PROFILED = 10


class TrainingContender(CpuContender):
    """One contender with a fixed number of threads, in one process per workload."""

    def load(self) -> None:
        """Read the model. The memory in use without it is measured after a step of a toy model, since libraries load
        parts of themselves late."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        assert self.folder is not None
        make = peers.load(self.kind, self.name)
        options = {"threads": self.threads, "scratch": self.scratch, **peers.options(self.kind, self.name)}
        toy = make(self.folder / REHEARSAL, **options)
        toy.open(workloads.rehearsal(toy.head).arrays)
        for phase in toy.phases().values():
            phase()
        del toy
        gc.collect()
        self.before: int | None = process_memory.resident()
        self.peer: Any = make(self.folder, **options)

    def open(self, path: str) -> dict[str, Any]:
        """Read the batches, compute the values to be compared, and take steps until two rounds in a row agree.

        A round is a whole cycle of the batches, or several cycles if that is short.
        """
        began = time.perf_counter()
        with np.load(path) as arrays:
            details = self.peer.open(dict(arrays))
        # Before the first step, which changes the weights.
        self.compared: Any = self.peer.values()
        self.counted_anew: bool = process_memory.forget_high_water()
        self.cycle: int = len(self.peer.batches)
        self.calls: int = self.cycle
        first = self.time().seconds
        times = [self.time().seconds]
        self.calls = self.cycle * max(1, min(MOST_CALLS, math.ceil(TURN_SECONDS / (times[0] * self.cycle))))
        warming = time.perf_counter()
        while len(times) < MOST_WARMING and time.perf_counter() - warming < WARMING_SECONDS:
            times.append(self.time().seconds)
            if abs(times[-1] - times[-2]) <= AGREEMENT * times[-1]:
                break
        prepared = round(time.perf_counter() - began, 2)
        return {
            **details,
            "prepare_seconds": prepared,
            "first_step_ms": round(first * 1e3, 2),
            "calls_per_round": self.calls,
            "warming_turns": len(times) + 1,
        }

    def save(self, path: str) -> None:
        """Write the values to be compared, fp64 (count,)."""
        np.save(path, self.compared)

    def time(self) -> Timing:
        """Time one round: the mean of its steps."""
        total = clock(self._turn)
        return Timing(total.seconds / self.calls, total.processor_seconds / self.calls)

    def memory(self) -> dict[str, Any] | None:
        """Return the high-water mark of the steps so far and its parts, in bytes; None except on Linux."""
        peak = process_memory.high_water()
        if peak is None or self.before is None:
            return None
        steps = (self.peer.phases() for _ in range(self.cycle))
        parts = memory.account(self.peer.model, self.peer.optimizer, steps, self.before, peak)
        since = "after loading" if self.counted_anew else "the start of the process"
        return {"peak_bytes": peak, "parts_bytes": parts, "peak_since": since}

    def profile(self, step_ms: float) -> dict[str, Any]:
        """Return where the time of a step goes; the time of a step determines how many are timed."""
        rounds = max(1, min(MOST_PROFILED, math.floor(PROFILED_SECONDS * 1e3 / max(step_ms, 1e-3))))
        return profile.profile(self.peer.phases, rounds)

    def _turn(self) -> None:
        for _ in itertools.repeat(None, self.calls):
            for phase in self.peer.phases().values():
                phase()
