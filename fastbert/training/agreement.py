"""What the processes of a run agree on after each step: its losses, the first one's clock, and signals."""

from __future__ import annotations

import torch

from fastbert.distributed.world import World
from fastbert.training.device_step import StepStats
from fastbert.training.metrics import Totals
from fastbert.training.stopping import agreed_signal, signal_flags


def agree(world: World, losses: Totals | StepStats, seconds: float, stop: int | None) -> tuple[float, int | None]:
    """Sum the losses of a CPU's step over all processes, in place; return the first process's seconds of training, and
    the signal that any of them has received, None without. `seconds` and `stop` are those of this process."""
    if world.size == 1:
        return seconds, stop
    numbers = torch.zeros(3 + Totals.NUMBERS, dtype=torch.float64)
    numbers[:2] = torch.tensor(signal_flags(stop))
    numbers[2] = seconds if world.is_main else 0.0
    if isinstance(losses, Totals):
        numbers[3:] = losses.numbers()
    world.sum(numbers)
    if isinstance(losses, Totals):
        losses.set_numbers(numbers[3:])
    return float(numbers[2]), agreed_signal(numbers[:2].tolist())


def agreed_seconds(world: World, seconds: float) -> float:
    """Return the first process's seconds of training, in all of them: they decide over the next steps."""
    return float(world.sum(torch.tensor([seconds if world.is_main else 0.0], dtype=torch.float64)))
