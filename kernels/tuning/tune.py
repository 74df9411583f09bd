"""Measure candidates for each kernel and shape class on this GPU and save the fastest: `fastbert doctor --tune`.

The candidates, and what is timed to compare them, are in `tuning_cases.py` of the packages of kernels:

- `candidates(target, widths) -> [(kernel, shape_class, width, [Config, ...]), ...]`, the most important first;
- `milliseconds(kernel, shape_class, width, device, tokens, time) -> float`, the pass that the kernel is part of.

Trials run in child processes, and the table is saved after each, so that neither a candidate that crashes the GPU's
context nor an interruption costs what was measured before.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from fastbert import tuning_tables
from fastbert.errors import UserError
from fastbert.kernels.launch import Launch, architecture, recording
from fastbert.kernels.tuning import resources, sass, tables
from fastbert.kernels.tuning.discovery import operation_modules
from fastbert.kernels.tuning.processes import OUT_OF_TIME, Failure, run_jobs
from fastbert.kernels.tuning.tables import Config, Table

TOKENS = 32768
COMPILED_TOKENS = 512
REPEATS = 20
# The device idles while the host queues a call: a short kernel would otherwise be timed by its launch.
ASLEEP_CYCLES = 400_000
# A candidate must be this much faster than the present configuration: less is noise, and the present one is the better
# tested.
MARGIN = 0.02
# A candidate that spills more bytes per thread is not timed. On an H100 some with as few outside of their loop won.
NEGLIGIBLE_SPILLS = 16
MOST_PROCESSES = 16
COMPILE_SECONDS, MEASURE_SECONDS = 240.0, 90.0  # for one trial, a cold start of its process included
COMPILE_SHARE = 0.5  # of the time until the deadline
REFUSALS: tuple[type[Exception], ...] = (OutOfResources, PTXASError, CompilationError)


@dataclass(frozen=True)
class Trial:
    """One configuration of one kernel for one shape class; `present` marks the one in use."""

    kernel: str
    shape: str
    width: int
    config: Config
    present: bool = False


@dataclass(frozen=True)
class Job:
    """A trial with all that a child process must know: GPU, device, and the table that holds for everything else, which
    all jobs share and the winners before it are in."""

    number: int
    trial: Trial
    target: str
    device: str
    table: Table


@dataclass(frozen=True)
class Measured:
    """A trial and the milliseconds of its pass; None if it was not timed, for the reason in `error`."""

    trial: Trial
    milliseconds: float | None
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the measurement as JSON values."""
        return {
            "kernel": self.trial.kernel,
            "shape": self.trial.shape,
            "config": self.trial.config.as_json(),
            "present": self.trial.present,
            "ms": self.milliseconds,
            "problem": self.error,
        }


Runner = Callable[..., Iterator[tuple[Job, Any]]]


def trials(target: str, widths: tuple[int, ...] | None = None) -> list[Trial]:
    """Return the trials on a GPU: for each kernel and shape class the present configuration, then the others.

    `widths` restricts the head dimensions that attention is tuned for.
    """
    selected = []
    for module in operation_modules("tuning_cases"):
        for kernel, shape, width, candidates in module.candidates(target, widths):
            present = tables.lookup(kernel, shape, target)
            selected.append(Trial(kernel, shape, width, present, present=True))
            selected += [Trial(kernel, shape, width, config) for config in candidates if config != present]
    return selected


def _tuning_cases(trial: Trial, target: str) -> Any:
    """Return the module that tunes a trial's kernel."""
    modules = operation_modules("tuning_cases")
    return next(
        module for module in modules if trial.kernel in {kernel for kernel, *_ in module.candidates(target, None)}
    )


def _pass(job: Job, device: torch.device, tokens: int, timer: Callable[[Callable[[], object]], float]) -> float:
    """Run the pass of a trial on `tokens` tokens, with its configuration in place of the present one."""
    trial = job.trial
    module = _tuning_cases(trial, job.target)
    with tables.pinned({job.target: job.table}), tables.overridden(trial.kernel, trial.shape, trial.config):
        return float(module.milliseconds(trial.kernel, trial.shape, trial.width, device, tokens, timer))


def _median(function: Callable[[], object]) -> float:
    """Return the median milliseconds of repeated runs between two events, after a warm-up."""
    for _ in range(3):
        function()
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(ASLEEP_CYCLES)
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def once(function: Callable[[], object]) -> float:
    """Call a function; return 0."""
    function()
    return 0.0


# In child processes


def recorded(job: Job) -> list[Launch]:
    """Return the launches of a trial's own configuration, none where it prefers the library; needs no GPU."""
    with recording(job.target) as launches:
        _pass(job, torch.device("cpu"), COMPILED_TOKENS, once)
    return [each for each in launches if _is_of(job.trial, each)]


def _is_of(trial: Trial, launch: Launch) -> bool:
    """Return whether a launch has a trial's configuration: other kernels and shape classes of its pass may have an
    equal one, and a launcher may use a part of it."""
    if launch.config is trial.config:
        return True
    constants = launch.config.constants.items() <= trial.config.constants.items()
    return launch.kernel.__name__ == trial.kernel and constants and launch.config.options == trial.config.options


def spilled_bytes(job: Job) -> int:
    """Compile a trial's kernels for the GPU; return the bytes that one spills per thread, the most of all."""
    return max((_spills(launch, job.target) for launch in recorded(job)), default=0)


