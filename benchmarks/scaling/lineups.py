"""Contenders that consist of several processes: two that share the cores, or one per number of threads."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from fastbert.benchmarks.cpu import contender
from fastbert.benchmarks.cpu.contender import CpuContender, environment
from fastbert.benchmarks.cpu.lineup import Lineup, Result, interrupts_held
from fastbert.benchmarks.cpu.workloads import Workload
from fastbert.benchmarks.harness.isolation import Contender, Isolated
from fastbert.benchmarks.harness.measure import ContenderFailed, Timing

CLASS_PATH = f"{__name__}:ClockedContender"
START_SECONDS = 0.02  # from the request to the first call, longer than a process needs to receive it
PASSES_PER_ROUND = 3  # of the calls in a round of `CpuContender`
LEAST_CALLS = 2


class Run(NamedTuple):
    """The first call's beginning and the last one's end by the system's monotonic clock, and CPU seconds."""

    began: float
    ended: float
    processor_seconds: float


class ClockedContender(CpuContender):
    """A contender that starts at a time which other processes know."""

    def several(self, calls: int, at: float) -> Run:
        """Compute `calls` passes, the first one at the time `at` of the monotonic clock."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            time.sleep(max(0.0, at - time.monotonic()))
            began, used = time.monotonic(), time.process_time()
            for _ in range(calls):
                self.peer.run()
            return Run(began, time.monotonic(), time.process_time() - used)
        finally:
            if enabled:
                gc.enable()


class Several:
    """Processes of one contender, called as if they were one: each loads and opens, one after the other."""

    def __init__(self, members: Sequence[Contender]) -> None:
        self.members: list[Contender] = list(members)

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method in the processes. Raises `ContenderFailed`."""
        if method == "time":
            return self.time()
        if method == "save":  # all have the same values
            return self.members[-1].call(method, **arguments)
        answers = [member.call(method, **arguments) for member in self.members]
        if method == "open":
            self.begin(answers)
        if method == "peak_memory":
            return None if None in answers else sum(answers)
        return answers[-1]

    def begin(self, details: Sequence[dict[str, Any]]) -> None:
        """Begin a workload."""
        raise NotImplementedError

    def time(self) -> Timing:
        """Time one round."""
        raise NotImplementedError

    def measured(self, rounds: int) -> dict[str, Any]:
        """Return the details of the last rounds."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the processes without waiting for their calls."""
        for member in self.members:
            if isinstance(member, Isolated):
                member.process.kill()

    def close(self) -> None:
        """End the processes."""
        for member in self.members:
            member.close()


class Pair(Several):
    """Two processes: a round is all calls by one of them, then half of the calls by each at the same time."""

    def begin(self, details: Sequence[dict[str, Any]]) -> None:
        calls = max(each["calls_per_round"] for each in details)
        self.calls: Any | int = min(
            contender.MOST_CALLS, max(LEAST_CALLS, PASSES_PER_ROUND * calls if calls > 1 else 1)
        )
        self.alone: list[float] = []
        self.together: list[float] = []

    def time(self) -> Timing:
        """Time one round; return the time per call of both at the same time."""
        alone = self._run([self.members[len(self.alone) % 2]], 2 * self.calls)
        both = self.compute()
        self.alone.append(alone.seconds)
        self.together.append(both.seconds)
        return both

    def compute(self) -> Timing:
        """Compute the calls of one round by both at the same time."""
        return self._run(self.members, self.calls)

    def _run(self, members: Sequence[Contender], calls: int) -> Timing:
        """Return the time per call until all members have done `calls` each."""
        at = time.monotonic() + START_SECONDS
        with ThreadPoolExecutor(len(members)) as pool:
            runs = [Run(*run) for run in pool.map(lambda member: member.call("several", calls=calls, at=at), members)]
        seconds = max(run.ended for run in runs) - min(run.began for run in runs)
        count = calls * len(members)
        return Timing(seconds / count, sum(run.processor_seconds for run in runs) / count)

    def measured(self, rounds: int) -> dict[str, Any]:
        """Return the time of both at the same time relative to one after the other: of the medians, and the 20th and
        80th percentile over the rounds."""
        alone, together = self.alone[-rounds:], self.together[-rounds:]
        relative = statistics.median(together) / statistics.median(alone)
        low, high = spread([b / a for a, b in zip(alone, together, strict=True)])
        return {
            "relative_time": rounded(relative),
            "relative_time_p20": low,
            "relative_time_p80": high,
            "alone_ms": rounded(statistics.median(alone) * 1e3),
            "calls": self.calls,
            "processes": len(self.members),
        }


