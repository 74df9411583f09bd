"""Table 7 of the BERT paper: a BiLSTM on frozen features of six kinds, scored by entities on a development set.

The encoder runs once over both sets; all its hidden states are kept, and each row of the table trains on some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.features.extract import Features, hidden_states
from fastbert.models.bert.model import BertModel
from fastbert.models.bilstm import BiLstmConfig, BiLstmTagger
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.tokenizers import WordPieceTokenizer

Tags = list[list[str]]
Scorer = Callable[[Tags, Tags], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class FeatureTraining:
    """How each row's tagger is trained: Adam at a constant rate, the best epoch on the development set counts."""

    hidden_size: int = 768
    num_layers: int = 2
    dropout: float = 0.1
    epochs: int = 10
    batch_size: int = 32
    lr: float = 1e-3
    seed: int = 0
    max_length: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name}={value!r} must be a whole number, at least 1")
        if not self.lr > 0:
            raise UserError(f"lr={self.lr!r} must be above 0")


@dataclass(frozen=True, kw_only=True)
class Table7Row:
    """A kind of features and the best score with it."""

    name: str
    layers: tuple[int, ...]
    mixed: bool
    f1: float
    epoch: int
    """Of the best score, from 1."""

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)


def table7_rows(count: int) -> list[tuple[str, tuple[int, ...], bool]]:
    """Name, hidden states, and whether they are mixed, of each row for a model of `count` layers. Of fewer than four
    layers, all are the last ones."""
    last = tuple(range(max(count - 3, 1), count + 1))
    these = ("One", "Two", "Three", "Four")[len(last) - 1]
    return [
        ("Embeddings", (0,), False),
        ("Second-to-Last Hidden", (count - 1,), False),
        ("Last Hidden", (count,), False),
        (f"Weighted Sum Last {these} Hidden", last, True),
        (f"Concat Last {these} Hidden", last, False),
        (f"Weighted Sum All {count} Layers", tuple(range(1, count + 1)), True),
    ]


def table7(
    model: BertModel,
    tokenizer: WordPieceTokenizer,
    train: Dataset[TaggedExample],
    dev: Dataset[TaggedExample],
    training: FeatureTraining = FeatureTraining(),
    *,
    score: Scorer | None = None,
    progress: Callable[[str, int, float], None] | None = None,
) -> list[Table7Row]:
    """The six rows, with the development set's F1 of entities each.

    `score(gold, predicted)` takes the place of `fastbert.tasks.metrics.tagging.tagging_scores`, whose accuracy counts
    where tags are no entities. `progress` is called with a row's name, the epoch and its score. Raises `UserError` for
    sentences without tags and for sets without sentences.
    """
    if score is None:
        from fastbert.tasks.metrics.tagging import tagging_scores

        score = tagging_scores
    for dataset in (train, dev):
        _check(dataset)
    labels = tuple(sorted({tag for example in train for tag in example.tags or ()}))
    sets = [_Set.of(model, tokenizer, dataset, labels, training) for dataset in (train, dev)]
    rows = []
    for name, layers, mixed in table7_rows(len(model.encoder.layer)):
        row = _Row(*sets, labels=labels, layers=layers, mixed=mixed, training=training)
        best, at = -1.0, 0
        for epoch in range(1, training.epochs + 1):
            row.train_epoch()
            scores = score(sets[1].gold, row.predict())
            f1 = scores["f1"] if "f1" in scores else scores["accuracy"]
            if progress is not None:
                progress(name, epoch, f1)
            if f1 > best:
                best, at = f1, epoch
        rows.append(Table7Row(name=name, layers=layers, mixed=mixed, f1=best, epoch=at))
    return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class _Set:
    """Hidden states of a set's words, and their tags as numbers; -1 is a tag that no training sentence has."""

    features: Features
    tags: Tensor
    gold: Tags

    @classmethod
    def of(
        cls,
        model: BertModel,
        tokenizer: WordPieceTokenizer,
        dataset: Dataset[TaggedExample],
        labels: Sequence[str],
        training: FeatureTraining,
    ) -> _Set:
        examples = [example for example in dataset if example.words]
        features = hidden_states(
            model, tokenizer, [example.words for example in examples], max_length=training.max_length
        )
        gold = [list(example.tags or ()) for example in examples]
        number = {tag: index for index, tag in enumerate(labels)}
        tags = torch.tensor([number.get(tag, -1) for sentence in gold for tag in sentence])
        return cls(features=features, tags=tags, gold=gold)

    def batch(self, sentences: np.ndarray, layers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """States, lengths and tags of these sentences."""
        offsets = self.features.offsets
        lengths = (offsets[1:] - offsets[:-1])[sentences]
        places = np.repeat(offsets[sentences] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        words = torch.from_numpy(places)
        states = self.features.values[words][:, list(layers)]
        return states, torch.from_numpy(lengths), self.tags[words]


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
        self.tagger = BiLstmTagger(config)
        self.optimizer = torch.optim.Adam(self.tagger.parameters(), lr=training.lr)
        self.draw = np.random.default_rng(training.seed)

    def train_epoch(self) -> None:
        """See every sentence of the training set once, in an order of its own."""
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
        """The tags of each sentence of the development set."""
        self.tagger.eval()
        dev, size, labels = self.sets[1], self.training.batch_size, self.labels
        found: Tags = []
        for first in range(0, len(dev.features), size):
            states, lengths, _ = dev.batch(np.arange(first, min(first + size, len(dev.features))), self.layers)
            chosen = [labels[index] for index in self.tagger(states, lengths).argmax(-1).tolist()]
            ends = np.cumsum(lengths.numpy())
            found += [chosen[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
        return found


def _check(dataset: Dataset[TaggedExample]) -> None:
    if not any(example.words for example in dataset):
        raise UserError(f"{dataset.path}: holds no sentence")
    for index, example in enumerate(dataset):
        if example.tags is None or len(example.tags) != len(example.words):
            raise UserError(f"{dataset.where(index)}: every word needs a tag")
