"""The optimiser step on a GPU, launched kernel by kernel, and the statistics of a step that arrive after it.

The host never waits for the step that it launches: a step's losses and the norm of its gradient are copied to
page-locked memory and read after the next step has been launched. A non-finite gradient is therefore handled on the
device: the optimiser skips the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from fastbert.distributed.world import World
from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch
from fastbert.tasks.predicting import autocast
from fastbert.training.metrics import Totals
from fastbert.training.optimizer import clip_and_step, clip_gradients, set_learning_rate
from fastbert.training.parallel import Replicas
from fastbert.training.step_loss import StepLoss
from fastbert.training.step_spec import StepCounts


class HostCopy:
    """Numbers of a device, copied to the host asynchronously; the device's may be overwritten by what it does next."""

    def __init__(self, numbers: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(numbers.device))  # the current device may differ
        else:
            self._host = numbers.clone()

    def wait(self) -> None:
        """Wait until the numbers have arrived: they, and all that the device did before, have been computed."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def numbers(self) -> tuple[Tensor, ...]:
        """Return the numbers, scalars on the host."""
        self.wait()
        return self._host.unbind()


class StepStats(HostCopy):
    """Statistics of a step: sums of losses, counts, and the gradient's norm."""

    def __init__(self, numbers: Tensor, has_pairs: bool, extras: Collection[str] = ()) -> None:
        """`numbers` and `extras` are those of `StepSums`."""
        super().__init__(numbers)
        self.has_pairs = has_pairs
        self.extras: frozenset[str] = frozenset(extras)

    @property
    def skipped(self) -> bool:
        """Return whether the step changed no weight because its gradient was not finite: in fp16 an overflow."""
        return not math.isfinite(float(self.numbers()[-1]))

    def read(self) -> tuple[PreTrainingOutput, float]:
        """Return sums and counts for `Totals` (fp64 scalars on the host), and the gradient's norm."""
        *sums, norm = self.numbers()
        output = PreTrainingOutput()
        for name, value in zip(Totals.NAMES if self.has_pairs else Totals.NAMES[:3], sums):
            setattr(output, name, value)
        for name, value in zip(Totals.EXTRAS, sums[len(Totals.NAMES) :], strict=True):
            if name in self.extras:
                output[name] = value
        return output, float(norm)


class StepSums:
    """The sums of losses and counts of a step's micro-batches, fp64 on the device, at fixed addresses."""

    def __init__(self, device: torch.device) -> None:
        names = (*Totals.NAMES, *Totals.EXTRAS)
        self._sums = torch.zeros(len(names), dtype=torch.float64, device=device)
        self.numbers: Tensor = torch.zeros(len(names) + 1, dtype=torch.float64, device=device)
        """Sums of the last finished step in the order of `Totals.NAMES`, then `Totals.EXTRAS`, and the norm of its
        gradient."""
        self.extras: set[str] = set()
        """The names of `Totals.EXTRAS` that the model has."""

    def add(self, output: PreTrainingOutput) -> None:
        """Add a micro-batch."""
        for index, name in enumerate((*Totals.NAMES, *Totals.EXTRAS)):
            value = getattr(output, name, None)
            if value is not None:
                self._sums[index].add_(value.detach())
                if name in Totals.EXTRAS:
                    self.extras.add(name)

    def finish(self, norm: Tensor, reduce: Callable[[Tensor], object] | None = None) -> None:
        """Write `numbers`, with the norm of the step's gradient, and start the next step's sums at zero; `reduce` sums
        a tensor over several processes."""
        if reduce is not None:
            reduce(self._sums)
        self.numbers[:-1].copy_(self._sums)
        self.numbers[-1].copy_(norm)
        self._sums.zero_()

    def clear(self) -> None:
        """Drop the sums of a step that raised."""
        self._sums.zero_()


def pinned(batch: PackedBatch, device: torch.device) -> PackedBatch:
    """Return a batch of the host in page-locked memory, from which it is copied to a GPU asynchronously."""
    return batch.pin_memory() if device.type == "cuda" and batch.device.type == "cpu" else batch


class DeviceStep:
    """One optimiser step of pre-training, without a host-device sync: gradients of all micro-batches, clipped, AdamW.

    A non-finite gradient changes no weight and is reported in `StepStats`; with an enabled `scaler` (fp16) that is an
    ordinary event, after which the scaler lowers its factor. `dtype` is autocast's.
    """

    def __init__(
        self,
        loss: StepLoss,
        optimizer: torch.optim.AdamW,
        scaler: torch.amp.GradScaler,
        *,
        max_grad_norm: float,
        dtype: torch.dtype,
        replicas: Replicas | None = None,
    ) -> None:
        """`replicas` sums gradients over several processes; None: there is one."""
        self.loss = loss
        self.optimizer = optimizer
        self.scaler = scaler
        self._given = replicas
        self.max_grad_norm = max_grad_norm
        self.dtype = dtype
        self.device: torch.device = next(loss.model.parameters()).device
        self._sums = StepSums(self.device)
        self._skip = torch.zeros((), dtype=torch.float32, device=self.device)
        if not scaler.is_enabled():  # else the scaler sets its own before each step
            optimizer.found_inf = self._skip  # type: ignore[attr-defined]  # where torch's fused step looks for it

    @property
    def replicas(self) -> Replicas:
        """Return the copies of the model over all processes; of a single one, that of the present loss."""
        return self._given or Replicas(self.loss, World(), self.dtype)

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        """Return a micro-batch ready to be copied to the device."""
        return pinned(batch, self.device)

    def __call__(
        self, batches: Sequence[PackedBatch], lr: float, counts: StepCounts | None = None, passes: int = 0
    ) -> StepStats:
        """Launch a step with the learning rate `lr`; `counts` and the most micro-batches, `passes`, are those of all
        processes."""
        model, replicas = self.loss.model, self.replicas
        if not model.training:
            model.train()
        try:
            parts = self.loss.parts(batches, counts)
            for batch, part, counted, last in replicas.passes(batches, parts, passes):
                with replicas.accumulating(last):
                    with autocast(self.device, self.dtype):
                        loss, output = replicas(batch.to(self.device, non_blocking=True), part)
                    self.scaler.scale(loss).backward()
                if counted:
                    self._sums.add(output)
        except BaseException:
            # Gradients of the first micro-batches must not be part of the next step.
            self.optimizer.zero_grad(set_to_none=True)
            self._sums.clear()
            raise
        set_learning_rate(self.optimizer, lr)
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
            norm = clip_gradients(model.parameters(), self.max_grad_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            norm = clip_and_step(self.optimizer, model.parameters(), self.max_grad_norm, self._skip)
        if getattr(self.optimizer, "flat", None) is None:
            self.optimizer.zero_grad(set_to_none=True)
        self._sums.finish(norm, None if self._given is None else self._given.sum)
        pairs = any(batch.next_sentence_label is not None for batch in batches)
        return StepStats(self._sums.numbers, pairs, self._sums.extras)