def _spills(launch: Launch, target: str) -> int:
    if target.startswith("gfx"):
        return resources.compile_launch(launch, "", target).spills if target in resources.TARGETS else 0
    compiled = triton.compile(
        resources.source(launch, target), target=resources.gpu_target(target), options=dict(launch.config.options)
    )
    return int(sass.usage(compiled.asm["cubin"])[1])


def compile_trial(job: Job) -> str:
    """Compile a trial, and run it once on few tokens, which leaves its kernels in Triton's cache on disk.

    Return why it need not be timed: it spills many registers, or does not compile; "" if it is to be timed.
    """
    try:
        spills = spilled_bytes(job)
        if spills > NEGLIGIBLE_SPILLS and not job.trial.present:
            return f"spills {spills} bytes of registers per thread"
        if torch.device(job.device).type == "cuda":
            _pass(job, torch.device(job.device), COMPILED_TOKENS, once)
            torch.cuda.synchronize(job.device)
    except REFUSALS as error:
        return str(error).splitlines()[0]
    return ""


def measure(job: Job) -> Measured:
    """Time the pass that a trial's kernel is part of."""
    try:
        return Measured(job.trial, _pass(job, torch.device(job.device), TOKENS, _median))
    except REFUSALS as error:
        return Measured(job.trial, None, str(error).splitlines()[0])


def time_launches(job: Job) -> Measured:
    """Time how long the host takes to launch a trial's pass, where there is no GPU to run it: a rehearsal."""
    began = time.perf_counter()
    recorded(job)
    return Measured(job.trial, (time.perf_counter() - began) * 1e3)


# In the parent


def fastest(measured: Iterable[Measured]) -> Table:
    """Return the winners that beat the present configuration by more than noise, by kernel and shape class.

    Classes whose present configuration has not been tried yet have no winner.
    """
    groups: dict[tuple[str, str], list[Measured]] = {}
    for result in measured:
        groups.setdefault((result.trial.kernel, result.trial.shape), []).append(result)
    winners: Table = {}
    for (kernel, shape), group in groups.items():
        present = next((result for result in group if result.trial.present), None)
        timed = [(result.milliseconds, result) for result in group if result.milliseconds is not None]
        if present is None or not timed:
            continue
        milliseconds, best = min(timed, key=lambda pair: pair[0])
        if present.milliseconds is None or milliseconds < present.milliseconds * (1 - MARGIN):
            winners.setdefault(kernel, {})[shape] = best.trial.config
    return winners


def run(
    device: torch.device,
    report: Callable[[int, int, str], None] = lambda done, total, text: None,
    *,
    widths: tuple[int, ...] | None = None,
) -> tuple[Path, list[Measured]]:
    """Measure all trials, save the table for this GPU, and return its path and the measurements.

    `report(done, total, text)` is called when a trial has been compiled, and again when it has been measured. Entries
    of an earlier table that were not beaten stay. `widths` restricts the head dimensions. Raises UserError without a
    GPU.
    """
    if device.type != "cuda":
        raise UserError(f"cannot tune kernels on {device}: it needs a GPU")
    return tune_for(architecture(device), str(device), report, widths=widths)


def tune_for(
    target: str,
    device: str,
    report: Callable[[int, int, str], None] = lambda done, total, text: None,
    *,
    widths: tuple[int, ...] | None = None,
    seconds: float = float("inf"),
    measured: Callable[[Measured], None] = lambda result: None,
    select: Callable[[list[Trial]], list[Trial]] = lambda pending: pending,
    log: Path | None = None,
    timer: Callable[[Job], Measured] = measure,
    runner: Runner = run_jobs,
) -> tuple[Path, list[Measured]]:
    """Measure and save as `run`, for a GPU of the given architecture, within `seconds`.

    What trials print is appended to `log`. `measured` is called after each trial, when the table on disk holds its
    result; `select` chooses among the trials. Of a run that is stopped the table keeps what was measured so far.
    """
    path = tables.saved_path()
    tuning_tables.require_writable(path)
    table, began = tables.effective(target), time.monotonic()
    pending = select(trials(target, widths))
    jobs = [Job(number, trial, target, device, table) for number, trial in enumerate(pending)]
    results: list[Measured] = []

    def keep(result: Measured) -> None:
        results.append(result)
        winners = fastest(results)
        tables.save(path, {target: winners})
        for kernel, entries in winners.items():  # trials of other kernels, which start later, run with them
            table[kernel] |= entries
        measured(result)
        report(len(jobs) + len(results), 2 * len(jobs), f"{result.trial.kernel} {result.trial.shape}")

    processes = max(1, min(os.cpu_count() or 1, MOST_PROCESSES, len(jobs)))
    compiled = runner(
        compile_trial,
        jobs,
        processes=processes,
        seconds=COMPILE_SECONDS,
        deadline=began + COMPILE_SHARE * seconds,
        log=log,
    )
    dropped: dict[int, str] = {}
    for done, (job, outcome) in enumerate(compiled, 1):
        # A trial whose process died is not tried again; one without a turn may still be compiled when it is timed.
        reason = outcome if isinstance(outcome, str) else outcome.reason
        if reason and reason != OUT_OF_TIME:
            dropped[job.number] = reason
        report(done, 2 * len(jobs), "compiling")
    for job in jobs:
        if job.number in dropped:
            keep(Measured(job.trial, None, dropped[job.number]))
    timed = [job for job in jobs if job.number not in dropped]
    for job, outcome in runner(timer, timed, processes=1, seconds=MEASURE_SECONDS, deadline=began + seconds, log=log):
        keep(Measured(job.trial, None, outcome.reason) if isinstance(outcome, Failure) else outcome)
    report(2 * len(jobs), 2 * len(jobs), "done")
    return path, results
