"""transformers in training on padded batches: eager and compiled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from fastbert.benchmarks.peers import Arrays
from fastbert.benchmarks.peers.padded_batches import padded
from fastbert.benchmarks.peers.training import Peer

IGNORED = -100


class Step(Peer):
    """The model of transformers with its default attention. Batches are padded to their longest sequence; labels of
    masked-LM are -100 at other positions, so logits of every position are computed."""

    def load(self, folder: Path, name: str) -> nn.Module:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        model: nn.Module = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32)
        self.call: Any = model
        return model

    def prepare(self, arrays: Arrays) -> Any:
        inputs = padded({**arrays, "padded_to": arrays["lengths"].max()})
        if "labels" in arrays:
            flat = np.full(int(arrays["lengths"].sum()), IGNORED, np.int64)
            flat[arrays["masked_positions"]] = arrays["labels"]
            labels = np.full(inputs["input_ids"].shape, IGNORED, np.int64)
            labels[inputs["attention_mask"].astype(bool)] = flat
            inputs["labels"] = labels
        else:
            inputs["labels"] = arrays["classes"]
        if "next_sentence_label" in arrays:
            inputs["next_sentence_label"] = arrays["next_sentence_label"]
        return {name: torch.from_numpy(values) for name, values in inputs.items()}

    def loss(self, batch: Any) -> Tensor:
        loss: Tensor = self.call(**batch).loss
        return loss


class CompiledStep(Step):
    """The same through `torch.compile`, with its default handling of dynamic shapes."""

    def open(self, arrays: Arrays) -> dict[str, Any]:
        details = super().open(arrays)
        self.call: Any = torch.compile(self.model)
        began = time.perf_counter()
        for batch in self.batches:
            self._autocast_loss(batch).backward()
        self.model.zero_grad(set_to_none=True)
        return {**details, "compile_seconds": round(time.perf_counter() - began, 1)}
