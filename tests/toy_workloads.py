"""Workloads of the training benchmark on a toy model."""

from pathlib import Path

import numpy as np

from fastbert.benchmarks.training import workloads
from fastbert.benchmarks.training.workloads import TrainingWorkload
from fastbert.config import BertConfig

TOY = BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)


def toy_workload(classifies: bool = False, lengths: tuple[int, ...] = (3, 7, 5, 9)) -> TrainingWorkload:
    """Two batches of two sequences."""
    batches = workloads.random_batches(np.array(lengths), 2, TOY.vocab_size)
    if classifies:
        return workloads.classification("classes", "toy", TOY, batches, None)
    return workloads.pretraining("toy", "toy", TOY, batches)


def text_file(path: Path, seed: int, documents: int = 30) -> Path:
    """Documents of sentences of made-up words."""
    rng = np.random.default_rng(seed % 2**32)
    words = ["".join(rng.choice(list("abcdefgh"), rng.integers(2, 8))) for _ in range(200)]
    sentences = [" ".join(rng.choice(words, rng.integers(3, 12))) + "." for _ in range(documents * 6)]
    groups = ["\n".join(sentences[first : first + 6]) for first in range(0, len(sentences), 6)]
    path.write_text("\n\n".join(groups) + "\n")
    return path
