"""A step over several processes: torch's DDP, or FSDP2 for models that do not fit into the memory of each.

Each process computes its samples of the step; the weights of their losses count all processes' predictions, so the sum
of the gradients is the gradient of the step's mean loss, whatever the number of processes. Gradients are
summed in the dtype of matmuls. The layout of DDP's buckets never changes within a run, nor after a restart: with three
processes and more it decides the order of sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastbert.distributed.world import World
from fastbert.models.modules import LAYERS
from fastbert.models.outputs import PreTrainingOutput
from fastbert.ops.native import prepacked_weights
from fastbert.packing import PackedBatch
from fastbert.training.snapshot import Snapshot, snapshot
from fastbert.training.step_loss import Part, StepLoss

Loss = Callable[[PackedBatch, Part], tuple[Tensor, PreTrainingOutput]]
BUCKET_MB = 25


def replicated(loss: nn.Module, dtype: torch.dtype) -> Any:
    """Return DDP's wrapper of a loss: parameters become those of the first process, and backward sums gradients over
    all processes, in bf16 if `dtype`, that of matmuls, is bf16.

    Parameters that do not require gradients now are left out: wrap the loss again after freezing or unfreezing some.
    """
    replica = nn.parallel.DistributedDataParallel(
        loss,
        bucket_cap_mb=BUCKET_MB,
        # Gradients are contiguous views of the buckets, which the optimiser reads without a copy.
        gradient_as_bucket_view=True,
        # Without it, buckets are laid out anew after the first step, in the order in which gradients arrived.
        find_unused_parameters=True,
    )
    replica.register_comm_hook(None, _sum_in(torch.bfloat16 if dtype == torch.bfloat16 else None))
    return replica


class Replicas:
    """The loss of a model of which every process has a copy; backward sums the gradients over all processes.

    With one process the loss is computed as it is.
    """

    def __init__(self, loss: StepLoss, world: World, dtype: torch.dtype) -> None:
        """Join the copies: parameters become those of the first process. `dtype` is that of matmuls."""
        self.loss = loss
        self.world = world
        self._replica: Any = replicated(loss, dtype) if world.size > 1 else None

    def __call__(self, batch: PackedBatch, part: Part) -> tuple[Tensor, PreTrainingOutput]:
        """Return a micro-batch's part of its step's loss, and the model's output."""
        result: tuple[Tensor, PreTrainingOutput] = (self.loss if self._replica is None else self._replica)(batch, part)
        return result

    def passes(
        self, batches: Sequence[PackedBatch], parts: Sequence[Part], most: int
    ) -> Iterator[tuple[PackedBatch, Part, bool, bool]]:
        """Yield the forward and backward passes of a step: each micro-batch with its part, True if it counts, and True
        for the last one. `most` is the largest number of micro-batches of all processes."""
        for index, (batch, part) in enumerate(zip(batches, parts, strict=True)):
            yield batch, part, True, index == len(batches) - 1

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of a micro-batch's forward and backward pass: only that of the `last` sums gradients."""
        if self._replica is None or last:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = self._replica.no_sync()
        return context

    def snapshot(self, optimizer: torch.optim.Optimizer) -> Snapshot:
        """Return the tensors of a checkpoint; called in the first process alone."""
        return snapshot(self.loss.model, optimizer)

    @property
    def gathers(self) -> bool:
        """Return whether all processes must call `snapshot` at the same time."""
        return False

    @property
    def shard(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return the function that cuts a whole tensor like another one, for `checkpoint.restore`; None: they are
        whole."""
        return None

    @property
    def reduce_sums(self) -> Callable[[Tensor], Tensor] | None:
        """Return the function that sums an optimiser's numbers over shards; None: it has whole tensors."""
        return None

    def sum(self, numbers: Tensor) -> None:
        """Sum a tensor of the device over all processes, in place."""
        if self.world.size > 1:
            dist.all_reduce(numbers)


class Shards(Replicas):
    """The loss of a model whose weights, gradients and moments are spread over all processes, by FSDP2: each layer is
    gathered while it computes."""

    def __init__(self, loss: StepLoss, world: World, dtype: torch.dtype) -> None:
        """Shard the layers and the rest of the model. `dtype` is that of matmuls; weights stay fp32."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        self.loss = loss
        self.world = world
        device = next(loss.model.parameters()).device
        mesh = init_device_mesh(device.type, (world.size,))
        policy = MixedPrecisionPolicy(
            reduce_dtype=torch.bfloat16 if dtype == torch.bfloat16 else None, cast_forward_inputs=False
        )
        layers = [module for module in loss.model.modules() if isinstance(module, LAYERS)]
        for module in (*layers, loss.model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
            # A gathered weight has a new value at an address that may have been used before.
            module.register_forward_pre_hook(_forget_copies)
        self._model: Any = loss.model

    def __call__(self, batch: PackedBatch, part: Part) -> tuple[Tensor, PreTrainingOutput]:
        """Return a micro-batch's part of its step's loss, and the model's output."""
        loss, output = self.loss(batch, part)
        return loss * self.world.size, output  # FSDP2 averages the gradients of all processes

    def passes(
        self, batches: Sequence[PackedBatch], parts: Sequence[Part], most: int
    ) -> Iterator[tuple[PackedBatch, Part, bool, bool]]:
        """Yield the forward and backward passes of a step; a process with fewer micro-batches than the others computes
        its last one again, with a weight of zero, since layers are gathered in all of them at the same time."""
        for index in range(max(most, len(batches))):
            counts = index < len(batches)
            part = parts[index] if counts else Part((0.0, 0.0, 0.0), (0.0, 0.0))
            yield batches[index if counts else -1], part, counts, index == max(most, len(batches)) - 1

    @contextlib.contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Sum gradients over processes in the backward pass of the `last` micro-batch alone."""
        self._model.set_requires_gradient_sync(last)
        yield

    def snapshot(self, optimizer: torch.optim.Optimizer) -> Snapshot:
        """Return the whole tensors of a checkpoint, gathered on the host; all processes call it together."""
        self._model.reshard()  # which a forward pass without a backward pass leaves gathered
        return snapshot(self._model, optimizer, _gathered)

    @property
    def gathers(self) -> bool:
        """Return True: all processes must call `snapshot` at the same time."""
        return True

    @property
    def shard(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the function that cuts a whole tensor as another one is sharded."""
        return _sharded

    @property
    def reduce_sums(self) -> Callable[[Tensor], Tensor]:
        """Return the function that sums an optimiser's numbers over the shards."""

        def reduce(sums: Tensor) -> Tensor:
            if sums.is_cuda:
                dist.all_reduce(sums)
                return sums
            return self.world.sum(sums)

        return reduce


def _forget_copies(module: nn.Module, inputs: Any) -> None:
    """Drop the prepacked copies of a module's own weights."""
    prepacked_weights.forget(module.parameters())


def _gathered(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor on the host, of a sharded one the whole: the next steps change the original."""
    full = getattr(tensor, "full_tensor", None)
    return tensor.to("cpu", copy=True) if full is None else full().cpu()


def _sharded(whole: Tensor, like: Any) -> Tensor:
    """Return this process's part of a tensor that every process has, as `like` is sharded."""
    if not hasattr(like, "full_tensor"):
        return whole.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    part: Tensor = distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return part


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
