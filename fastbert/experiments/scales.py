"""The sizes of experiments: model, corpus, and training of each run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastbert.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The sizes of an experiment's runs, for two CPU cores."""

    name: str
    about: str
    hidden_size: int
    layers: int
    heads: int
    vocab_size: int
    max_length: int
    steps: int
    """Optimiser steps of pre-training."""
    batch_size: int
    train_examples: int
    """The most examples of a training set."""
    eval_examples: int
    finetune_steps: int
    finetune_batch: int
    seeds: int
    feature_epochs: int
    """Epochs of taggers on frozen features."""

    def model(self, **changes: Any) -> dict[str, Any]:
        """Return the model's configuration, with transformers' field names."""
        width = changes.get("hidden_size", self.hidden_size)
        return {
            "hidden_size": width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * width,
            "max_position_embeddings": 2 * self.max_length,
            **changes,
        }


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            name="smoke",
            about="seconds: checks that everything runs; its scores mean nothing",
            hidden_size=32, layers=2, heads=2, vocab_size=1024, max_length=32, steps=6, batch_size=8,
            train_examples=24, eval_examples=12, finetune_steps=2, finetune_batch=8, seeds=2, feature_epochs=1,
        ),
        Scale(
            name="mini",
            about="about two hours: 4 layers, 256 wide, tens of millions of tokens",
            hidden_size=256, layers=4, heads=4, vocab_size=8192, max_length=128, steps=9000, batch_size=32,
            train_examples=8000, eval_examples=2000, finetune_steps=500, finetune_batch=32, seeds=3, feature_epochs=4,
        ),
        Scale(
            name="small",
            about="half a day: 4 layers, 512 wide",
            hidden_size=512, layers=4, heads=8, vocab_size=16384, max_length=128, steps=14000, batch_size=32,
            train_examples=20000, eval_examples=4000, finetune_steps=1500, finetune_batch=32, seeds=3,
            feature_epochs=6,
        ),
    )
}  # fmt: skip


def find_scale(name: str) -> Scale:
    """Return a scale by its name. Raises `UserError` for an unknown one."""
    if name not in SCALES:
        raise UserError(f"--scale {name}: is not one of {', '.join(SCALES)}")
    return SCALES[name]
