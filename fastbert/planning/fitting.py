"""Whether a run fits its devices: their memory, how they share the model, the largest micro-batch. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fastbert.errors import UserError
from fastbert.planning.flags import PlanFlags
from fastbert.planning.flops import BatchStatistics
from fastbert.planning.memory import Setup, memory
from fastbert.planning.peak import Gpu
from fastbert.planning.stacks import ModelShape

GIB = 1 << 30
MOST_SEQUENCES = 1 << 30  # of a micro-batch
FRAMEWORK_BYTES = 400 << 20
"""Resident bytes of a process on a CPU without a model, where they are not measured."""


def memory_limit(flags: PlanFlags, gpu: Gpu | None) -> float:
    """Return the bytes of memory of one device."""
    if flags.memory is not None:
        return flags.memory * GIB
    return machine_memory() if gpu is None else gpu.memory * GIB


def machine_memory() -> float:
    """Return the bytes of memory of this machine, or of its container; infinity where they are unknown."""
    limits = [math.inf]
    cgroup = Path("/sys/fs/cgroup")
    for path, scale in (
        (cgroup / "memory.max", 1),
        (cgroup / "memory/memory.limit_in_bytes", 1),  # v1, a huge number without a limit
        (Path("/proc/meminfo"), 1 << 10),
    ):
        try:
            words = path.read_text().split()
        except OSError:
            continue
        number = words[1] if words[0] == "MemTotal:" else words[0]
        if number.isdigit():
            limits.append(float(number) * scale)
    return min(limits)


def chosen_parallel(
    flags: PlanFlags, shape: ModelShape, one: BatchStatistics, setup: Setup, limit: float
) -> Literal["none", "ddp", "fsdp"]:
    """Return how devices share the model: --parallel, or ddp where a copy on each fits with one sequence, or must."""
    if flags.devices == 1:
        return "none"
    if flags.parallel != "auto":
        return flags.parallel
    if flags.needs_whole_model is not None:
        return "ddp"
    accumulates = flags.batch_size > flags.devices  # with one sequence per micro-batch
    fits = memory(shape, one, replace(setup, parallel="ddp", accumulates=accumulates)).total <= limit
    return "ddp" if fits else "fsdp"


def check_shards(flags: PlanFlags, shape: ModelShape) -> None:
    """Raise `UserError` for more devices than the rows of the matrices that they divide."""
    rows = min(getattr(stack, "width", getattr(stack, "units", 0)) for stack in shape)
    if flags.devices > rows:
        raise UserError(
            f"--gpus {flags.devices}: fsdp divides matrices by their rows, and those of --model {flags.model} have"
            f" {rows}; use --parallel ddp, or fewer GPUs"
        )


def largest_micro_batch(shape: ModelShape, one: BatchStatistics, setup: Setup, limit: float, per_device: int) -> int:
    """Return the most sequences of a micro-batch whose step fits, of any batch of so many; 0 if not even one does."""

    def fits(sequences: int) -> bool:
        fitted = replace(setup, accumulates=sequences < per_device)
        return memory(shape, one * sequences, fitted, baseline=FRAMEWORK_BYTES).total <= limit

    # The whole batch of a device may fit where smaller ones, whose gradients are added up, do not.
    low, high = per_device if fits(per_device) else 0, MOST_SEQUENCES
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def shortage(shape: ModelShape, one: BatchStatistics, setup: Setup, limit: float, flags: PlanFlags) -> str:
    """Return the error's message where not even one sequence fits."""
    needed = memory(shape, one, setup, baseline=FRAMEWORK_BYTES).total
    return (
        f"--model {flags.model}: a micro-batch of one sequence needs {needed / GIB:.1f} GiB per device, of"
        f" {limit / GIB:.1f}{cures(setup, flags)}"
    )


def cures(setup: Setup, flags: PlanFlags) -> str:
    """Return the flags with which more may fit, as the end of an error's message."""
    whole = flags.needs_whole_model
    flags_that_help = []
    if setup.checkpointing != "layer":
        flags_that_help.append("--checkpoint-activations")
    if setup.parallel == "ddp":
        flags_that_help.append("--parallel fsdp" + (f" without {whole}" if whole else ""))
    elif setup.parallel == "none" and setup.device == "cuda":
        flags_that_help.append("--gpus 2 --parallel fsdp" + (f" without {whole}" if whole else ""))
    elif setup.parallel == "fsdp":
        flags_that_help.append("more --gpus")
    return f"; use {' or '.join(flags_that_help)}" if flags_that_help else ""
