"""A step over several processes: torch's DDP, with gradients summed in the dtype of matmuls.

Each process computes its samples of the step; the weights of their losses count all processes' predictions, so the sum
of the gradients is the gradient of the step's mean loss, whatever the number of processes. The layout of DDP's buckets
never changes within a run, nor after a restart: with three processes and more it decides the order of sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastbert.distributed.world import World
from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch
from fastbert.training.step_loss import Part, StepLoss

Loss = Callable[[PackedBatch, Part], tuple[Tensor, PreTrainingOutput]]
BUCKET_MB = 25


class Replicas:
    """The loss of a model of which every process has a copy; backward sums the gradients over all processes.

    With one process the loss is computed as it is.
    """

    def __init__(self, loss: StepLoss, world: World, dtype: torch.dtype) -> None:
        """Join the copies: parameters become those of the first process. `dtype` is that of matmuls."""
        self.loss, self.world = loss, world
        self._replica: Any = None
        if world.size > 1:
            self._replica = nn.parallel.DistributedDataParallel(
                loss,
                bucket_cap_mb=BUCKET_MB,
                # Gradients are contiguous views of the buckets, which the optimiser reads without a copy.
                gradient_as_bucket_view=True,
                # Without it, buckets are laid out anew after the first step, in the order in which gradients arrived.
                find_unused_parameters=True,
            )
            self._replica.register_comm_hook(None, _sum_in(torch.bfloat16 if dtype == torch.bfloat16 else None))

    def __call__(self, batch: PackedBatch, part: Part) -> tuple[Tensor, PreTrainingOutput]:
        """Return a micro-batch's part of its step's loss, and the model's output."""
        result: tuple[Tensor, PreTrainingOutput] = (self.loss if self._replica is None else self._replica)(batch, part)
        return result

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of a micro-batch's forward and backward pass: only that of the `last` sums gradients."""
        if self._replica is None or last:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = self._replica.no_sync()
        return context

    def sum(self, numbers: Tensor) -> None:
        """Sum a tensor of the device over all processes, in place."""
        if self.world.size > 1:
            dist.all_reduce(numbers)


def _sum_in(dtype: torch.dtype | None) -> Callable[[Any, Any], torch.futures.Future[Tensor]]:
    """Return DDP's hook that sums a bucket of gradients over all processes, in `dtype` or the bucket's own."""

    def hook(_: Any, bucket: Any) -> torch.futures.Future[Tensor]:
        gradients: Tensor = bucket.buffer()
        sent = gradients if dtype is None else gradients.to(dtype)

        def received(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            total = future.value()[0]
            return total if dtype is None else gradients.copy_(total)

        work = dist.all_reduce(sent, async_op=True)
        assert work is not None
        summed: torch.futures.Future[Tensor] = work.get_future().then(received)
        return summed

    # DDP reads the types, which are text in this module.
    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}
    return hook
