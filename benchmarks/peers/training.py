"""The base of contenders in training: batches in rotation, a step in phases, and the values to be compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastbert.benchmarks.peers import Arrays

AUTOCAST: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}
LEARNING_RATE, WEIGHT_DECAY, EPS = 1e-5, 0.01, 1e-6
MOST_NORM = 1.0
SAMPLES = 2000  # of each parameter's gradient that are compared


class PlainUpdate:
    """The weight update of a step, by torch alone: clipping, fused AdamW, gradients dropped."""

    def __init__(self, model: nn.Module, lr: float = LEARNING_RATE) -> None:
        self.parameters: list[nn.Parameter] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in self.parameters if parameter.dim() > 1]
        vectors = [parameter for parameter in self.parameters if parameter.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": WEIGHT_DECAY},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer: torch.optim.AdamW = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=EPS, fused=True)

    def clip(self) -> None:
        """Scale the gradients so that their joint norm is at most 1."""
        nn.utils.clip_grad_norm_(self.parameters, MOST_NORM)

    def step(self) -> None:
        """Take an AdamW step and drop the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Peer:
    """A model in training with its optimizer; subclasses define how it is loaded and fed."""

    make_update: Callable[[nn.Module], Any] = PlainUpdate
    """Makes the object with `clip`, `step` and `optimizer`."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        torch.set_num_threads(threads)
        self.autocast_dtype: torch.dtype | None = AUTOCAST[dtype]
        name = class_name(folder)
        self.head: str = name[name.index("For") :]
        self.model: nn.Module = self.load(folder, name).train()
        self.update: Any = type(self).make_update(self.model)
        self.optimizer: torch.optim.Optimizer = self.update.optimizer

    def load(self, folder: Path, name: str) -> nn.Module:
        """Load the model of the class that transformers calls `name`, weights in fp32."""
        raise NotImplementedError(f"{type(self).__name__} does not implement loading {name}")

    def prepare(self, arrays: Arrays) -> Any:
        """Convert a batch of a workload to this contender's form."""
        raise NotImplementedError(f"{type(self).__name__} does not implement batches")

    def loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch, fp32 scalar."""
        raise NotImplementedError(f"{type(self).__name__} does not implement a loss")

    def open(self, arrays: Arrays) -> dict[str, Any]:
        torch.manual_seed(0)  # for dropout drawn from torch
        self.batches: list[Any] = [self.prepare(batch) for batch in split(arrays)]
        self.next: int = 0
        return {}

    def phases(self) -> dict[str, Callable[[], Any]]:
        batch, self.next = self.batches[self.next], (self.next + 1) % len(self.batches)
        results: dict[str, Tensor] = {}

        def forward() -> None:
            results["loss"] = self._autocast_loss(batch)

        return {
            "forward": forward,
            "backward": lambda: results.pop("loss").backward(),
            "clip": self.update.clip,
            "optimizer": self.update.step,
        }

    def values(self) -> np.ndarray:
        self.model.eval()
        loss = self._autocast_loss(self.batches[0])
        loss.backward()
        gradients = self.gradients()
        norms = torch.stack([gradient.double().norm() for gradient in gradients.values()])
        # Evenly spaced, and by name: whole gradients would be as large as the model.
        sampled = [gradients[name].flatten() for name in sorted(gradients)]
        sampled = [flat[:: max(1, flat.numel() // SAMPLES)].double() for flat in sampled]
        result = torch.cat([loss.detach().double()[None], norms.norm()[None], *sampled]).numpy()
        self.model.zero_grad(set_to_none=True)
        self.model.train()
        return result

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the parameters by their names in transformers' model."""
        return {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}

    def _autocast_loss(self, batch: Any) -> Tensor:
        dtype = self.autocast_dtype
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            return self.loss(batch)


def class_name(folder: Path) -> str:
    """Return the name of the class that the model in a folder was saved from."""
    name: str = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    return name


def split(arrays: Arrays) -> list[dict[str, np.ndarray]]:
    """Return the batches of a workload; keys are the batch's number, a dot and a name."""
    batches: dict[int, dict[str, np.ndarray]] = {}
    for key, values in arrays.items():
        number, _, name = key.partition(".")
        batches.setdefault(int(number), {})[name] = values
    return [batches[number] for number in sorted(batches)]
