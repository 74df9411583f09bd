"""The computing of one optimiser step: forward and backward passes, clipping, and the update of the weights.

A GPU's step is launched, kernel by kernel or as CUDA graphs, and its results are read later; on a CPU a step ends
before the next one begins. The weights of a step with a non-finite gradient stay as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from fastbert.errors import UserError
from fastbert.models.finite import first_non_finite
from fastbert.ops.kernel_failures import until_compiled
from fastbert.packing import PackedBatch
from fastbert.tasks.predicting import autocast
from fastbert.training.config import PretrainConfig
from fastbert.training.device_step import DeviceStep, StepStats
from fastbert.training.graphed import FilledBatch, GraphedStep, captures_steps
from fastbert.training.metrics import Totals
from fastbert.training.optimizer import AdamW, GradientError, set_learning_rate
from fastbert.training.parallel import Replicas
from fastbert.training.skipped_steps import TrainingError
from fastbert.training.step_loss import StepLoss
from fastbert.training.step_spec import LoadedStep


class StepComputer:
    """Computes the optimiser steps of a run, whose `config` says how: captured, launched or at once."""

    def __init__(
        self,
        loss: StepLoss,
        replicas: Replicas,
        optimizer: AdamW,
        config: PretrainConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        on_message: Callable[[str], None],
    ) -> None:
        """`replicas` computes the loss and sums gradients over processes; `dtype` is autocast's."""
        self.loss = loss
        self.replicas = replicas
        self.optimizer = optimizer
        self.config = config
        self.device = device
        self.dtype = dtype
        self.scaler: torch.amp.GradScaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.device_step: DeviceStep | None = None
        self.graphs: GraphedStep | None = None
        if captures_steps(
            config,
            device,
            dtype,
            distills=loss.distillation is not None,
            processes=replicas.world.size,
            on_message=on_message,
        ):
            self.graphs = GraphedStep(loss.model, optimizer, max_grad_norm=config.max_grad_norm, dtype=dtype)
        elif device.type != "cpu":
            self.device_step = DeviceStep(
                loss, optimizer, self.scaler, max_grad_norm=config.max_grad_norm, dtype=dtype, replicas=replicas
            )

    @property
    def launched(self) -> GraphedStep | DeviceStep | None:
        """Return the step that the host launches without waiting for it; None on a CPU."""
        return self.graphs or self.device_step

    def prepare(self, batch: PackedBatch) -> Any:
        """Return a micro-batch as the steps take it: of type `FilledBatch` for CUDA graphs, else packed."""
        return batch if self.launched is None else self.launched.prepare(batch)

    def restored(self) -> None:
        """Prepare for weights and optimiser states that were replaced, as by a checkpoint's."""
        if self.graphs is not None:
            self.graphs.forget()

    def step(self, loaded: LoadedStep) -> tuple[Totals | StepStats, float]:
        """Take an optimiser step; return its losses and the norm of its gradient.

        On a CPU the losses are those of this process alone, fp64; on a GPU those of all, read later, with a norm of
        NaN. Raises `TrainingError` for a non-finite gradient on a CPU, unless --on-nan skips it.
        """
        with self.optimizer.copies():
            if self.launched is None:
                return self._on_cpu(loaded)
            return self._launch(self.launched, loaded), math.nan

    @torch.no_grad()
    def forward(self, loaded: LoadedStep) -> Totals:
        """Return the losses of a step that changes no weight, of this process alone."""
        losses = Totals()
        batches = real_batches(loaded)
        parts = self.loss.parts(batches, loaded.counts)
        with self.optimizer.copies():
            for batch, _, counted, _ in self.replicas.passes(batches, parts, loaded.passes):
                with autocast(self.device, self.dtype):
                    output = self.loss.model(batch.to(self.device))
                if counted:
                    losses.add(output)
        return losses

    def refuse(self, step: int, losses: Totals, batches: Sequence[PackedBatch], where: str = "") -> NoReturn:
        """Raise `TrainingError` for a non-finite gradient; `where` names the parameter and element, if known.

        The weights are those before the step."""
        assert self.config.lr is not None  # `pretrain` has chosen it
        self.optimizer.zero_grad(set_to_none=True)
        problem = f"step {step}: the gradient is not a finite number"
        self.require_finite_weights(problem)
        # On a GPU an id outside of the embedding table gives NaN instead of an error.
        for batch in batches:
            try:
                self.loss.model.check_ranges(batch)
            except UserError as error:
                raise TrainingError(f"{problem}, because {error}") from None
        raise TrainingError(
            f"{problem} (loss {losses.read()['loss']}{where}); start again in another --out with an --lr below"
            f" {self.config.lr:g} or a longer --warmup, or with --on-nan skip"
        )

    def require_finite_weights(self, problem: str) -> None:
        """Raise `TrainingError`, which begins with `problem`, if a weight is NaN or infinite: no later step would
        change that."""
        name = first_non_finite(self.loss.model)
        if name is not None:
            raise TrainingError(
                f"{problem}, because {name} holds NaN or infinity; continue from the last checkpoint with --resume"
            )

    def _launch(self, step: GraphedStep | DeviceStep, loaded: LoadedStep) -> StepStats:
        """Launch a step; once more, without them, if kernels of its backward pass do not compile."""
        passes = {"passes": loaded.passes} if loaded.passes and isinstance(step, DeviceStep) else {}
        return until_compiled(
            functools.partial(step, loaded.batches, loaded.spec.learning_rate, loaded.counts, **passes)
        )

    def _on_cpu(self, loaded: LoadedStep) -> tuple[Totals, float]:
        """Take a step on a CPU; return its losses, of this process alone, and the norm of its gradient."""
        self.loss.model.train()
        losses, batches = Totals(), loaded.batches
        parts = self.loss.parts(batches, loaded.counts)
        for batch, part, counted, last in self.replicas.passes(batches, parts, loaded.passes):
            with self.replicas.accumulating(last):
                with autocast(self.device, self.dtype):
                    loss, output = self.replicas(batch.to(self.device), part)
                loss.backward()
            if counted:
                losses.add(output)
        try:
            norm = float(self.optimizer.clip_gradients(self.config.max_grad_norm))
        except GradientError as error:
            if self.config.on_nan == "stop":
                self.refuse(loaded.spec.number, losses, batches, f"; {error.where}")
            self.optimizer.zero_grad(set_to_none=True)
            return losses, math.nan
        set_learning_rate(self.optimizer, loaded.spec.learning_rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses, norm


def real_batches(loaded: LoadedStep) -> list[PackedBatch]:
    """Return a step's micro-batches without what CUDA graphs pad them with."""
    return [batch.real if isinstance(batch, FilledBatch) else batch for batch in loaded.batches]
