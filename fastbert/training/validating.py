"""The validation of a run: losses and accuracies of its model on held-out sequences, without dropout."""

from __future__ import annotations

from typing import Any

import torch

from fastbert.distributed.world import World
from fastbert.packing import PackedBatch
from fastbert.tasks.predicting import autocast
from fastbert.training import defaults
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.defaults import EVALUATIONS
from fastbert.training.metrics import Totals
from fastbert.training.step_spec import Position, StepSource


class Validator:
    """Validates a model in all processes of a run, in micro-batches of at most `micro_batch` sequences."""

    def __init__(
        self,
        model: Any,
        data: StepSource,
        world: World,
        *,
        device: torch.device,
        dtype: torch.dtype,
        micro_batch: int,
        gathers: bool,
    ) -> None:
        """`dtype` is autocast's; `gathers` is True if all processes must compute as many batches."""
        self.model = model
        self.data = data
        self.world = world
        self.device = device
        self.dtype = dtype
        self.micro_batch = micro_batch
        self.gathers = gathers

    @torch.no_grad()
    def totals(self, samples: int, progress: float) -> tuple[Totals, int]:
        """Return the sums of losses over `samples` sequences, fp64, and their tokens, over all processes; the model is
        in training mode afterwards. `progress` is the finished fraction of the run."""
        totals, tokens = Totals(), 0
        self.model.eval()
        for batch, counted in self._batches(samples, progress):
            with autocast(self.device, self.dtype):
                output = self.model(batch.to(self.device))
            if counted:
                totals.add(output)
                tokens += batch.num_tokens
        if self.world.size > 1:
            numbers = torch.cat((totals.numbers(), torch.tensor([tokens], dtype=torch.float64)))
            self.world.sum(numbers)
            totals.set_numbers(numbers[:-1])
            tokens = round(float(numbers[-1]))
        self.model.train()
        return totals, tokens

    def _batches(self, samples: int, progress: float) -> list[tuple[PackedBatch, bool]]:
        """Return this process's batches of a validation, each with True; where all processes must compute as many,
        repeated ones follow, with False."""
        world = self.world
        batches = self.data.validation_batches(samples, self.micro_batch, progress, world.rank, world.size)
        if not self.gathers:
            return [(batch, True) for batch in batches]
        numbers = torch.zeros(world.size, dtype=torch.float64)
        numbers[world.rank] = len(batches)
        most = int(world.sum(numbers).max())
        others = batches or self.data.validation_batches(samples, self.micro_batch, progress, 0, world.size)
        return [(batch, True) for batch in batches] + [(others[0], False)] * (most - len(batches))


def validation_samples(config: PretrainConfig, budget: Budget, position: Position) -> int:
    """Return the sequences per validation: --eval-samples, else few enough that validating takes at most 4 % of the
    training time."""
    if config.eval_samples is not None:
        return config.eval_samples
    assert config.batch_size is not None  # `pretrain` has chosen it
    steps, every = budget.steps, config.eval_every
    if steps is None or budget.seconds is not None:  # a run by the clock goes on as it began
        steps = round(position.step / max(budget.progress(position.step, position.seconds), 1e-9))
    return defaults.evaluation_samples(steps * config.batch_size, EVALUATIONS if every is None else steps // every)
