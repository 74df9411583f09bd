"""Measure the peak rates of this machine in fp32, bf16 and int8 arithmetic and the bandwidth of a copy, on random data.

    python benchmarks/cpu/peak.py --threads 2

The arithmetic is the widest instructions that matmuls use with the current CPU capability, on numbers in registers
(`fastbert._C.cpu_peak`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastbert import _C
from fastbert.benchmarks.harness.measure import Timing, clock

COPY_BYTES = 256 << 20
NATIVE_SECONDS = 0.1
DTYPES = ("fp32", "bf16", "int8")
COPY = "copy"
STEADY = 0.75  # of its best round: a slower round of the peak is not explained by chance
# The dtypes in which a result may be computed: wider arithmetic is exact enough too.
WIDER: dict[str, tuple[str, ...]] = {"fp32": ("fp32",), "bf16": ("bf16", "fp32"), "int8": ("int8", "bf16", "fp32")}


class Peak:
    """Times one unit of each kind of work: a call of the extension's kernel, a copy."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def open(self) -> dict[str, dict[str, Any]]:
        """Prepare, and return per kind the source, and the operations (for the copy: bytes) of a unit."""
        import torch

        torch.set_num_threads(self.threads)
        self.units: dict[str, Callable[[], Timing]] = {}
        units: dict[str, dict[str, Any]] = {}
        for dtype in DTYPES:
            # The kernel returns its rate, so a unit is one operation.
            self.units[dtype] = lambda dtype=dtype: _seconds_an_operation(dtype, self.threads)
            units[dtype] = {"source": "the extension's own kernel", "work": 1.0}
        source = torch.randint(0, 256, (COPY_BYTES,), dtype=torch.uint8)
        target = torch.empty_like(source)
        self.units[COPY] = lambda: clock(lambda: target.copy_(source))
        units[COPY] = {"source": f"torch copy of {COPY_BYTES >> 20} MiB, read and written", "work": 2.0 * COPY_BYTES}
        return units

    def time(self, what: str) -> Timing:
        """Time one unit."""
        return self.units[what]()


def _seconds_an_operation(dtype: str, threads: int) -> Timing:
    seconds = 1.0 / _C.cpu_peak(dtype, threads, NATIVE_SECONDS)
    return Timing(seconds, seconds * threads)


def best(
    units: Mapping[str, Mapping[str, Any]], timings: Mapping[str, Sequence[Timing]]
) -> dict[str, tuple[float, str]]:
    """Return the best rate (work per second) of each kind over all rounds with its source; for a dtype that may be
    computed in a wider one, the better of the two."""
    rates = {
        what: (unit["work"] / min(timing.seconds for timing in timings[what]), str(unit["source"]))
        for what, unit in units.items()
        if timings.get(what)
    }
    best_rates = {what: rate for what, rate in rates.items() if what == COPY}
    for dtype, wider in WIDER.items():
        candidates = [(rates[kind][0], kind) for kind in wider if kind in rates]
        if candidates:
            rate, kind = max(candidates)
            best_rates[dtype] = (rate, f"{kind}: {rates[kind][1]}")
    return best_rates


def movement(units: Mapping[str, Mapping[str, Any]], timings: Mapping[str, Sequence[Timing]]) -> str | None:
    """Return a note if the peak of fp32, or without it the copy, differed by more than a quarter between rounds; None
    if it did not, and where nothing was measured."""
    what = next((what for what in ("fp32", COPY) if timings.get(what)), None)
    if what is None:
        return None
    rates = [units[what]["work"] / timing.seconds / 1e9 for timing in timings[what]]
    slowest, fastest = min(rates), max(rates)
    if slowest >= STEADY * fastest:
        return None
    measured, unit = ("copy", "GB/s") if what == COPY else ("peak of fp32", "GFLOP/s")
    return (
        f"the {measured} moved between rounds from {slowest:,.3g} to {fastest:,.3g} {unit}: the machine was not steady"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    import os

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: all cores")
    parser.add_argument("--rounds", type=int, default=5, help="timings of each (default: 5)")
    options = parser.parse_args(arguments)
    peak = Peak(options.threads)
    units = peak.open()
    rates = best(units, {what: [peak.time(what) for _ in range(options.rounds)] for what in units})
    for what, (rate, source) in rates.items():
        unit = "GB/s" if what == COPY else "GFLOP/s" if what != "int8" else "GOP/s"
        print(f"{what:<5} {rate / 1e9:10,.1f} {unit:<8} {source}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
