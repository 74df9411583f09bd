"""The baseline of taggers on features: the same tagger on word vectors that are learned with it, from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fastbert.features.extract import Features
from fastbert.features.tagging import FeatureTraining, Scorer, Table7Row, train_rows
from fastbert.models.bilstm import BiLstmConfig, BiLstmTagger
from fastbert.tasks.examples import Dataset, TaggedExample

ROW = "Learned Word Vectors"
UNKNOWN = 0


class LearnedVectorTagger(nn.Module):
    """A tagger that reads word vectors of its own."""

    def __init__(self, config: BiLstmConfig, words: int) -> None:
        super().__init__()
        self.vectors: nn.Embedding = nn.Embedding(words, config.input_size)
        self.tagger: BiLstmTagger = BiLstmTagger(config)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return logits fp32 (words, num_labels) of words int64 (words, 1, 1) of sentences end to end, whose `lengths`
        int64 (sentences,) are on the CPU."""
        logits: Tensor = self.tagger(self.vectors(ids.flatten()).unsqueeze(1), lengths)
        return logits


def tag_with_learned_vectors(
    size: int,
    train: Dataset[TaggedExample],
    dev: Dataset[TaggedExample],
    training: FeatureTraining,
    *,
    score: Scorer | None = None,
    progress: Callable[[str, int, float], None] | None = None,
) -> Table7Row:
    """Train a tagger on learned vectors of `size` numbers and score it on the development set, as `table7` does on
    hidden states. Words that occur once in the training set share the vector of unknown words."""
    counts = Counter(word for example in train for word in example.words)
    ids = {word: number for number, word in enumerate((w for w, count in counts.items() if count > 1), UNKNOWN + 1)}
    features = [_ids_of(ids, [example.words for example in dataset]) for dataset in (train, dev)]
    rows = train_rows(
        [(ROW, (0,), False)],
        features,
        (train, dev),
        training,
        score=score,
        progress=progress,
        make_tagger=lambda config: LearnedVectorTagger(replace(config, input_size=size), len(ids) + 1),
    )
    return rows[0]


def _ids_of(ids: dict[str, int], sentences: Sequence[Sequence[str]]) -> Features:
    """Return the number of each word, int64 (words, 1, 1), as features."""
    words = [word for sentence in sentences for word in sentence]
    values = torch.tensor([ids.get(word, UNKNOWN) for word in words]).reshape(-1, 1, 1)
    offsets = np.concatenate(([0], np.cumsum([len(sentence) for sentence in sentences], dtype=np.int64)))
    return Features(values=values, offsets=offsets, items=tuple(words))
