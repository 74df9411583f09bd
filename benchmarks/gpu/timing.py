"""Time contenders on a device: tried once, warmed up, timed in turns over rotating inputs, and converted to rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fastbert.benchmarks.gpu.device import Device, Sample
from fastbert.benchmarks.gpu.worker import announce, finished
from fastbert.benchmarks.harness import measure

Calls = Sequence[Callable[[], Any]]
SAMPLE_SECONDS = 2e-3  # calls are repeated to make a sample about as long, up to MOST_CALLS
MOST_CALLS = 32
FEWEST_ROUNDS, MOST_ROUNDS = 5, 60
# Exceptions of a contender that does not support a case, or does not fit into memory.
REFUSALS = (RuntimeError, ValueError, TypeError, NotImplementedError, ImportError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row of the harness, with rates at the median and the time the host needed to queue a call."""

    row: measure.Row
    tflops: float | None = None
    gigabytes_per_second: float | None = None
    host_us: float
    host_bound: bool
    """True if the device waited for Python: the time is then the host's."""

    def as_json(self) -> dict[str, Any]:
        """Return a flat object with the row's own names."""
        values = {name: value for name, value in vars(self).items() if name != "row"}
        return {**asdict(self.row), **values}


@dataclass
class Case:
    """The result of one case: rows, and contenders that were not measured, with reasons."""

    rows: list[Measured] = field(default_factory=list)
    unmeasured: list[dict[str, str]] = field(default_factory=list)

    def add(self, rows: Sequence[Measured]) -> None:
        """Add rows, and report them at once: what comes later may crash the process."""
        self.rows += rows
        finished([row.as_json() for row in rows])

    def leave_out(self, workload: str, contender: str, reason: str) -> None:
        """Record that a contender was not measured."""
        self.unmeasured.append({"workload": workload, "contender": contender, "reason": reason[:400]})

    def as_json(self) -> dict[str, Any]:
        return {"rows": [row.as_json() for row in self.rows], "unmeasured": self.unmeasured}


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one call, for rates: real tokens, floating-point operations, bytes read and written."""

    tokens: int | None = None
    operations: float | None = None
    moved_bytes: float | None = None


def input_sets(device: Device, set_bytes: int) -> int:
    """Return how many sets of inputs ensure that none is still in the cache when its turn comes again."""
    return max(1, min(8, -(-3 * device.l2_bytes // max(set_bytes, 1))))


class _Stopwatch:
    """Times one contender: enough calls to make a sample, over its sets of inputs in rotation."""

    def __init__(self, device: Device, calls: Calls, queued: bool) -> None:
        self.device, self.samples = device, list[Sample]()
        if device.dry_run:  # its times mean nothing, and interpreted kernels are slow
            self.calls, self.asleep = list(calls), 0.0
            return
        device.sample(calls)  # compiles, allocates, loads
        first = device.sample(calls)
        count = max(len(calls), min(MOST_CALLS, int(SAMPLE_SECONDS / max(first.seconds, 1e-7)) + 1))
        self.calls = [calls[i % len(calls)] for i in range(count)] if queued else list(calls)
        self.asleep = (1.5 * first.host_seconds * len(self.calls) + 2e-4) if queued else 0.0

    def __call__(self) -> measure.Timing:
        sample = self.device.sample(self.calls, self.asleep)
        if sample.host_bound:
            self.asleep *= 2
        self.samples.append(sample)
        return measure.Timing(sample.seconds, sample.seconds)


def contest(
    device: Device,
    workload: str,
    contenders: Mapping[str, Calls],
    work: Work,
    *,
    seconds: float,
    dtype: str = "bf16",
    queued: bool = True,
    differences: Mapping[str, float] | None = None,
    outputs: Mapping[str, str] | None = None,
    details: Mapping[str, Any] | None = None,
) -> list[Measured]:
    """Time contenders in turns for about `seconds`; the calls of a contender rotate over sets of inputs.

    `queued`: calls never wait for the device, so they can be queued while it sleeps; whole training steps do wait.
    """
    watches = {}
    for name, calls in contenders.items():
        announce(name)
        watches[name] = _Stopwatch(device, calls, queued)
    rounds = 1
    if not device.dry_run:
        round_seconds = sum(watch().seconds * len(watch.calls) + watch.asleep for watch in watches.values())
        rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(seconds / max(round_seconds, 1e-9))))
        measure.warm(watches, patience=2 * seconds)
    for watch in watches.values():
        watch.samples.clear()
    timings = measure.interleave(watches, rounds, warming=False)
    rows = measure.make_rows(
        workload, timings, dtype=dtype, threads=1, tokens=work.tokens, differences=differences, outputs=outputs
    )
    measured = []
    for row in rows:
        watch, median = watches[row.contender], row.median_ms / 1e3
        host = sorted(sample.host_seconds for sample in watch.samples)[len(watch.samples) // 2]
        delayed = sum(sample.host_bound for sample in watch.samples)
        measured.append(
            Measured(
                row=replace(row, details={**row.details, "calls": len(watch.calls), **(details or {})}),
                tflops=None if work.operations is None else float(f"{work.operations / median / 1e12:.4g}"),
                gigabytes_per_second=None
                if work.moved_bytes is None
                else float(f"{work.moved_bytes / median / 1e9:.5g}"),
                host_us=round(host * 1e6, 1),
                host_bound=queued and delayed > len(watch.samples) // 2,
            )
        )
    return measured


def willing(
    device: Device,
    case: Case,
    workload: str,
    candidates: Mapping[str, Callable[[], Calls]],
    without: Sequence[str] = (),
) -> dict[str, Calls]:
    """Return the calls of the candidates that support the case: each is constructed and called once. Refusals are
    recorded, and so are candidates in `without`, which crashed the process before."""
    runnable: dict[str, Calls] = {}
    for name, make in candidates.items():
        if name in without:
            case.leave_out(workload, name, "made the measuring process fail")
            continue
        announce(name)
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            calls = _tried(device, case, workload, name, make, messages)
        if calls is None:
            device.free()  # here, where no traceback references tensors
        else:
            runnable[name] = calls
    return runnable


def _tried(
    device: Device,
    case: Case,
    workload: str,
    name: str,
    make: Callable[[], Calls],
    messages: Sequence[warnings.WarningMessage],
) -> Calls | None:
    try:
        calls = make()
        calls[0]()
        device.synchronize()
    except REFUSALS as error:
        # torch warns with the reasons why an implementation is not used, then raises a bare error.
        reasons = [
            line for line in (str(message.message).splitlines()[0] for message in messages) if "because:" not in line
        ]
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        case.leave_out(workload, name, "; ".join([first, *dict.fromkeys(reasons)]))
        return None
    return calls


def each(function: Callable[..., Any], sets: Sequence[Any]) -> Calls:
    """Return the function's calls on each set of inputs."""
    return [partial(function, inputs) for inputs in sets]


def without_gradient(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Call the function without recording for a backward pass."""
    with torch.no_grad():
        return function(inputs)
