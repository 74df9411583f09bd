"""Measure candidates for each kernel and shape class on this GPU and save the fastest: `fastbert doctor --tune`.

The candidates, and what is timed to compare them, are in `tuning_cases.py` of the packages of kernels.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from fastbert import tuning_tables
from fastbert.errors import UserError
from fastbert.kernels.launch import architecture
from fastbert.kernels.tuning import tables
from fastbert.kernels.tuning.discovery import operation_modules
from fastbert.kernels.tuning.tables import Config

TOKENS = 32768
COMPILED_TOKENS = 512
REPEATS = 20
# A candidate must be this much faster than the present configuration: less is noise, and the present one is the better
# tested.
MARGIN = 0.02


@dataclass(frozen=True)
class Trial:
    """One configuration of one kernel for one shape class; the first of a class is the present one."""

    kernel: str
    shape: str
    width: int
    config: Config


@dataclass(frozen=True)
class Measured:
    """A trial and the milliseconds of its pass; None if it does not run on this GPU, for the reason in `error`."""

    trial: Trial
    milliseconds: float | None
    error: str = ""


def trials(target: str, widths: tuple[int, ...] | None = None) -> list[Trial]:
    """Return the trials on a GPU: for each kernel and shape class the present configuration, then the others.

    `widths` restricts the head dimensions that attention is tuned for.
    """
    selected = []
    for module in operation_modules("tuning_cases"):
        for kernel, width, candidates in module.candidates(target, widths):
            shape = tables.shape_class(torch.bfloat16, False, width)
            present = tables.lookup(kernel, shape, target)
            others = [config for config in candidates if config != present]
            selected += [Trial(kernel, shape, width, config) for config in (present, *others)]
    return selected


def _tuning_cases(kernel: str) -> Any:
    """Return the module that tunes `kernel`."""
    modules = operation_modules("tuning_cases")
    return next(module for module in modules if kernel in {name for name, _, _ in module.candidates("")})


def _milliseconds(function: Callable[[], object]) -> float:
    """Return the median time of repeated runs between two events, after a warm-up."""
    for _ in range(3):
        function()
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def _once(function: Callable[[], object]) -> float:
    function()
    return 0.0


def measure(trial: Trial, device: torch.device) -> Measured:
    """Time the pass that a trial's kernel is part of, with the trial's configuration in place of the present one."""
    cases = _tuning_cases(trial.kernel)
    with tables.overridden(trial.kernel, trial.shape, trial.config):
        try:
            return Measured(trial, cases.milliseconds(trial.kernel, trial.width, device, TOKENS, _milliseconds))
        except (OutOfResources, PTXASError, CompilationError) as error:
            return Measured(trial, None, str(error).splitlines()[0])


def compile_trial(trial: Trial, device_name: str) -> None:
    """Run a trial once on few tokens, which leaves the compiled kernels in Triton's cache on disk."""
    device, cases = torch.device(device_name), _tuning_cases(trial.kernel)
    with (
        tables.overridden(trial.kernel, trial.shape, trial.config),
        contextlib.suppress(OutOfResources, PTXASError, CompilationError),
    ):
        cases.milliseconds(trial.kernel, trial.width, device, COMPILED_TOKENS, _once)
    torch.cuda.synchronize(device)


def _compile_all(pending: list[Trial], device: torch.device, report: Callable[[int, int, str], None]) -> None:
    """Compile in parallel: a hundred kernels take minutes in sequence."""
    processes = min(os.cpu_count() or 1, 16, len(pending))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(compile_trial, trial, str(device)) for trial in pending]
        for i, job in enumerate(as_completed(jobs)):
            job.result()
            report(i + 1, 2 * len(pending), "compiling")


def fastest(measured: list[Measured]) -> dict[str, dict[str, Config]]:
    """Return the winners that beat the present configuration by more than noise, by kernel and shape class."""
    winners: dict[str, dict[str, Config]] = {}
    for (kernel, shape), group in itertools.groupby(
        measured, key=lambda result: (result.trial.kernel, result.trial.shape)
    ):
        first, *others = group
        running = [result for result in others if result.milliseconds is not None]
        best = min(running, key=lambda result: result.milliseconds or 0.0, default=first)
        if first.milliseconds is None or (
            best.milliseconds is not None and best.milliseconds < first.milliseconds * (1 - MARGIN)
        ):
            winners.setdefault(kernel, {})[shape] = best.trial.config
    return winners


def run(
    device: torch.device,
    report: Callable[[int, int, str], None] = lambda done, total, text: None,
    *,
    widths: tuple[int, ...] | None = None,
    timer: Callable[[Trial, torch.device], Measured] = measure,
) -> tuple[Path, list[Measured]]:
    """Measure all trials, save the table for this GPU, and return its path and the measurements.

    `report(done, total, text)` is called when a trial has been compiled, and again before it is measured. Entries of an
    earlier table that were not beaten stay. `widths` restricts the head dimensions. Raises UserError without a GPU.
    """
    if device.type != "cuda":
        raise UserError(f"cannot tune kernels on {device}: it needs a GPU")
    target = architecture(device)
    if timer is measure:
        _compile_all(trials(target, widths), device, report)
    return tune_for(target, device, report, widths=widths, timer=timer)


def tune_for(
    target: str,
    device: torch.device,
    report: Callable[[int, int, str], None],
    *,
    widths: tuple[int, ...] | None,
    timer: Callable[[Trial, torch.device], Measured],
) -> tuple[Path, list[Measured]]:
    """Measure and save as `run`, for a GPU of the given architecture."""
    path = tables.saved_path()
    tuning_tables.require_writable(path)
    pending = trials(target, widths)
    measured = []
    for i, trial in enumerate(pending):
        report(len(pending) + i, 2 * len(pending), f"{trial.kernel} {trial.shape}")
        measured.append(timer(trial, device))
    tables.save(path, {target: fastest(measured)})
    report(2 * len(pending), 2 * len(pending), "done")
    return path, measured
