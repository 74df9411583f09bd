"""Averages of a run's weights: an exponential moving one, kept in fp32, and the mean of the last checkpoints.

The moving average is a field `ema` of the optimiser's state, so that checkpoints store it and a resumed run continues
it to the bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastbert.errors import CheckpointError
from fastbert.models.base import PreTrainedModel
from fastbert.training import checkpoint
from fastbert.training.averaging_flags import AveragingFlags
from fastbert.training.optimizer_entries import local

EMA, MASTER = "ema", "master"
Shard = Callable[[Tensor, Tensor], Tensor]
"""(a whole tensor, a sharded one) -> this process's part of the first."""


def decay_at(decay: float, step: int) -> float:
    """Return the decay of the moving average after `step` steps.

    Lower at first, so that it forgets the initial weights: min(decay, (1 + step) / (10 + step)), as in TensorFlow's
    moving averages with their number of updates.
    """
    return min(decay, (1.0 + step) / (10.0 + step))


STEPPED = ("step", "momentum_buffer")
"""What the state of a parameter holds once it has been updated, by AdamW and its kin and by Muon."""


class MovingAverage:
    """The exponential moving average of the weights that an optimiser has updated, or of their fp32 masters.

    It begins with the weights after a parameter's first step. A parameter without steps is its own average.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        self.optimizer = optimizer
        self.decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the weights after step `step`, counted from 1. No host-device sync."""
        averages, sources = [], []
        for parameter in self._parameters():
            state = self.optimizer.state.get(parameter)
            if not state or state.keys().isdisjoint(STEPPED):
                continue
            source = state.get(MASTER, parameter)
            if EMA not in state:
                state[EMA] = source.detach().to(torch.float32, copy=True)
            averages.append(local(state[EMA]))
            sources.append(local(source).float())
        if averages:
            torch._foreach_lerp_(averages, sources, 1.0 - decay_at(self.decay, step))

    @torch.no_grad()
    def copy_to_weights(self) -> None:
        """Replace the weights by their averages, in place."""
        for parameter, average in self._averages():
            local(parameter).copy_(local(average))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Use the averages as weights within the block; afterwards the weights are what they were, bit for bit."""
        saved = [(parameter, local(parameter.detach()).clone()) for parameter, _ in self._averages()]
        self.copy_to_weights()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in saved:
                    local(parameter).copy_(value)

    def _averages(self) -> list[tuple[Tensor, Tensor]]:
        state = self.optimizer.state
        return [
            (parameter, state[parameter][EMA]) for parameter in self._parameters() if EMA in state.get(parameter, {})
        ]

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def mean_of_checkpoints(root: Path, count: int) -> tuple[dict[str, Tensor], int]:
    """Return the mean of the model's tensors in the newest `count` whole checkpoints under `root`, and their number.

    The mean is that of fp32 masters where there are any, and is fp32; integers are those of the newest checkpoint.
    Damaged checkpoints raise `CheckpointError`.
    """
    folders = checkpoint.find(root)[-count:]
    if not folders:
        raise CheckpointError(f"{root}: holds no checkpoint to average")
    mean: dict[str, Tensor] = {}
    for number, folder in enumerate(reversed(folders), start=1):
        loaded = checkpoint.load(folder)
        tensors = {name: loaded.optimizer.get(f"{MASTER}/{name}", tensor) for name, tensor in loaded.model.items()}
        if number == 1:
            mean = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
            continue
        if tensors.keys() != mean.keys():
            raise CheckpointError(f"{folder}: belongs to a different model than {folders[-1]}")
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                mean[name].lerp_(tensor.float(), 1.0 / number)
    return mean, len(folders)


@torch.no_grad()
def load_mean(model: PreTrainedModel, root: Path, count: int, shard: Shard | None = None) -> int:
    """Replace a model's weights by the mean of its last checkpoints; return their number. Raises `CheckpointError`."""
    mean, averaged = mean_of_checkpoints(root, count)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in model.tied_keys:
            tensor.copy_(mean[name] if shard is None else shard(mean[name].to(tensor.dtype), tensor))
    return averaged


def _reshard(model: Any) -> None:
    """Drop the weights that FSDP2 has gathered before they were changed."""
    if hasattr(model, "reshard"):
        model.reshard()


class Averaging:
    """The averages that flags choose: call `update` after each step, validate in `applied`, and `finish` at the end."""

    def __init__(
        self, flags: AveragingFlags, model: PreTrainedModel, optimizer: torch.optim.Optimizer, checkpoints: Path
    ) -> None:
        self.flags = flags
        self.model = model
        self.checkpoints = checkpoints
        self.moving: MovingAverage | None = None if flags.ema is None else MovingAverage(optimizer, flags.ema)

    def update(self, step: int) -> None:
        """Add the weights after a step, counted from 1."""
        if self.moving is not None:
            self.moving.update(step)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Use the moving average, if there is one, as weights within the block."""
        if self.moving is None:
            yield
            return
        try:
            with self.moving.applied():
                _reshard(self.model)
                yield
        finally:
            _reshard(self.model)

    def finish(self, shard: Shard | None = None) -> str | None:
        """Replace the weights by those that the run saves, after its last checkpoint; return what they are.

        `shard(whole, like)` cuts a whole tensor like a sharded one of the model, as in `checkpoint.restore`.
        """
        _reshard(self.model)
        if self.moving is not None:
            self.moving.copy_to_weights()
            return f"the model is the moving average of the weights (--ema {self.flags.ema:g})"
        if self.flags.average_last is None:
            return None
        averaged = load_mean(self.model, self.checkpoints, self.flags.average_last, shard)
        return f"the model is the mean of the last {averaged} checkpoints (--average-last {self.flags.average_last})"
