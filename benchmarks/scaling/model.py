"""A model of a forward pass's time over the number of threads, its terms from measurements with one and two threads.

    time(T) = serial + max(work / (T balance(T)), bytes / bandwidth) + regions region(T) + barriers barrier(T)

Work and the serial part are solved from the times with one and with two threads of each round; the balance, the regions
and the barriers follow from how the kernels divide the pass (`fastbert.benchmarks.scaling.partition`), and the costs of
regions and barriers are measured (`fastbert.benchmarks.scaling.regions`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastbert.benchmarks.scaling.lineups import rounded, spread
from fastbert.benchmarks.scaling.partition import Partition
from fastbert.benchmarks.scaling.regions import RegionCost

THREADS = (2, 8, 32)  # those of the prediction, besides the measured ones


@dataclass(frozen=True, kw_only=True)
class Model:
    """The terms of one contender on one workload, in seconds."""

    one: float
    """The time on one thread."""
    serial: float
    """The part that every thread waits for or repeats."""
    bytes_seconds: float
    """The time in which a copy moves the weights' bytes; 0 if it is unknown."""
    cores: int
    divide: Callable[[int], Partition]
    costs: Mapping[int, RegionCost]
    """Measured by number of threads; with more threads than cores they take turns."""

    def cost(self, threads: int) -> RegionCost:
        """Return the costs on as many cores as threads: measured, or those of all cores growing with the threads."""
        if threads <= self.cores:
            return self.costs[threads]
        all_cores = self.costs[self.cores]
        return RegionCost(*(value * threads / self.cores for value in all_cores))

    def seconds(self, threads: int, cost: RegionCost | None = None) -> float:
        """Return the predicted time; `cost` replaces that of `Model.cost`."""
        if threads == 1:
            return self.one
        partition, each = self.divide(threads), cost or self.cost(threads)
        work = (self.one - self.serial) / (threads * partition.balance)
        waiting = partition.regions * each.region + partition.barriers * each.barrier
        return self.serial + max(work, self.bytes_seconds) + waiting

    def scaling(self, threads: int, cost: RegionCost | None = None) -> float:
        """Return the predicted speed relative to linear scaling."""
        return self.one / (threads * self.seconds(threads, cost))


def serial_seconds(one: float, two: float, partition: Partition, cost: RegionCost) -> float:
    """Return the serial part of a pass that takes `one` second on one thread and `two` on two: from 0 to `one`."""
    waiting = partition.regions * cost.region + partition.barriers * cost.barrier
    share = 1.0 / (2.0 * partition.balance)
    if share >= 1.0:
        return one
    return min(max((two - waiting - share * one) / (1.0 - share), 0.0), one)


def describe(
    rounds_ms: Mapping[str, Sequence[float]],
    divide: Callable[[int], Partition],
    costs: Mapping[int, RegionCost],
    *,
    cores: int,
    bytes_seconds: float,
    threads: Sequence[int] = THREADS,
) -> dict[str, Any]:
    """Return the model as details of a row, for the milliseconds of every round by number of threads, 1 and 2 among
    them: its terms, and per number of threads the balance, the costs and the prediction."""
    cached = cache(divide)

    ones, twos = ([value / 1e3 for value in rounds_ms[count]] for count in ("1", "2"))
    one = statistics.median(ones)
    serials = [serial_seconds(a, b, cached(2), costs[2]) for a, b in zip(ones, twos, strict=True)]

    def model(serial: float) -> Model:
        return Model(one=one, serial=serial, bytes_seconds=bytes_seconds, cores=cores, divide=cached, costs=costs)

    middle, (low, high) = model(statistics.median(serials)), spread(serials)
    by_threads = {}
    for count in sorted({*threads, *(int(name) for name in rounds_ms if name != "1")}):
        partition, cost, emulated = cached(count), middle.cost(count), count > cores
        terms = {
            "balance": rounded(partition.balance),
            "balance_by_operation": {name: rounded(value) for name, value in partition.operations.items()},
            "regions": partition.regions,
            "barriers": partition.barriers,
            "region_us": rounded(cost.region * 1e6),
            "barrier_us": rounded(cost.barrier * 1e6),
            "predicted_ms": rounded(middle.seconds(count) * 1e3),
            "scaling": rounded(middle.scaling(count)),
            "scaling_range": [rounded(model(serial).scaling(count)) for serial in (high, low)],
            "emulated": emulated,
        }
        if emulated:
            turns = costs[count]
            terms |= {
                "emulated_region_us": rounded(turns.region * 1e6),
                "emulated_barrier_us": rounded(turns.barrier * 1e6),
                "scaling_emulated": rounded(middle.scaling(count, turns)),
            }
        by_threads[str(count)] = terms
    return {
        "serial_ms": rounded(middle.serial * 1e3),
        "serial_ms_range": [rounded(low * 1e3), rounded(high * 1e3)],
        "work_ms": rounded((one - middle.serial) * 1e3),
        "bytes_ms": rounded(bytes_seconds * 1e3),
        "cores": cores,
        "threads": by_threads,
    }
