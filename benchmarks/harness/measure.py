"""Measure contenders: outputs are compared first, contenders take turns, timings become rows.

In the order in which a benchmark uses them: `compare_rows`, `timed` and `interleave`, `make_rows`.
`fastbert.benchmarks.harness.report` prints and draws the rows, `fastbert.benchmarks.harness.records` writes them.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

FASTBERT = "fastbert"
# Values of `Row.outputs` for correct results, and for those that were not to be compared.
AGREEING = ("equal", "close", "not compared")
STEADY_SECONDS = 0.25  # a longer call needs only one round of warm-up
SLOW_SECONDS = 4.0  # a slower call is measured fewer times
SLOW_ROUNDS = 3
THREADS_TOLERANCE = 0.15  # relative to the requested threads: tolerated excess, or shortfall of one thread


class ContenderFailed(Exception):
    """A contender's call failed; the message gives the reason."""


class Timing(NamedTuple):
    """Wall-clock seconds of one call, and the CPU seconds of all threads of the process."""

    seconds: float
    processor_seconds: float


class Comparison(NamedTuple):
    """The difference of two outputs: the number of differing texts of all, the first differing index, and the largest
    absolute difference."""

    differing: int
    total: int
    first: int | None
    max_abs_difference: float

    def __str__(self) -> str:
        if not self.differing:
            return "equal"
        return f"ids differ in {self.differing:,} of {self.total:,} texts"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender on one workload: milliseconds per call, and rates per second at the median."""

    workload: str
    contender: str
    median_ms: float
    p20: float
    p80: float
    tokens_per_second: float | None
    megabytes_per_second: float | None = None
    ratio_to_fastbert: float | None
    max_abs_difference: float
    outputs: str = "equal"
    dtype: str
    threads: int
    threads_used: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Return whether its outputs agree with the reference, as far as they were compared."""
        return self.outputs in AGREEING


# Comparing


def compare_rows(
    expected: tuple[np.ndarray, np.ndarray], actual: tuple[np.ndarray, np.ndarray], *, filler: int = -1
) -> Comparison:
    """Compare ragged rows, given flat with one more offset than there are rows; for the difference in value a shorter
    row is padded with `filler`."""
    ids, offsets = np.asarray(expected[0], np.int64), np.asarray(expected[1], np.int64)
    actual_ids, actual_offsets = np.asarray(actual[0], np.int64), np.asarray(actual[1], np.int64)
    total = len(offsets) - 1
    if len(actual_offsets) != len(offsets):
        return Comparison(total, total, 0, float("inf"))
    if np.array_equal(offsets, actual_offsets) and np.array_equal(ids, actual_ids):
        return Comparison(0, total, None, 0.0)
    differing, first, worst = 0, None, 0
    for index in range(total):
        expected_row = ids[offsets[index] : offsets[index + 1]]
        actual_row = actual_ids[actual_offsets[index] : actual_offsets[index + 1]]
        if np.array_equal(expected_row, actual_row):
            continue
        width = max(len(expected_row), len(actual_row))
        padded = [np.pad(row, (0, width - len(row)), constant_values=filler) for row in (expected_row, actual_row)]
        worst = max(worst, int(np.abs(padded[0] - padded[1]).max()))
        differing += 1
        first = index if first is None else first
    return Comparison(differing, total, first, float(worst))


# Timing


def clock(function: Callable[[], Any]) -> Timing:
    """Time one call of a function, including the device's work, with the garbage collector paused."""
    synchronize = _synchronizer()
    enabled = gc.isenabled()
    gc.disable()
    try:
        synchronize()
        used, started = time.process_time(), time.perf_counter()
        function()
        synchronize()
        return Timing(time.perf_counter() - started, time.process_time() - used)
    finally:
        if enabled:
            gc.enable()


def timed(function: Callable[[], Any]) -> Callable[[], Timing]:
    """Return a function that calls `function` and returns its timing."""
    return lambda: clock(function)


