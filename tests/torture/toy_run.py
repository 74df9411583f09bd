"""A pre-training run of a few steps on a model of 2 layers, for checks that repeat it hundreds of times."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastbert.training.config import PretrainConfig


def toy_config(folder: Path, **flags: Any) -> PretrainConfig:
    """Write a corpus, a vocabulary and the shape of a model to `folder`; return the configuration of a run on them."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(30)]
    lines = []
    for _ in range(40):
        lines += [" ".join(draw.choices(words, k=9)) + "." for _ in range(6)]
        lines.append("")
    (folder / "toy.txt").write_text("\n".join(lines))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *sorted(set(words))]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    model = {
        "vocab_size": len(vocabulary), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 32,
    }  # fmt: skip
    (folder / "model.json").write_text(json.dumps(model))
    config = PretrainConfig(
        corpus=(folder / "toy.txt",),
        tokenizer=folder / "vocab.txt",
        model=str(folder / "model.json"),
        out=folder / "run",
        text_format="lines",
        steps=5,
        batch_size=4,
        micro_batch=2,
        max_length=16,
        lr=3e-3,
        dtype="fp32",
        device="cpu",
        log_every=1,
        eval_every=100,
        eval_samples=2,
        checkpoint_every=2,
        keep_checkpoints=10,
    )
    return replace(config, **flags)
