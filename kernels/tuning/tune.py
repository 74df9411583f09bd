"""Measure candidates for each kernel and shape class on this GPU and save the fastest: `fastbert doctor --tune`."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from fastbert import tuning_tables
from fastbert.errors import UserError
from fastbert.kernels.attention import launchers
from fastbert.kernels.launch import architecture
from fastbert.kernels.tuning import products as tune_products
from fastbert.kernels.tuning import tables
from fastbert.kernels.tuning.tables import Config

WIDTHS = (64, 32, 128)
TOKENS = 32768
REPEATS = 20
# A candidate must be this much faster than what is shipped: less is noise, and the shipped one is the better tested.
MARGIN = 0.02


@dataclass(frozen=True)
class Trial:
    """One configuration of one kernel for one shape class; the first of a class is what is used today."""

    kernel: str
    shape: str
    width: int
    config: Config


@dataclass(frozen=True)
class Measured:
    """A trial and the milliseconds of the pass it is part of; None: it does not run on this GPU, as `problem` says."""

    trial: Trial
    milliseconds: float | None
    problem: str = ""


def _tiles(queries: tuple[int, ...], keys: tuple[int, ...], stages: tuple[int, ...]) -> list[Config]:
    return [
        Config(constants={"BLOCK_M": q, "BLOCK_N": k}, num_warps=warps, num_stages=depth)
        for q, k, warps, depth in itertools.product(queries, keys, (4, 8), stages)
        # Fewer than 1,024 scores a warp are too little work, more than 4,096 do not fit into its registers.
        if 1024 <= q * k // warps <= 4096
    ]


CANDIDATES = {
    "forward_long": _tiles((64, 128), (64, 128), (2, 3)),
    "backward_queries": _tiles((64, 128), (32, 64, 128), (1, 2)),
    "backward_keys": _tiles((32, 64), (64, 128), (1, 2)),
}


def trials(target: str, widths: tuple[int, ...] = WIDTHS) -> list[Trial]:
    """What is tried on a GPU: for each kernel and shape class the present configuration first, then the others."""
    found = []
    choices = [(kernel, width, CANDIDATES[kernel]) for kernel, width in itertools.product(CANDIDATES, widths)]
    products = tune_products.candidates(tma=target in ("sm_90", "sm_100"))
    choices += [(kernel, tune_products.WIDTHS[-1], products) for kernel in tune_products.KERNELS]
    for kernel, width, candidates in choices:
        shape = tables.shape_class(torch.bfloat16, False, width)
        present = tables.lookup(kernel, shape, target)
        if kernel == tune_products.KERNELS[1]:  # whether it runs at all is the other kernel's choice
            candidates = [config for config in candidates if config.constants["OWN"]]
        others = [config for config in candidates if config != present]
        found += [Trial(kernel, shape, width, config) for config in (present, *others)]
    return found


def _problems(width: int, device: torch.device, tokens: int = TOKENS) -> Iterator[launchers.AttentionInputs]:
    """Sequences of 512 tokens, without and with dropout, as in inference and in training."""
    generator = torch.Generator(device).manual_seed(width)
    heads = 1024 // width
    q, k, v = (
        torch.randn(tokens, heads, width, dtype=torch.bfloat16, device=device, generator=generator) for _ in range(3)
    )
    offsets = torch.arange(0, tokens + 1, 512, dtype=torch.int32, device=device)
    for dropout in (False, True):
        yield launchers.AttentionInputs(
            q=q,
            k=k,
            v=v,
            cu_seqlens_q=offsets,
            cu_seqlens_k=offsets,
            max_seqlen_q=512,
            max_seqlen_k=512,
            causal=False,
            dropout_key=torch.arange(len(offsets) - 1, device=device) if dropout else None,
            dropout_threshold=6554 if dropout else 0,
            dropout_scale=65536 / (65536 - 6554) if dropout else 1.0,
            dropout_site=1,
            bias=None,
            scale=width**-0.5,
            tf32=False,
        )


def _milliseconds(function: Callable[[], object]) -> float:
    """The median of repeated runs between two events, after a warm-up."""
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
    """Time forward, or backward, with the trial's configuration in place of the present one."""
    total = 0.0
    with tables.overridden(trial.kernel, trial.shape, trial.config):
        try:
            if trial.kernel in tune_products.KERNELS:
                return Measured(trial, tune_products.run(device, TOKENS, _milliseconds))
            for problem in _problems(trial.width, device):
                if trial.kernel.startswith("forward"):
                    total += _milliseconds(lambda problem=problem: launchers.forward(problem))
                else:
                    out, lse = launchers.forward(problem)
                    grad = torch.randn_like(out)
                    total += _milliseconds(
                        lambda problem=problem, out=out, lse=lse, grad=grad: launchers.backward(
                            problem, out, lse, grad, False
                        )
                    )
        except (OutOfResources, PTXASError, CompilationError) as error:
            return Measured(trial, None, str(error).splitlines()[0])
    return Measured(trial, total)


