"""The optimiser step as CUDA graphs: one for forward and backward per size of micro-batch, one for the update.

What changes from step to step lies in tensors with fixed addresses: the batch with its dropout keys, the weights of the
two losses, the learning rate, the gradients and the sums that are reported. The host launches graphs without a
host-device sync; a step's statistics are read after the next step has been launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.graphs import (
    RECORDED,
    Bucket,
    Buckets,
    CudaRecorder,
    Graphs,
    Recorder,
    Use,
    Uses,
    Weights,
    present_fields,
    settings,
)
from fastbert.models.heads.pretraining import ForPreTraining
from fastbert.packing import PackedBatch
from fastbert.training.batches import micro_batch_loss
from fastbert.training.config import PretrainConfig
from fastbert.training.device_step import StepStats, StepSums, pinned
from fastbert.training.optimizer import clip_and_step, make_capturable, set_learning_rate
from fastbert.training.step_spec import StepCounts


def reason_not_captured(device: torch.device, dtype: torch.dtype, *, distills: bool = False) -> str | None:
    """Return why a training step cannot be captured, None if it can."""
    if device.type != "cuda":
        return f"there are no CUDA graphs on a device of type {device.type}"
    if dtype == torch.float16:
        return "the loss scale of fp16 is not part of the captured step; bf16 needs none"
    if distills:
        return "the teacher's forward pass is not part of the captured step"
    return None


def reason_not_chosen(device: torch.device, dtype: torch.dtype, *, distills: bool = False) -> str | None:
    """Return why `--cuda-graphs auto` does not capture a training step, None if it does."""
    reason = reason_not_captured(device, dtype, distills=distills)
    if reason is None and dtype != torch.bfloat16:
        return "they are the default for bf16; --cuda-graphs on captures fp32 too"
    return reason


def captures_steps(
    config: PretrainConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    distills: bool,
    processes: int,
    on_message: Callable[[str], None],
) -> bool:
    """Return whether --cuda-graphs selects captured steps for a run; report the choice on a GPU."""
    choice, reason = config.cuda_graphs, None
    if choice == "off":
        return False
    if config.objective == "bilm":
        reason = "an LSTM has a step per word, so that its kernels differ between batches"
    elif config.objective == "rtd":
        reason = "the discriminator's loss is over all tokens, and graphs pad batches with further ones"
    elif processes > 1:
        reason = "sums over processes are not part of the captured step"
    else:
        decide = reason_not_captured if choice == "on" else reason_not_chosen
        reason = decide(device, dtype, distills=distills)
    if reason is None:
        on_message("the training step is captured in CUDA graphs; --cuda-graphs off launches its kernels")
    elif choice == "on":
        on_message(f"--cuda-graphs has no effect: {reason}")
    elif device.type == "cuda":
        on_message(f"no CUDA graphs: {reason}")
    return reason is None


@dataclass(frozen=True)
class FilledBatch:
    """A micro-batch, and the same padded to its bucket."""

    real: PackedBatch
    filled: PackedBatch
    bucket: Bucket

    @property
    def num_tokens(self) -> int:
        """Return the number of real tokens."""
        return self.real.num_tokens


class GraphedStep:
    """One optimiser step of pre-training: gradients of all micro-batches, clipped, and AdamW's update.

    Equal to the step without graphs but for the rounding of matmuls with more rows (`Buckets` pad batches). The first
    batch of a bucket is computed and then recorded. A non-finite gradient changes no weight and is reported in
    `StepStats`. The optimiser becomes capturable, with its learning rate in a tensor. Parameters that no batch has
    used so far have no gradient, and AdamW leaves them alone; once used, a step that does not use them counts as a
    gradient of zero. `dtype` is autocast's, fp32 or bf16.
    """

    def __init__(
        self,
        model: ForPreTraining,
        optimizer: torch.optim.AdamW,
        *,
        max_grad_norm: float,
        dtype: torch.dtype = torch.float32,
        buckets: Buckets | None = None,
        limit: int = 64,
        recorder: Recorder | None = None,
    ) -> None:
        device = next(model.parameters()).device
        reason = reason_not_captured(device, dtype)
        if recorder is None and reason is not None:
            raise UserError(f"a graphed step cannot be recorded: {reason}; use the ordinary step")
        self.model = model
        self.optimizer = optimizer
        self.max_grad_norm = max_grad_norm
        self.dtype = dtype
        self.buckets: Buckets = buckets or Buckets()
        self.device: torch.device = device
        recorder = recorder or CudaRecorder(device)
        self._passes, self._updates = Graphs(recorder, device, limit), Graphs(recorder, device, 1)
        self._skip, self._lr = make_capturable(optimizer, device)
        self._loss_weights = torch.zeros(3, dtype=torch.float32, device=device)
        self._sums = StepSums(device)
        self._uses = Uses()
        self._gradients: list[Tensor | None] = []
        self._remember_addresses()

    def prepare(self, batch: PackedBatch) -> FilledBatch:
        """Pad a micro-batch to its bucket, in pinned memory if it is copied from the host to a GPU."""
        if batch.dropout_key is None:
            raise UserError("the batch has no dropout_key, from which a recorded step draws its masks; add one")
        if batch.masked_positions is None or batch.labels is None:
            raise UserError("the batch has no masked_positions with labels: there is nothing to train on")
        bucket = self.buckets.of(batch)
        return FilledBatch(batch, pinned(bucket.fill(batch), self.device), bucket)

    def __call__(self, batches: Sequence[FilledBatch], lr: float, counts: StepCounts | None = None) -> StepStats:
        """Take a step with the learning rate `lr`, without a host-device sync except for recording."""
        if counts is None:
            counts = StepCounts.of([batch.real for batch in batches])
        if (
            self._weights.moved()
            or any(p.grad is not gradient for p, gradient in zip(self._parameters, self._gradients))
            or self._has_other_settings()
        ):
            self.forget()
        if not self.model.training:
            self.model.train()
        for index, weight in enumerate(counts.weights):
            self._loss_weights[index].fill_(weight)
        set_learning_rate(self.optimizer, lr)
        try:
            for batch in batches:
                self._run_pass(batch)
        except BaseException:
            # Gradients of the first micro-batches must not be part of the next step.
            self.optimizer.zero_grad(set_to_none=False)
            self._sums.clear()
            raise
        if self._passes.refused is not None:
            self._updates.refused = self._passes.refused
        self._gradients = [p.grad for p in self._parameters]
        updated = tuple(gradient is not None for gradient in self._gradients)
        self._updates.run((updated, settings(self.device)), None, self._update)
        return StepStats(self._sums.numbers, any(batch.real.next_sentence_label is not None for batch in batches))

    def _run_pass(self, batch: FilledBatch) -> None:
        key = (batch.bucket, present_fields(batch.filled), settings(self.device))
        replayed = key in self._passes.slots
        self._passes.run(key, batch.filled, self._pass)
        if replayed or self._passes.refused is None:
            self._uses.add(batch.bucket, "graph", RECORDED, replayed=replayed)
        else:
            self._uses.add(batch.bucket, "eager", self._passes.refused)

    def _pass(self, batch: PackedBatch | None) -> None:
        """Run forward and backward of a micro-batch; accumulate gradients and sums."""
        # Without cache_enabled=False an outer autocast would reuse its cast weights in the next step.
        with torch.autocast(
            self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32, cache_enabled=False
        ):
            output = self.model(batch)
        micro_batch_loss(output, *self._loss_weights.unbind()).backward()
        self._sums.add(output)

    def _update(self, _: PackedBatch | None) -> None:
        """Clip, update, and zero gradients and sums in place for the next step."""
        norm = clip_and_step(self.optimizer, self._parameters, self.max_grad_norm, self._skip)
        if getattr(self.optimizer, "flat", None) is None:
            self.optimizer.zero_grad(set_to_none=False)
        self._sums.finish(norm)

    def forget(self) -> None:
        """Drop all graphs. Automatic after weights have moved and after `optimizer.load_state_dict`; required after
        single tensors of the optimiser's state were replaced.
        """
        self._passes.forget()
        self._updates.forget()
        if self._has_other_settings():
            self._skip, self._lr = make_capturable(self.optimizer, self.device)
        self._remember_addresses()

    def _has_other_settings(self) -> bool:
        """Return True if the optimiser's parameter groups are not those that were made capturable."""
        return any(group["lr"] is not self._lr for group in self.optimizer.param_groups)

    def _remember_addresses(self) -> None:
        """Store what the graphs depend on: the addresses of weights, and the gradients that they write."""
        self._weights, self._parameters = Weights(self.model), list(self.model.parameters())
        self._gradients = [p.grad for p in self._parameters]

    def report(self) -> list[Use]:
        """Return how the micro-batches of each bucket ran so far, and why."""
        return list(self._uses.values())
