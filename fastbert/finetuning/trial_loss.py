"""The loss of a trial's steps in one process or in several, of which each computes a share of every step.

The examples of a step, and their dropout, do not depend on the number of processes. Each process divides the losses of
its share by the labels of all shares, so that the sum of all gradients is that of the step's mean loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastbert.data.step_samples import share_by_tokens
from fastbert.distributed.world import World
from fastbert.finetuning.coupled_step import CoupledShare, CoupledStep
from fastbert.finetuning.losses import Losses, Objective
from fastbert.tasks.rows import BatchSizes, Rows, TaskBatch, share_out
from fastbert.training.parallel import replicated
from fastbert.training.stopping import agreed_signal, signal_flags


@dataclass(frozen=True)
class StepShare:
    """The micro-batches of one process, with what all of them have in a step."""

    batches: list[TaskBatch]
    items: float
    """The labels of the whole step, or the sum of their weights."""
    tokens: int
    """The tokens of the whole step."""
    micro_batch: int
    """Examples per micro-batch; the last one may have fewer."""
    counts: bool = True
    """False where there are fewer examples than processes: this one computes the first example with a weight of 0,
    since all of them must take part in the sum of the gradients."""
    signal: int | None = None
    """The signal that any process had received before the step."""
    coupled: CoupledShare | None = None
    """In place of micro-batches, the passes of a task whose loss compares all examples."""


class TrialLoss:
    """The loss of a model of which every process has a copy; backward sums the gradients over all processes."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        items: Callable[[TaskBatch], float],
        world: World,
        dtype: torch.dtype,
        coupled: CoupledStep | None = None,
    ) -> None:
        """`items` counts the labels of a batch, or sums their weights; `dtype` is that of matmuls; `coupled` computes
        the steps of a task whose loss compares all examples."""
        self.coupled = coupled
        self.model = model
        self.objective = objective
        self.items = items
        self.world = world
        self.dtype = dtype
        self._replica: Any = None

    def wrap(self) -> None:
        """Set up the sum of the gradients of the parameters that require them now, in all processes at the same time;
        call it before the first step, and after other parameters were frozen."""
        if self.coupled is not None:
            self.coupled.wrap()
        elif self.world.size > 1:
            self._replica = replicated(_Module(self.model, self.objective), self.dtype)

    def share(
        self, rows: Rows, units: np.ndarray, keys: np.ndarray, micro_batch: int | None, signal: int | None = None
    ) -> StepShare:
        """Return this process's share of a step: units of about as many tokens as the other shares have.

        `units` and their dropout `keys`, int64 (units,), are those of the whole step; `signal` is the one that this
        process has received.
        """
        world, mine = self.world, np.arange(len(units))
        if self.coupled is not None:
            share = self.coupled.share(units, keys)
            examples = max(1, len(units) // (len(share.passes) * world.size))
            return StepShare([], share.items, share.tokens, examples, True, self.agreed(signal), share)
        if world.size > 1:
            mine = share_by_tokens(rows.unit_lengths(units), world.rank, world.size)
        counts = len(mine) > 0
        mine = mine if counts else np.arange(1)
        size = micro_batch or len(mine)
        parts = [mine[start : start + size] for start in range(0, len(mine), size)]
        batches = [rows.batch(units[part], keys[part]) for part in parts]
        if world.size == 1:
            items, sizes, agreed = sum(self.items(batch) for batch in batches), BatchSizes.of(batches), signal
        else:
            items, sizes, agreed = self._summed(batches if counts else [], signal)
        batches = share_out(batches, sizes)
        return StepShare(batches, items, round(sizes.tokens), min(size, len(mine)), counts, agreed)

    def _summed(self, batches: list[TaskBatch], signal: int | None) -> tuple[float, BatchSizes, int | None]:
        """Return the labels and the sizes of all processes' micro-batches, and the signal of any of them."""
        sizes = BatchSizes.of(batches)
        local = [sum(self.items(batch) for batch in batches), sizes.tokens, sizes.rows, sizes.pairs]
        items, tokens, rows, pairs, *flags = self._sum_of([*local, *signal_flags(signal)])
        return items, BatchSizes(tokens, rows, pairs), agreed_signal(flags)

    def agreed(self, signal: int | None) -> int | None:
        """Return the signal that any process has received."""
        return signal if self.world.size == 1 else agreed_signal(self._sum_of(signal_flags(signal)))

    def _sum_of(self, numbers: list[float]) -> list[float]:
        return self.world.sum(torch.tensor(numbers, dtype=torch.float64)).tolist()

    def __call__(self, batch: TaskBatch, step: StepShare) -> Losses:
        """Return a micro-batch's share of its step's loss, and the parts of it to report."""
        items = step.items or 1
        if self.world.size == 1:
            result = self.objective(self.model, batch, items)
            return result if isinstance(result, Losses) else Losses(result)
        total, *parts = self._replica(batch, items)
        if not step.counts:
            total, parts = total * 0.0, [torch.zeros_like(part) for part in parts]
        return Losses(total, tuple(parts))

    def accumulating(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of a micro-batch's forward and backward pass: only that of the `last` sums gradients."""
        if self._replica is None or last:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = self._replica.no_sync()
        return context

    def sum(self, numbers: Tensor) -> Tensor:
        """Sum a tensor of the device over all processes, in place."""
        if self.world.size > 1:
            dist.all_reduce(numbers)
        return numbers


class _Module(nn.Module):
    """A model with its objective, as DDP wraps it."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = (objective,)  # in a tuple: its parameters, if it has any, are a part of the model

    def forward(self, batch: TaskBatch, items: float) -> tuple[Tensor, ...]:
        """Return a micro-batch's share of the loss, and parts of it without gradients."""
        result = self._objective[0](self.model, batch, items)
        losses = result if isinstance(result, Losses) else Losses(result)
        return losses.total, *(part.detach() for part in losses.parts)