def warm(
    contenders: Mapping[str, Callable[[], Timing]], *, agreement: float = 0.05, most: int = 10, patience: float = 10.0
) -> None:
    """Call every contender until two rounds in a row agree within `agreement`: at most `most` rounds, none of which
    starts after `patience` seconds. A contender slower than a quarter of a second is warm after the first."""
    began = time.perf_counter()
    before: dict[str, float] = {}
    waiting = dict(contenders)
    for _ in range(most):
        now = {name: measure().seconds for name, measure in waiting.items()}
        unsteady = [name for name, seconds in now.items() if abs(seconds - before.get(name, 0.0)) > agreement * seconds]
        waiting = {name: measure for name, measure in waiting.items() if now[name] <= STEADY_SECONDS}
        if not waiting or not set(unsteady) & set(waiting) or time.perf_counter() - began > patience:
            return
        before = now


def interleave(
    contenders: Mapping[str, Callable[[], Timing]],
    rounds: int,
    *,
    warming: bool = True,
    failed: Callable[[str, ContenderFailed], None] | None = None,
) -> dict[str, list[Timing]]:
    """Return `rounds` timings per contender, taken in turns A B A B, after warming up.

    A contender slower than four seconds per call is measured only three times. One that raises `ContenderFailed` is
    passed to `failed` and left out; without `failed` the exception propagates.
    """
    timings: dict[str, list[Timing]] = {name: [] for name in contenders}

    def guarded(name: str) -> Timing:
        if name not in timings:
            return Timing(0.0, 0.0)
        try:
            return contenders[name]()
        except ContenderFailed as error:
            if failed is None:
                raise
            failed(name, error)
            del timings[name]
            return Timing(0.0, 0.0)

    if warming:
        warm({name: partial(guarded, name) for name in contenders})
    for index in range(rounds):
        for name in list(timings):
            if index >= SLOW_ROUNDS and timings[name][0].seconds > SLOW_SECONDS:
                continue
            timing = guarded(name)
            if name in timings:
                timings[name].append(timing)
    return timings


def _synchronizer() -> Callable[[], None]:
    # Benchmarks of a device have imported torch; others need no sync.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        wait: Callable[[], None] = torch.cuda.synchronize
        return wait
    return lambda: None


# Rows


def make_rows(
    workload: str,
    timings: Mapping[str, Sequence[Timing]],
    *,
    dtype: str | Mapping[str, str],
    threads: int,
    tokens: int | None = None,
    text_bytes: int | None = None,
    differences: Mapping[str, float] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> list[Row]:
    """Return the rows of one workload; ratios are times relative to fastbert's, above 1 where fastbert is faster."""
    own_seconds = _median(timings[FASTBERT]) if FASTBERT in timings else None
    table = []
    for name, values in timings.items():
        seconds = [value.seconds for value in values]
        # Inclusive: with few rounds the other method exceeds the fastest and the slowest.
        fifths = statistics.quantiles(seconds, n=5, method="inclusive") if len(seconds) > 1 else seconds * 4
        median = _median(values)
        used = statistics.median(value.processor_seconds / max(value.seconds, 1e-9) for value in values)
        row = Row(
            workload=workload,
            contender=name,
            median_ms=_rounded(median * 1e3),
            p20=_rounded(fifths[0] * 1e3),
            p80=_rounded(fifths[-1] * 1e3),
            tokens_per_second=_rounded(tokens / median) if tokens is not None else None,
            megabytes_per_second=_rounded(text_bytes / 1e6 / median) if text_bytes is not None else None,
            ratio_to_fastbert=_rounded(median / own_seconds) if own_seconds else None,
            max_abs_difference=(differences or {}).get(name, 0.0),
            outputs=(outputs or {}).get(name, "equal"),
            dtype=dtype if isinstance(dtype, str) else dtype[name],
            threads=threads,
            threads_used=round(used, 2),
            details={"rounds": len(seconds)},
        )
        table.append(_with_doubts(row))
    return table


def _with_doubts(row: Row) -> Row:
    """Return the row, with a note if it used a different number of threads."""
    used = row.threads_used
    if used is None or row.median_ms < 1:  # the CPU clock is too coarse for less
        return row
    if used > row.threads * (1 + THREADS_TOLERANCE):
        note = f"asked for {row.threads} thread{'s' * (row.threads > 1)}, used {used:g}"
    elif used < 1 - THREADS_TOLERANCE:
        note = f"had only {used:g} of a processor"
    else:
        return row
    return replace(row, details={**row.details, "note": note})


def _median(values: Sequence[Timing]) -> float:
    return statistics.median(value.seconds for value in values)


def _rounded(value: float) -> float:
    """Round to five significant digits, which preserves both microseconds and gigabytes."""
    return float(f"{value:.5g}")
