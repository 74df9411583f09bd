"""Checkpoints of a model of a few hundred weights, for tests of what becomes of them."""

from __future__ import annotations

from pathlib import Path

from fastbert.config import BertConfig
from fastbert.models import BertForPreTraining
from fastbert.training.optimizer import adamw
from fastbert.training.saving import Checkpoints
from fastbert.training.snapshot import snapshot

BERT = BertConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)


class Writer:
    """A model and its optimiser, saved at any step."""

    def __init__(self, root: Path, keep: int = 2) -> None:
        self.model = BertForPreTraining(BERT)
        self.model.init_weights(seed=0)
        self.optimizer = adamw(self.model, lr=1e-3, weight_decay=0.0)
        self.checkpoints = Checkpoints(root, keep)

    def save(self, *steps: int) -> None:
        for step in steps:
            self.checkpoints.save(snapshot(self.model, self.optimizer), {"step": step})

    def names(self) -> list[int]:
        return [int(name[5:]) for name in self.checkpoints.names()]
