"""Measuring: outputs are compared first, contenders take turns, and every result says where it was measured.

The parts, in the order in which a benchmark uses them: `compare_rows`, `timed` and `interleave`, `make_rows`, `write`.
`fastbert.benchmarks.harness.report` prints and draws the rows.
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

OWN = "fastbert"
# What `Row.outputs` says of a contender whose results are right, or were not to be compared.
AGREEING = ("equal", "close", "not compared")
STEADY_SECONDS = 0.25  # a call that takes longer needs one round of warming and no more
SLOW_SECONDS = 4.0  # one that takes longer is measured fewer times
SLOW_ROUNDS = 3
THREADS_TOLERANCE = 0.15  # of the threads asked for: what a measurement may use more, or one thread less


class ContenderFailed(Exception):
    """A contender could not do what it was asked; the message says what happened."""


class Timing(NamedTuple):
    """Wall-clock seconds of one call, and the processor seconds that all threads of the process spent in it."""

    seconds: float
    processor_seconds: float


class Comparison(NamedTuple):
    """How two outputs differ: in so many texts of all, first in number `first`; and the largest absolute difference."""

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
    """One contender on one workload: milliseconds a call, and what that makes a second at the median."""

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
        """Whether nothing speaks against its outputs."""
        return self.outputs in AGREEING


# Comparing


def compare_rows(
    expected: tuple[np.ndarray, np.ndarray], found: tuple[np.ndarray, np.ndarray], *, filler: int = -1
) -> Comparison:
    """Compare ragged rows, given flat with one more offset than there are rows; for the difference in value a shorter
    row counts as filled up with `filler`."""
    ids, offsets = np.asarray(expected[0], np.int64), np.asarray(expected[1], np.int64)
    others, other_offsets = np.asarray(found[0], np.int64), np.asarray(found[1], np.int64)
    total = len(offsets) - 1
    if len(other_offsets) != len(offsets):
        return Comparison(total, total, 0, float("inf"))
    if np.array_equal(offsets, other_offsets) and np.array_equal(ids, others):
        return Comparison(0, total, None, 0.0)
    differing, first, worst = 0, None, 0
    for index in range(total):
        one = ids[offsets[index] : offsets[index + 1]]
        two = others[other_offsets[index] : other_offsets[index + 1]]
        if np.array_equal(one, two):
            continue
        width = max(len(one), len(two))
        padded = [np.pad(row, (0, width - len(row)), constant_values=filler) for row in (one, two)]
        worst = max(worst, int(np.abs(padded[0] - padded[1]).max()))
        differing += 1
        first = index if first is None else first
    return Comparison(differing, total, first, float(worst))


# Timing


def clock(function: Callable[[], Any]) -> Timing:
    """One call of a function, the device's work included, without pauses of the garbage collector."""
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
    """The function, made to return how long it took."""
    return lambda: clock(function)


def warm(
    contenders: Mapping[str, Callable[[], Timing]], *, agreement: float = 0.05, most: int = 10, patience: float = 10.0
) -> None:
    """Call every contender until two rounds in a row take the same time within `agreement`: at most `most` rounds, and
    none begins after `patience` seconds. One that takes more than a quarter of a second is warm after the first."""
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
    """`rounds` timings of each contender, A B A B, after warming.

    A contender that takes more than four seconds a call is measured three times only. One that raises
    `ContenderFailed` is reported to `failed` and left out; without `failed` the exception goes on.
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
    # Whoever measures a device has imported torch; others need not wait for it.
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
    """The rows of one workload; ratios are of the time to that of fastbert, above 1 where fastbert is faster."""
    own = _median(timings[OWN]) if OWN in timings else None
    table = []
    for name, values in timings.items():
        seconds = [value.seconds for value in values]
        # Inclusive: with few rounds the other method goes beyond the fastest and the slowest.
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
            ratio_to_fastbert=_rounded(median / own) if own else None,
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
    """The row, with a note when it did not use the threads that it says."""
    used = row.threads_used
    if used is None or row.median_ms < 1:  # the processor's clock is too coarse for less
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
    """Five significant digits, so that neither microseconds nor gigabytes are lost."""
    return float(f"{value:.5g}")
