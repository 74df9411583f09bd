"""NaN and infinities at random places of a training step: the gradient, the loss, activations, weights, the optimiser's
state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastbert.training.optimizer import AdamW, GradientError
from fastbert.training.step_computing import StepComputer

PLACES = ("gradient", "loss", "activation", "moment", "weight")
VALUES = (float("nan"), float("inf"), float("-inf"))


@dataclass
class Poison:
    """A value that is put into an element of a place in one step, the first time that it is computed."""

    place: str
    step: int
    value: float
    seed: int
    model: nn.Module | None = None
    """The model of the run, once the step has begun."""
    sites: list[str] = field(default_factory=list)
    """Where the value was put."""

    def put(self, name: str, tensor: Tensor, draw: random.Random) -> None:
        """Put the value into one element."""
        with torch.no_grad():
            position = draw.randrange(tensor.numel())
            tensor.view(-1)[position] = self.value
        self.sites.append(f"{name}[{position}]")

    @contextmanager
    def injected(self) -> Iterator[None]:
        """Put the value where it belongs in all runs of the block."""
        original_step, original_clip = StepComputer.step, AdamW.clip_gradients
        draw = random.Random(self.seed)

        def step(computer: StepComputer, loaded: Any) -> Any:
            self.model = computer.loss.model
            if loaded.spec.number != self.step or self.sites:
                return original_step(computer, loaded)
            if self.place == "weight":
                self.put(*draw.choice(list(self.model.named_parameters())), draw)
            elif self.place == "moment":
                names = {id(parameter): name for name, parameter in self.model.named_parameters()}
                parameter, state = draw.choice(list(computer.optimizer.state.items()))
                moments = [name for name, value in state.items() if torch.is_tensor(value) and value.dim()]
                name = draw.choice(moments or list(state))
                self.put(f"{name} of {names[id(parameter)]}", state[name], draw)
            hooks = self._hooks(computer, draw)
            try:
                return original_step(computer, loaded)
            finally:
                for hook in hooks:
                    hook.remove()

        def clip(optimizer: AdamW, max_norm: float) -> Tensor:
            if self.place == "gradient" and self._is_now and not self.sites:
                parameters = [each for group in optimizer.param_groups for each in group["params"]]
                parameter = draw.choice([each for each in parameters if each.grad is not None])
                self.put("gradient", parameter.grad, draw)
            return original_clip(optimizer, max_norm)

        def counted(computer: StepComputer, loaded: Any) -> Any:
            self._is_now = loaded.spec.number == self.step
            return step(computer, loaded)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StepComputer, "step", counted)
            patch.setattr(AdamW, "clip_gradients", clip)
            yield

    _is_now: bool = False

    def _hooks(self, computer: StepComputer, draw: random.Random) -> list[Any]:
        """Return the hook of an activation or of the loss: the output of a module of one of the step's batches."""
        if self.place not in ("activation", "loss"):
            return []
        module: nn.Module = computer.loss
        name = "loss"
        if self.place == "activation":
            # Fused layers do not call their parts.
            names = ("embeddings", "encoder", "pooler", "transform", "seq_relationship")
            chosen = [(key, each) for key, each in computer.loss.model.named_modules() if key.endswith(names)]
            name, module = draw.choice(chosen)

        def hook(_: nn.Module, __: Any, output: Any) -> Any:
            first, rest = (output[0], output[1:]) if isinstance(output, tuple) else (output, None)
            if self.sites or not isinstance(first, Tensor) or not first.is_floating_point():
                return None
            changed = first.clone()
            if changed.dim():
                flat = changed.flatten()
                position = draw.randrange(flat.numel())
                mask = torch.zeros_like(flat, dtype=torch.bool)
                mask[position] = True
                changed = torch.where(mask, flat * self.value, flat).view(first.shape)
                self.sites.append(f"{name}[{position}]")
            else:
                changed = first * self.value
                self.sites.append(name)
            return changed if rest is None else (changed, *rest)

        return [module.register_forward_hook(hook)]


@contextmanager
def left_out(step: int) -> Iterator[None]:
    """Let the gradient of a step count as not finite, whatever it is."""
    original_step, original_clip = StepComputer.step, AdamW.clip_gradients
    numbers = [0]

    def counted(computer: StepComputer, loaded: Any) -> Any:
        numbers[0] = loaded.spec.number
        return original_step(computer, loaded)

    def clip(optimizer: AdamW, max_norm: float) -> Tensor:
        if numbers[0] == step:
            raise GradientError("left out")
        return original_clip(optimizer, max_norm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepComputer, "step", counted)
        patch.setattr(AdamW, "clip_gradients", clip)
        yield
