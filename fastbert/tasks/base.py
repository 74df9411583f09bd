"""What fine-tuning, evaluation and prediction need to know of a kind of task."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic

import numpy as np
from torch import Tensor

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.tasks.examples import Dataset, E
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tokenizers import WordPieceTokenizer

logger = logging.getLogger("fastbert")
Prediction = dict[str, Any]
"""What is predicted of an example, as JSON can hold it: `id`, and what the task says."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of a table's columns or a JSON object's keys, where they are not those that readers look for."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """How examples become rows, and rows predictions. Lengths are in tokens, special ones included."""

    max_length: int = 128
    stride: int = 128
    """Span: tokens of the context that neighbouring windows share."""
    n_best: int = 20
    max_answer_length: int = 30
    """Span: tokens of the longest answer."""
    null_threshold: float = 0.0
    """Span: an example has no answer where the score of none exceeds the best answer's by more than this."""
    unanswerable: bool = False
    """Span: contexts may hold no answer (SQuAD 2.0)."""
    context_tokens: int = 0
    """Tagging: tokens of the document's neighbouring sentences on each side, which get no tags."""
    strict: bool = False
    """End at the first example that cannot be used, instead of counting them and going on."""
    skip_bad: bool = False
    """Leave out rows of a file that cannot be read, with a report, instead of refusing the file."""
    paired: bool | None = None
    """Classification, regression: whether the training examples were pairs of texts; None if that is not known."""
    columns: Columns = field(default_factory=Columns)
    metric: str | None = None
    """The metric by which models are chosen, where it is not the task's own."""
    beams: int = 1
    """Sequence to sequence: hypotheses that are kept at a time."""
    max_target_length: int = 64
    decoder: str | None = None
    """Sequence to sequence: "decoder" for new layers beside the encoder, "bert2bert" for layers that begin as the
    encoder's, "prefix" for one stack under a prefix mask; None for what the model is already, of BERT "bert2bert"."""
    decoder_layers: int | None = None
    """Sequence to sequence: layers of the decoder, where they are not as many as the encoder's."""


@dataclass(frozen=True)
class Answer:
    """What a model says of a batch in training: its part of the loss, as `Task.loss` has it; the logits (rows, classes)
    of what is a class, or (rows, 1) of numbers; packed hidden states before and behind each layer, if asked for."""

    loss: Tensor
    logits: Tensor
    hidden_states: tuple[Tensor, ...]


class Task(ABC, Generic[E]):
    """A kind of task: reading, encoding, loss, decoding and scoring. The loop that trains is the same for all.

    `labels` are the classes in the order of the model's outputs: those of the training set, or of a trained model.
    """

    name: ClassVar[str]
    head: ClassVar[type[PreTrainedModel]]
    metrics: ClassVar[tuple[str, ...]]
    """The names of what `score` returns, the first of which chooses models. All are better when higher."""

    def __init__(self, settings: TaskSettings, labels: Sequence[str] | None = None) -> None:
        self.settings = settings
        self.labels: tuple[str, ...] | None = None if labels is None else tuple(labels)

    @property
    def main_metric(self) -> str:
        """The metric by which models are chosen."""
        return self.settings.metric or self.metrics[0]

    @abstractmethod
    def read(self, path: str, *, labelled: bool = True) -> Dataset[E]:
        """The examples of a file; with `labelled`, one without a label is an error. UserError names file and line."""

    def read_gold(self, path: str) -> Dataset[E]:
        """The labelled examples of a file to score predictions of, whether or not they could be trained on."""
        return self.read(path, labelled=True)

    def learn_labels(self, train: Dataset[E]) -> None:
        """Take the classes from the training set, unless they are known."""

    def check_labels(self, dataset: Dataset[E]) -> None:
        """Refuse an example whose label no training example has, by file and line."""

    def head_config(self, config: BertConfig) -> BertConfig:
        """The encoder's config with what the head needs: number and names of the labels, kind of problem."""
        if self.labels is None:
            return config
        return replace(config, num_labels=len(self.labels), label_names=self.labels)

    @abstractmethod
    def encode(self, dataset: Dataset[E], tokenizer: WordPieceTokenizer, *, labelled: bool) -> Rows:
        """The rows of a dataset; with `labelled` also their targets."""

    @abstractmethod
    def items(self, batch: TaskBatch) -> int:
        """The labels of a batch, over which its loss is a mean."""

    @abstractmethod
    def loss(self, model: Any, batch: TaskBatch, items: int) -> Tensor:
        """The sum of the losses of the batch's labels divided by `items`, fp32: its part of the mean over several."""

    def answer(self, model: Any, batch: TaskBatch, items: int, **options: Any) -> Answer:
        """The loss with what it is made of; `options` are the model's own."""
        raise UserError(f"{self.name} has no logits of classes to learn from")

    @abstractmethod
    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """What the model says of each row of a batch, for `decode`; fp32."""

    @abstractmethod
    def decode(self, dataset: Dataset[E], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """A prediction for each example, from what the model said of each row."""

    @abstractmethod
    def score(self, dataset: Dataset[E], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The metrics, by name, in percent where they are fractions (as GLUE and SQuAD publish them)."""

    @abstractmethod
    def right(self, example: E) -> Prediction:
        """The prediction that a labelled example wants, as `score` reads it."""

    def perfect(self, dataset: Dataset[E]) -> dict[str, float]:
        """The score of predictions that are all right: the metrics that are defined on the dataset, and whose packages
        are installed."""
        return self.score(dataset, [self.right(example) for example in dataset])

    def set_aside(self, message: str) -> None:
        """Report examples that cannot be used, or end where --strict asks for it."""
        if self.settings.strict:
            raise UserError(message)
        logger.warning("%s", message)