class ThreadCounts(Several):
    """A process per number of threads, the last with all: a round is one of each."""

    def __init__(self, members: Sequence[Contender], counts: Sequence[int]) -> None:
        super().__init__(members)
        self.counts: list[int] = list(counts)

    def begin(self, details: Sequence[dict[str, Any]]) -> None:
        self.seconds: dict[int, list[float]] = {count: [] for count in self.counts}

    def time(self) -> Timing:
        """Time one round; return the time with all threads."""
        for count, member in zip(self.counts, self.members, strict=True):
            timing = Timing(*member.call("time"))
            self.seconds[count].append(timing.seconds)
        return timing

    def measured(self, rounds: int) -> dict[str, Any]:
        """Return the times by number of threads, of every round and their medians, and the speed with all threads
        relative to linear scaling."""
        kept = {count: values[-rounds:] for count, values in self.seconds.items()}
        medians = {count: statistics.median(values) for count, values in kept.items()}
        most = self.counts[-1]
        speed_up = medians[self.counts[0]] / medians[most]
        return {
            "scaling": rounded(speed_up / most),
            "speed_up": rounded(speed_up),
            "ms_by_threads": {str(count): rounded(value * 1e3) for count, value in medians.items()},
            "rounds_ms_by_threads": {str(count): [rounded(v * 1e3) for v in values] for count, values in kept.items()},
        }


class SeveralLineup(Lineup):
    """The contenders that take part, each of several processes."""

    class_path = CLASS_PATH
    rounds: int = 0

    def thread_counts(self) -> list[int]:
        """Return the number of threads of each process of a contender."""
        raise NotImplementedError

    def join(self, members: Sequence[Contender]) -> Several:
        """Return the processes of a contender as one."""
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            for member in self.members.values():
                if isinstance(member, Several):
                    member.kill()
        super().__exit__(kind, *rest)

    def measure(self, workload: Workload, rounds: int) -> Result:
        """Compare, then time, every contender that can run here."""
        self.rounds = rounds
        return super().measure(workload, rounds)

    def prepare(self, workload: Workload) -> Several:
        """Return the first contender with a workload opened. Raises `ContenderFailed`."""
        path, name = self.folder / "workload.npz", self.names[0]
        workload.save(path)
        member = self.members[name] if self._open(name, path, workload.name) is not None else None
        if not isinstance(member, Several):
            raise ContenderFailed(self.failures.get((workload.name, name)) or self.reasons[name])
        return member

    def measured(self, name: str) -> dict[str, Any]:
        """Return the details of a contender's processes."""
        member = self.members.get(name)
        return member.measured(self.rounds) if isinstance(member, Several) else {}

    def _start(self, name: str, *, exporting: bool = False) -> None:
        if exporting or name not in self.names:
            return super()._start(name, exporting=exporting)
        python = self.pythons[name].path if name in self.pythons else None
        members: list[Contender] = []
        with interrupts_held():  # until the processes are registered
            self.members[name] = joined = self.join(members)
            for index, threads in enumerate(self.thread_counts()):
                scratch = self.folder / f"{name.replace(' ', '-').replace(',', '')}-{index}"
                scratch.mkdir(exist_ok=True)
                arguments = {
                    "kind": self.kind,
                    "name": name,
                    "folder": str(self.model),
                    "threads": threads,
                    "scratch": str(scratch),
                }
                member = Isolated(self.class_path, arguments, environment(threads, scratch), python)
                joined.members.append(member)
        return None


class PairLineup(SeveralLineup):
    """Two processes per contender, each with all threads."""

    def thread_counts(self) -> list[int]:
        return [self.threads] * 2

    def join(self, members: Sequence[Contender]) -> Several:
        return Pair(members)


class ThreadLineup(SeveralLineup):
    """A process per contender and number of threads: powers of two, and all."""

    def thread_counts(self) -> list[int]:
        return counts_to(self.threads)

    def join(self, members: Sequence[Contender]) -> Several:
        return ThreadCounts(members, self.thread_counts())


def counts_to(threads: int) -> list[int]:
    """Return the powers of two below a number of threads, and that number."""
    return [*(1 << power for power in range(math.ceil(math.log2(threads)))), threads]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the 20th and the 80th percentile, rounded."""
    fifths = statistics.quantiles(values, n=5, method="inclusive") if len(values) > 1 else list(values) * 4
    return rounded(fifths[0]), rounded(fifths[-1])


def rounded(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}")
