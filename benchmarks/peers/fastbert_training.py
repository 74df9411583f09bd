"""fastbert in training as a contender: packed batches, fastbert's optimizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastbert import PackedBatch
from fastbert.benchmarks.peers import Arrays
from fastbert.benchmarks.peers.training import LEARNING_RATE, MOST_NORM, WEIGHT_DECAY, Peer
from fastbert.models.registry import find_class
from fastbert.ops import dispatch
from fastbert.training.optimizer import AdamW, adamw


class FastbertUpdate:
    """The weight update of a step: clipping, fastbert's AdamW."""

    def __init__(self, model: nn.Module, lr: float = LEARNING_RATE) -> None:
        self.model = model
        self.optimizer: AdamW = adamw(model, lr=lr, weight_decay=WEIGHT_DECAY)

    def clip(self) -> None:
        """Set the joint norm to which the step scales the gradients."""
        self.optimizer.clip_gradients(MOST_NORM)

    def step(self) -> None:
        """Take an AdamW step and drop the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Step(Peer):
    """A model of any architecture on packed batches."""

    make_update: Callable[[nn.Module], Any] = FastbertUpdate

    def load(self, folder: Path, name: str) -> nn.Module:
        kind = find_class(name)
        assert kind is not None
        return kind.from_pretrained(folder, dtype=torch.float32)

    def open(self, arrays: Arrays) -> dict[str, Any]:
        details = super().open(arrays)
        choices = dispatch.report(torch.device("cpu"))
        return {**details, "backends": {choice.operation: choice.backend for choice in choices}}

    def prepare(self, arrays: Arrays) -> Any:
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
        lengths = tensors.pop("lengths")
        classes = tensors.pop("classes", None)
        batch = PackedBatch(
            cu_seqlens=nn.functional.pad(lengths.cumsum(0), (1, 0)).int(), max_seqlen=int(lengths.max()), **tensors
        )
        return batch, classes

    def gradients(self) -> dict[str, Tensor]:
        by_name = super().gradients()
        renamed = {self.model.key_map.file_name(name): gradient for name, gradient in by_name.items()}
        joined: dict[str, Tensor] = self.model.architecture.to_file(renamed)
        return joined

    def loss(self, batch: Any) -> Tensor:
        packed, classes = batch
        output = self.model(packed) if classes is None else self.model(packed, labels=classes)
        loss: Tensor = output.loss
        return loss
