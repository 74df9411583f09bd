"""Table 7 of the BERT paper: a BiLSTM on frozen features of six kinds, scored by entities on a development set.

The encoder runs once over both sets; all its hidden states stay in memory, and each row of the table trains on some.
Static word vectors give one row more, of the same tagger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.errors import UserError, require_whole
from fastbert.features.extract import Features, hidden_states
from fastbert.models.bilstm import BiLstmConfig, BiLstmTagger
from fastbert.models.encoder import EncoderModel
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.tasks.rows import runs
from fastbert.tokenizers.tokenizer import Tokenizer

Tags = list[list[str]]
Scorer = Callable[[Tags, Tags], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class FeatureTraining:
    """The training of each row's tagger: Adam at a constant rate; the best epoch on the development set counts, or with
    `last_epoch` the last one, whose score was not chosen by itself."""

    hidden_size: int = 768
    num_layers: int = 2
    dropout: float = 0.1
    epochs: int = 10
    batch_size: int = 32
    lr: float = 1e-3
    seed: int = 0
    max_length: int | None = None
    last_epoch: bool = False

    def __post_init__(self) -> None:
        require_whole("epochs", self.epochs, 1)
        require_whole("batch_size", self.batch_size, 1)
        require_whole("hidden_size", self.hidden_size, 2)
        require_whole("seed", self.seed, 0)
        if self.seed >= 1 << 63:
            raise UserError(f"seed={self.seed!r} must be below 2^63")
        if not 0 < self.lr < math.inf:
            raise UserError(f"lr={self.lr!r} must be above 0 and finite")


@dataclass(frozen=True, kw_only=True)
class Table7Row:
    """A kind of features and the best score with it."""

    name: str
    layers: tuple[int, ...]
    mixed: bool
    f1: float
    """The score: F1 of entities, or the accuracy if the tags are not of entities."""
    epoch: int
    """The epoch of the best score, from 1."""
    metric: str = "f1"
    """The name of the score, "f1" or "accuracy"."""


def table7_rows(count: int) -> list[tuple[str, tuple[int, ...], bool]]:
    """Return the name, the hidden states, and True for a weighted sum, of each row for a model of `count` layers. With
    fewer than four layers, the last four are all of them."""
    last = tuple(range(max(count - 3, 1), count + 1))
    last_count = ("One", "Two", "Three", "Four")[len(last) - 1]
    return [
        ("Embeddings", (0,), False),
        ("Second-to-Last Hidden", (count - 1,), False),
        ("Last Hidden", (count,), False),
        (f"Weighted Sum Last {last_count} Hidden", last, True),
        (f"Concat Last {last_count} Hidden", last, False),
        (f"Weighted Sum All {count} Layers", tuple(range(1, count + 1)), True),
    ]


def elmo_rows(count: int) -> list[tuple[str, tuple[int, ...], bool]]:
    """Return the rows for an ELMo of `count` layers, as `table7_rows` does: each layer, the character convolution
    included, all side by side, and their weighted sum (Peters et al. 2018, equation 1)."""
    every = tuple(range(count + 1))
    ordinals = ("First", "Second", "Third", "Fourth")
    layers = [
        (f"{ordinals[n]} biLSTM" if n < len(ordinals) else f"biLSTM {n + 1}", (n + 1,), False) for n in range(count)
    ]
    return [
        ("Character CNN", (0,), False),
        *layers,
        (f"Concat All {count + 1} Layers", every, False),
        (f"ELMo: Weighted Sum of {count + 1} Layers", every, True),
    ]


def rows_of(model: EncoderModel) -> list[tuple[str, tuple[int, ...], bool]]:
    """Return the rows of hidden states for a model: of `elmo_rows` for an ELMo, else of `table7_rows`."""
    rows = elmo_rows if model.config.model_type == "elmo" else table7_rows
    return rows(len(model.encoder.layer))


def table7(
    model: EncoderModel,
    tokenizer: Tokenizer,
    train: Dataset[TaggedExample],
    dev: Dataset[TaggedExample],
    training: FeatureTraining = FeatureTraining(),
    *,
    score: Scorer | None = None,
    progress: Callable[[str, int, float], None] | None = None,
) -> list[Table7Row]:
    """Train and score the rows of a model by the F1 of entities on the development set.

    `score(gold, predicted)` replaces `fastbert.tasks.metrics.tagging.tagging_scores`, whose accuracy counts if the tags
    are not of entities. `progress` is called with a row's name, the epoch and its score.
    """
    features = [
        hidden_states(model, tokenizer, [example.words for example in dataset], max_length=training.max_length)
        for dataset in (train, dev)
    ]
    return train_rows(rows_of(model), features, (train, dev), training, score=score, progress=progress)


def train_rows(
    rows: Sequence[tuple[str, tuple[int, ...], bool]],
    features: Sequence[Features],
    datasets: Sequence[Dataset[TaggedExample]],
    training: FeatureTraining,
    *,
    score: Scorer | None = None,
    progress: Callable[[str, int, float], None] | None = None,
    make_tagger: Callable[[BiLstmConfig], nn.Module] = BiLstmTagger,
) -> list[Table7Row]:
    """Train and score a tagger per row on features of every word, `values` fp32 (words, layers, width), of a training
    and a development set. A row is its name, its layers, and True for a weighted sum; the rest is as in `table7`.

    `make_tagger` makes another tagger than `BiLstmTagger` of its config; it is called with the values of a batch, of
    any dtype, and the lengths of its sentences.
    """
    if score is None:
        from fastbert.tasks.metrics.tagging import tagging_scores

        score = tagging_scores
    labels = tuple(sorted({tag for example in datasets[0] for tag in example.tags or ()}))
    sets = [_Set.of(values, dataset, labels) for values, dataset in zip(features, datasets, strict=True)]
    trained = []
    for name, layers, mixed in rows:
        row = _Row(*sets, labels=labels, layers=layers, mixed=mixed, training=training, make_tagger=make_tagger)
        best, best_epoch, metric = -1.0, 0, "f1"
        for epoch in range(1, training.epochs + 1):
            row.train_epoch()
            if training.last_epoch and epoch < training.epochs:
                continue
            scores = score(sets[1].gold, row.predict())
            metric = "f1" if "f1" in scores else "accuracy"
            if progress is not None:
                progress(name, epoch, scores[metric])
            if scores[metric] > best:
                best, best_epoch = scores[metric], epoch
        trained.append(Table7Row(name=name, layers=layers, mixed=mixed, f1=best, epoch=best_epoch, metric=metric))
    return trained


@dataclass(frozen=True, kw_only=True, eq=False)
class _Set:
    """Features of a set's words, and their tags as numbers; -1 stands for tags not in the training set."""

    features: Features
    tags: Tensor
    gold: Tags

    @classmethod
    def of(cls, features: Features, dataset: Dataset[TaggedExample], labels: Sequence[str]) -> _Set:
        gold = [list(example.tags or ()) for example in dataset]
        number = {tag: index for index, tag in enumerate(labels)}
        tags = torch.tensor([number.get(tag, -1) for sentence in gold for tag in sentence])
        return cls(features=features, tags=tags, gold=gold)

    def batch(self, sentences: np.ndarray, layers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return states, lengths and tags of these sentences."""
        offsets = self.features.offsets
        lengths = (offsets[1:] - offsets[:-1])[sentences]
        words = torch.from_numpy(runs(offsets[sentences], lengths))
        return self.features.values[words][:, list(layers)], torch.from_numpy(lengths), self.tags[words]


class _Row:
    """A row's tagger, its optimiser and the order of its examples."""

    def __init__(
        self,
        train: _Set,
        dev: _Set,
        *,
        labels: Sequence[str],
        layers: tuple[int, ...],
        mixed: bool,
        training: FeatureTraining,
        make_tagger: Callable[[BiLstmConfig], nn.Module],
    ) -> None:
        self.sets, self.labels, self.layers, self.training = (train, dev), labels, layers, training
        torch.manual_seed(training.seed)
        config = BiLstmConfig(
            input_size=train.features.values.shape[2],
            input_layers=len(layers),
            mix=mixed,
            num_labels=len(labels),
            hidden_size=training.hidden_size,
            num_layers=training.num_layers,
            dropout=training.dropout,
        )
        self.tagger = make_tagger(config)
        self.optimizer = torch.optim.Adam(self.tagger.parameters(), lr=training.lr)
        self.draw = np.random.default_rng(training.seed)

    def train_epoch(self) -> None:
        """Train on every sentence of the training set once, in random order."""
        self.tagger.train()
        train, size = self.sets[0], self.training.batch_size
        order = self.draw.permutation(len(train.features))
        for first in range(0, len(order), size):
            states, lengths, tags = train.batch(order[first : first + size], self.layers)
            loss = F.cross_entropy(self.tagger(states, lengths), tags)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.tagger.parameters(), 5.0)
            self.optimizer.step()

    @torch.no_grad()
    def predict(self) -> Tags:
        """Return the tags of each sentence of the development set."""
        self.tagger.eval()
        dev, size, labels = self.sets[1], self.training.batch_size, self.labels
        predicted: Tags = []
        for first in range(0, len(dev.features), size):
            states, lengths, _ = dev.batch(np.arange(first, min(first + size, len(dev.features))), self.layers)
            tags = [labels[index] for index in self.tagger(states, lengths).argmax(-1).tolist()]
            ends = np.cumsum(lengths.numpy())
            predicted += [tags[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
        return predicted
