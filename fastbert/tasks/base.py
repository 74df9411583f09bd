"""A task: everything that fine-tuning, evaluation and prediction look up by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tasks.examples import Dataset, E, Prediction, PredictionFormat
from fastbert.tasks.settings import TaskSettings
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fastbert.models.base import PreTrainedModel
    from fastbert.packing import PackedBatch
    from fastbert.tasks.reports.report import Baseline, Report
    from fastbert.tasks.rows import Rows, TaskBatch


@dataclass(frozen=True)
class TaskOutput:
    """A model's output for a training batch.

    `loss` is the batch's share of the mean, as `Task.loss` returns it. `logits` are (rows, classes), or (rows, 1) for
    numbers. `hidden_states` are packed, those of the embeddings and of every layer, if they were asked for.
    """

    loss: Tensor
    logits: Tensor
    hidden_states: tuple[Tensor, ...]


class Task(ABC, Generic[E]):
    """A kind of task: reading, encoding, loss, decoding, scoring, and the form of its predictions.

    The training loop is the same for all tasks. `labels` are the classes in the order of the model's outputs, taken
    from the training set or from a trained model; None if they are unknown or the task has none.
    """

    name: ClassVar[str]
    """The value of --task."""
    head_name: ClassVar[str] = ""
    """The model's class without its architecture, as in config.json's `architectures`: "ForTokenClassification". A task
    that overrides `head` and `load_head`, and loads models of any class, leaves it empty."""
    metrics: ClassVar[tuple[str, ...]]
    """The names of the scores, the first of which chooses models. All are better when higher."""
    prediction_format: ClassVar[PredictionFormat]
    settings_type: ClassVar[type[TaskSettings]] = TaskSettings
    """`TaskSettings`, or a subclass with the task's own flags."""
    least: ClassVar[Mapping[str, int]] = {}
    """Settings that have a least value."""
    default_length: ClassVar[int] = 128
    """Tokens per row, unless --max-length sets them."""
    default_batch_size: ClassVar[int] = 32
    """Examples per optimiser step, unless --batch-size sets them or the training set is small."""
    default_steps: ClassVar[int] = 1_000
    """Optimiser steps that a training set is repeated for, unless --epochs or --steps sets them."""
    default_dropout: ClassVar[float | None] = None
    """Dropout probability of training, unless --dropout sets it; None stands for that of the model's config."""
    can_have_no_answer: ClassVar[bool] = False
    """True if questions without an answer are scored by their probabilities (see `add_no_answer`)."""
    can_distill: ClassVar[bool] = True
    """True if students can learn from a teacher's logits (see `forward`) and have fewer layers."""
    reads_groups: ClassVar[bool] = False
    """True if examples are `TextGroup`s, for which negatives can be mined."""
    has_head: bool = True
    """True if the model has weights behind the encoder, which can be trained alone."""
    couples: ClassVar[bool] = False
    """True for a `CoupledTask`: the loss compares all examples of a batch."""
    head_has_labels: ClassVar[bool] = True
    """True if the head depends on the labels, so that a head trained with different labels is dropped."""

    def __init__(self, settings: TaskSettings | None = None, labels: Sequence[str] | None = None) -> None:
        settings = TaskSettings() if settings is None else settings
        if not isinstance(settings, self.settings_type):
            settings = self.settings_type(
                **{field.name: getattr(settings, field.name) for field in fields(TaskSettings)}
            )
        for name, value in self.least.items():
            if getattr(settings, name) < value:
                raise UserError(f"{name}={getattr(settings, name)} must be at least {value}")
        self.settings = settings
        self.labels: tuple[str, ...] | None = None if labels is None else tuple(labels)

    def head(self, config: BertConfig) -> type[PreTrainedModel]:
        """Return the model's class for an encoder's config."""
        from fastbert.models import registry

        return registry.head_class(config, self.head_name)

    def load_head(self, folder: Path, **options: Any) -> PreTrainedModel:
        """Load a model of the task from a folder; options and errors are those of `from_pretrained`."""
        from fastbert.models import registry

        with registry.verifying_config(folder, options) as config:
            return self.head(config).from_pretrained(folder, **options)

    @property
    def known_labels(self) -> tuple[str, ...]:
        """The labels. Raises UserError while they are unknown."""
        if self.labels is None:
            raise UserError(f"the labels of {self.name} are not known: call learn_labels with a training set first")
        return self.labels

    @property
    def main_metric(self) -> str:
        """The metric that chooses models."""
        return self.settings.metric or self.metrics[0]

    @abstractmethod
    def read(self, path: str, *, labelled: bool = True) -> Dataset[E]:
        """Read the examples of a file; with `labelled`, every example must have a label.

        Raises UserError, naming file and line.
        """

    @classmethod
    def check_suffix(cls, path: str) -> None:
        """Raise `UserError` for a file that the task cannot read, by its name."""

    def read_gold(self, path: str) -> Dataset[E]:
        """Read labelled examples to score predictions against, including those that training could not use."""
        return self.read(path, labelled=True)

    def taught(
        self, train: Dataset[E], folder: Path, on_message: Callable[[str], None], device: str = "auto"
    ) -> Dataset[E] | None:
        """Return training examples with the scores that the teacher in a folder computes on a device; None, the
        default, for a task whose students learn from a teacher's logits during training (`can_distill`)."""
        return None

    def learn_labels(self, train: Dataset[E]) -> None:
        """Take the classes from the training set, unless they are known."""

    def fit_to(self, config: BertConfig) -> None:
        """Choose the settings that depend on the pre-trained model and were left open; none by default."""

    def check_labels(self, dataset: Dataset[E]) -> None:
        """Raise UserError, naming file and line, for a label that no training example has."""

    @classmethod
    def labels_of(cls, config: BertConfig, folder: Path) -> tuple[str, ...] | None:
        """Return the classes of another library's model. Raises UserError for a head that does not fit."""
        return None

    def encoder_folder(self, source: Path) -> Path:
        """Return the folder with the weights and the tokenizer of a pre-trained model, by default the model's own."""
        return source

    def load_tokenizer(self, source: Path) -> Tokenizer:
        """Load the tokenizer of a pre-trained model."""
        from fastbert.tokenizers.loading import load_tokenizer

        return load_tokenizer(source)

    def base_config(self, folder: Path) -> BertConfig:
        """Read the config of the pre-trained model in a folder."""
        from fastbert.checkpoints.source import config_folder
        from fastbert.models import registry

        return registry.read_config(config_folder(folder))

    def head_config(self, config: BertConfig) -> BertConfig:
        """Return the encoder's config completed for the head: number and names of the labels, problem type."""
        if self.labels is None:
            return config
        return replace(config, num_labels=len(self.labels), label_names=self.labels)

    @abstractmethod
    def encode(self, dataset: Dataset[E], tokenizer: Tokenizer, *, labelled: bool) -> Rows:
        """Return the rows of a dataset; with `labelled` also their targets."""

    def check_batch_size(self, rows: Rows, batch_size: int) -> None:
        """Raise UserError for batches of the training rows that the loss learns nothing from; by default none."""

    def prepare(self, model: PreTrainedModel, source: Path | None, seed: int) -> None:
        """Give a model that is about to be trained what its weights do not hold: settings of the folder `source`, or
        new layers initialised from `seed`; by default nothing."""

    def save_model(self, model: PreTrainedModel, folder: Path) -> None:
        """Write a model and its settings to a folder, which `load_head` reads."""
        model.save_pretrained(folder)

    def start_head(self, model: PreTrainedModel, rows: Rows) -> None:
        """Give new weights of a head, `model.new_weights`, what need not be learned of labelled training rows: by
        default nothing."""

    def packed(self, rows: Rows, indices: np.ndarray, keys: np.ndarray | None = None) -> PackedBatch:
        """Return the rows of these numbers as a batch, with their dropout keys, int64 (rows,)."""
        return rows.packed(indices, keys)

    @abstractmethod
    def items(self, batch: TaskBatch) -> float:
        """Return the number of labels in a batch, over which its loss is a mean; with weights of labels their sum."""

    def loss(self, model: Any, batch: TaskBatch, items: float) -> Tensor:
        """Return the sum of the losses of the batch's labels divided by `items`, fp32: its share of the mean over
        several batches."""
        return self.forward(model, batch, items).loss

    def forward(self, model: Any, batch: TaskBatch, items: float, **options: Any) -> TaskOutput:
        """Return the loss with the logits behind it; `options` are passed to the model."""
        raise UserError(f"{self.name} has no logits of classes to learn from")

    @abstractmethod
    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return the model's output for each row of a batch, fp32, as `decode` reads it."""

    @abstractmethod
    def decode(self, dataset: Dataset[E], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Return the prediction for each example, from the outputs of all rows."""

    @abstractmethod
    def score(self, dataset: Dataset[E], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the metrics by name, in percent if they are fractions (as GLUE and SQuAD publish them).

        Predictions come from `decode` or from a file. Without `labels`, the classes are those of both.
        """

    @abstractmethod
    def gold_prediction(self, example: E) -> Prediction:
        """Return the correct prediction for a labelled example, as `score` reads it."""

    def gold_scores(self, dataset: Dataset[E]) -> dict[str, float]:
        """Return the scores of correct predictions: the metrics that are defined on the dataset, and whose packages are
        installed."""
        return self.score(dataset, [self.gold_prediction(example) for example in dataset])

    def baselines(self, dataset: Dataset[E], train: Dataset[E] | None = None) -> tuple[Baseline, ...]:
        """Return the scores of predictions that need no model, such as the most frequent class and chance; none by
        default. `train` is the training set, where it is known."""
        return ()

    def constant_loss(self, rows: Rows) -> float | None:
        """Return the training loss, as `loss` defines it, of the best prediction that is the same for all labelled
        training rows; None, the default, where it is undefined. Plots draw it as the baseline of the training loss."""
        return None

    def report(self, dataset: Dataset[E], predictions: Sequence[Prediction], train: Dataset[E] | None = None) -> Report:
        """Return what the predictions get wrong; by default only the list of errors."""
        from fastbert.tasks.reports.texts import plain_report

        gold = [self.gold_prediction(example) for example in dataset]
        return plain_report(dataset, predictions, gold, self.prediction_format)

    def add_no_answer(self, path: Path, dataset: Dataset[E], predictions: list[Prediction]) -> list[Prediction]:
        """Add to each prediction the probability that its question has no answer, from a file by id (SQuAD 2.0)."""
        raise UserError(f"{path}: {self.name} has no questions without an answer")

    def report_unusable(self, message: str) -> None:
        """Log a message about examples that cannot be used, or raise it as UserError with `strict`."""
        if self.settings.strict:
            raise UserError(message)
        logger.warning("%s", message)