def compile_trial(trial: Trial, device_name: str) -> None:
    """Run a trial once on one short sequence, which leaves the compiled kernels in Triton's cache on disk."""
    device = torch.device(device_name)
    with (
        tables.overridden(trial.kernel, trial.shape, trial.config),
        contextlib.suppress(OutOfResources, PTXASError, CompilationError),
    ):
        if trial.kernel in tune_products.KERNELS:
            tune_products.run(device, 512, _once)
            return
        for problem in _problems(trial.width, device, tokens=512):
            out, lse = launchers.forward(problem)
            if trial.kernel.startswith("backward"):
                launchers.backward(problem, out, lse, out, False)
    torch.cuda.synchronize(device)


def _compile_all(todo: list[Trial], device: torch.device, report: Callable[[int, int, str], None]) -> None:
    """Compile in parallel: one after the other, a hundred kernels take minutes."""
    processes = min(os.cpu_count() or 1, 16, len(todo))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(compile_trial, trial, str(device)) for trial in todo]
        for i, job in enumerate(as_completed(jobs)):
            job.result()
            report(i + 1, 2 * len(todo), "compiling")


def fastest(measured: list[Measured]) -> dict[str, dict[str, Config]]:
    """The winners that beat the present configuration by more than noise, by kernel and shape class."""
    found: dict[str, dict[str, Config]] = {}
    for (kernel, shape), group in itertools.groupby(measured, key=lambda one: (one.trial.kernel, one.trial.shape)):
        first, *others = group
        running = [one for one in others if one.milliseconds is not None]
        best = min(running, key=lambda one: one.milliseconds or 0.0, default=first)
        if first.milliseconds is None or (
            best.milliseconds is not None and best.milliseconds < first.milliseconds * (1 - MARGIN)
        ):
            found.setdefault(kernel, {})[shape] = best.trial.config
    return found


def run(
    device: torch.device,
    report: Callable[[int, int, str], None] = lambda done, total, text: None,
    *,
    widths: tuple[int, ...] = WIDTHS,
    timer: Callable[[Trial, torch.device], Measured] = measure,
) -> tuple[Path, list[Measured]]:
    """Try everything, save the table for this GPU, and return where it lies and what was measured.

    `report(done, total, text)` is called as each trial is compiled, and then before it is measured. Entries of an
    earlier table that were not beaten stay.
    Raises UserError without a GPU.
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
    widths: tuple[int, ...],
    timer: Callable[[Trial, torch.device], Measured],
) -> tuple[Path, list[Measured]]:
    """`run` for a GPU of the given architecture."""
    path = tables.saved_path()
    tuning_tables.require_writable(path)
    todo = trials(target, widths)
    measured = []
    for i, trial in enumerate(todo):
        report(len(todo) + i, 2 * len(todo), f"{trial.kernel} {trial.shape}")
        measured.append(timer(trial, device))
    tables.save(path, {target: fastest(measured)})
    report(2 * len(todo), 2 * len(todo), "done")
    return path, measured
