"""A class or a number per text or pair of texts: CoLA, SST-2, MRPC, QQP, MNLI, QNLI, RTE and WNLI; STS-B."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.tasks.base import Task, TaskOutput
from fastbert.tasks.class_weights import ClassWeightFlags, class_weights, weighted_class_loss
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, TextExample, confidences
from fastbert.tasks.label_counts import refuse_texts
from fastbert.tasks.metrics.classification import classification_scores, ordered, regression_scores
from fastbert.tasks.pair_order import PairOrderFlags
from fastbert.tasks.probabilities import class_probabilities
from fastbert.tasks.readers.cells import NUMBER, class_name, number
from fastbert.tasks.readers.tables import name_of
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tasks.settings import TaskSettings
from fastbert.tasks.text_files import STDIN
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from fastbert.models.base import PreTrainedModel
    from fastbert.tasks.reports.report import Baseline, Report

SHOWN = 8  # labels in an error
MOST_SCORES = 20  # different numbers with fractions that may be classes, as half stars are


def _mismatch(paired: bool, path: str) -> str:
    """Return the message for single texts and a model of pairs, or the reverse."""
    if paired:
        return (
            "is a pair of texts, and the model was trained on single texts; name a file of single texts, or the column"
            " of the text with --text-column"
        )
    cure = (
        "put a TAB between the two texts"
        if path == name_of(STDIN)
        else "name a file of pairs, or the columns with --text-column and --pair-column"
    )
    return f"is a single text, and the model was trained on pairs; {cure}"


@dataclass(frozen=True, kw_only=True)
class TextSettings(TaskSettings, PairOrderFlags):
    """Settings of a task on texts."""

    paired: bool | None = None
    """True if the training examples were pairs of texts, False if single texts, None if unknown."""


class TextTask(Task[TextExample]):
    """A task with one label per text or pair of texts."""

    head_name = "ForSequenceClassification"
    settings_type = TextSettings
    regression: ClassVar[bool] = False
    weighted_loss: ClassVar[Callable[..., Tensor]]
    """(logits, labels, weights, items) -> the loss, for a task with `label_weights`."""
    settings: TextSettings

    @classmethod
    def check_suffix(cls, path: str) -> None:
        """Raise `UserError` for a file that holds no table, by its name."""
        from fastbert.tasks.readers.tables import kind_of

        kind_of(path)

    def read(self, path: str, *, labelled: bool = True) -> Dataset[TextExample]:
        from fastbert.tasks.readers.texts import read_texts

        return read_texts(
            path,
            self.settings.columns,
            labelled=labelled,
            regression=self.regression,
            skip_bad=self.settings.skip_bad,
        )

    def learn_labels(self, train: Dataset[TextExample]) -> None:
        """Record if the training examples are pairs, which the trained model then requires."""
        if len(train):
            self.settings = replace(self.settings, paired=train[0].pair is not None)

    def encode(self, dataset: Dataset[TextExample], tokenizer: Tokenizer, *, labelled: bool) -> Rows:
        """Return a row `[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]` per example, cut to `max_length`, the longer
        text of a pair first; with `pair_order="both"` two rows, the second of which has the pair in front."""
        pairs = [example.pair for example in dataset]
        paired = pairs[0] is not None if pairs else False
        for index, pair in enumerate(pairs):
            if (pair is not None) != paired:
                first, other = ("a pair", "a single text") if paired else ("a single text", "a pair")
                raise UserError(
                    f"{dataset.where(index)}: is {other}, but the file begins with {first}; keep them in separate files"
                )
        if not pairs:
            raise UserError(f"{dataset.path}: has no examples; name a file that does")
        if self.settings.paired not in (None, paired):
            raise UserError(f"{dataset.where(0)}: {_mismatch(paired, dataset.path)}")
        texts = [example.text for example in dataset]
        orders = self._orders
        if orders > 1 and not paired:
            raise UserError(f"{dataset.where(0)}: is a single text, which has one order; leave out --pair-order both")
        if orders > 1:
            of_both = [(example.text, example.pair) for example in dataset]
            texts = [text for pair in of_both for text in pair]  # type: ignore[misc]  # none is None: they are pairs
            pairs = [text for pair in of_both for text in reversed(pair)]
        batch = tokenizer.pack(texts, pairs if paired else None, max_length=self.settings.max_length)  # type: ignore[arg-type]
        return Rows(
            input_ids=batch.input_ids.numpy().astype(np.int32),
            token_type_ids=batch.token_type_ids.numpy().astype(np.int32),
            offsets=batch.cu_seqlens.numpy().astype(np.int64),
            examples=np.repeat(np.arange(len(dataset)), orders),
            per_unit=orders,
            joined=orders > 1,
            unit_targets=self.unit_targets(dataset) if labelled else {},
        )

    @property
    def _orders(self) -> int:
        """The number of rows per example."""
        return 2 if self.settings.pair_order == "both" else 1

    def _options(self) -> dict[str, int]:
        """Return the model's options for rows of this task."""
        return {} if self._orders == 1 else {"num_orders": self._orders}

    def unit_targets(self, dataset: Dataset[TextExample]) -> dict[str, np.ndarray]:
        """Return the `labels` of the examples as a model reads them, and `weights` if they weigh differently."""
        labels = self.targets(dataset)
        weights = self.label_weights(labels)
        return {"labels": labels} if weights is None else {"labels": labels, "weights": weights}

    def label_weights(self, labels: np.ndarray) -> np.ndarray | None:
        """Return the weight of each of the `labels` of the training set in the loss, fp32; None: all weigh 1."""
        return None

    @abstractmethod
    def targets(self, dataset: Dataset[TextExample]) -> np.ndarray:
        """Return the label of each example as a model reads it."""

    def items(self, batch: TaskBatch) -> float:
        return len(batch.inputs) // self._orders

    def forward(self, model: Any, batch: TaskBatch, items: float, **options: Any) -> TaskOutput:
        labels, weights = batch.targets["labels"], batch.targets.get("weights")
        options = {**self._options(), **options}
        if weights is None:
            output = model(batch.inputs, labels=labels, num_items_in_batch=items, **options)
            loss = output.loss
        else:
            output = model(batch.inputs, **options)
            loss = self.weighted_loss(output.logits, labels, weights, items)
        return TaskOutput(loss, output.logits, output.hidden_states or ())

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return the logits of each row; the rows of a pair have the same."""
        logits = model(batch.inputs, **self._options()).logits.float().cpu().numpy()
        return list(np.repeat(logits, self._orders, axis=0))


def _refuse_scores(train: Dataset[TextExample]) -> None:
    """Raise UserError for labels that are scores: many different numbers, some of them fractions."""
    labels = {str(example.label) for example in train}
    if len(labels) <= MOST_SCORES or not all(map(NUMBER.fullmatch, labels)) or not any("." in name for name in labels):
        return
    index, label = next((i, str(e.label)) for i, e in enumerate(train) if "." in str(e.label))
    raise UserError(
        f"{train.where(index)}: the label {label!r} is one of {len(labels)} different numbers, which are scores rather"
        " than classes; use --task regression"
    )


def refuse_unknown(
    dataset: Dataset[TextExample], labels: Sequence[tuple[int, str]], known_labels: Sequence[str]
) -> None:
    """Raise UserError for a label, given with the index of its example, that is not known."""
    known = set(known_labels)
    unknown = [(index, label) for index, label in labels if label not in known]
    if not unknown:
        return
    index, label = unknown[0]
    names = ", ".join(known_labels[:SHOWN]) + (", ..." if len(known_labels) > SHOWN else "")
    close = get_close_matches(label, known_labels, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    examples = len({index for index, _ in unknown})
    more = f" ({examples} such examples in all)" if examples > 1 else ""
    raise UserError(
        f"{dataset.where(index)}: the label {label!r} is not one of the training set's: {names}{meant}{more}"
    )


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(TextSettings, ClassWeightFlags):
    """Settings of classification."""


class Classification(TextTask):
    """softmax(W C), C the pooled first token (Devlin et al. 2019, section 4.1); labels are sorted as strings, numbers
    by their value."""

    name = "classification"
    metrics = ("accuracy", "f1", "macro_f1", "matthews")
    prediction_format = PredictionFormat(
        "label",
        (".tsv", ".txt"),
        lambda value, where, example: class_name(value, where, "the predicted label"),
        confidences("probabilities"),
    )
    settings_type = ClassificationSettings
    weighted_loss = staticmethod(weighted_class_loss)
    settings: ClassificationSettings

    def learn_labels(self, train: Dataset[TextExample]) -> None:
        super().learn_labels(train)
        if self.labels is not None:
            return
        _refuse_scores(train)
        labels = {str(example.label) for example in train}
        if len(labels) < 2:
            raise UserError(
                f"{train.path}: all {len(train)} examples have the label {next(iter(labels), None)!r}; training needs"
                " two classes or more"
            )
        refuse_texts(train.path, labels, len(train), "examples")
        self.labels = ordered(labels)

    def check_labels(self, dataset: Dataset[TextExample]) -> None:
        labels = [(index, str(example.label)) for index, example in enumerate(dataset) if example.label is not None]
        refuse_unknown(dataset, labels, self.known_labels)

    @classmethod
    def labels_of(cls, config: BertConfig, folder: Path) -> tuple[str, ...] | None:
        if config.problem_type == "multi_label_classification":
            raise UserError(
                f"--task classification: {folder} was trained for sets of labels (problem_type in its config.json);"
                " use --task multilabel"
            )
        return tuple(config.id2label.values())

    def head_config(self, config: BertConfig) -> BertConfig:
        return replace(super().head_config(config), problem_type="single_label_classification")

    def targets(self, dataset: Dataset[TextExample]) -> np.ndarray:
        self.check_labels(dataset)
        numbers = {label: number for number, label in enumerate(self.known_labels)}
        return np.array([numbers[str(example.label)] for example in dataset], dtype=np.int64)

    def label_weights(self, labels: np.ndarray) -> np.ndarray | None:
        setting = self.settings.class_weights
        return None if setting is None else class_weights(setting, self.known_labels, labels)[labels]

    def items(self, batch: TaskBatch) -> float:
        weights = batch.targets.get("weights")
        return super().items(batch) if weights is None else float(weights.double().sum())

    def decode(self, dataset: Dataset[TextExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        known = self.known_labels
        probabilities = class_probabilities(np.stack(outputs[:: self._orders]))
        return [
            {
                "id": example.id,
                "label": known[int(row.argmax())],
                "probabilities": {label: round(float(p), 6) for label, p in zip(known, row, strict=True)},
            }
            for example, row in zip(dataset, probabilities, strict=True)
        ]

    def score(self, dataset: Dataset[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        gold = [str(example.label) for example in dataset]
        predicted = [str(prediction["label"]) for prediction in predictions]
        return classification_scores(gold, predicted, self.labels or ordered([*gold, *predicted]), where=dataset.path)

    def gold_prediction(self, example: TextExample) -> Prediction:
        return {"id": example.id, "label": str(example.label)}

    def baselines(
        self, dataset: Dataset[TextExample], train: Dataset[TextExample] | None = None
    ) -> tuple[Baseline, ...]:
        from fastbert.tasks.reports.baselines import scored
        from fastbert.tasks.reports.report import Baseline

        names = Counter(str(example.label) for example in dataset)
        ((common, _),) = names.most_common(1)
        constant = [common] * len(dataset)
        count = len(self.labels or names)
        return (
            scored(self.score, dataset, "majority", "majority class", "label", constant),
            Baseline("chance", "chance", {"accuracy": 100 / count, "matthews": 0.0}),
        )

    def constant_loss(self, rows: Rows) -> float:
        """Return the entropy of the training labels, weighted as the loss is, in nats."""
        from fastbert.tasks.reports.baselines import frequency_loss

        return frequency_loss(rows.unit_targets["labels"], rows.unit_targets.get("weights"))

    def report(
        self,
        dataset: Dataset[TextExample],
        predictions: Sequence[Prediction],
        train: Dataset[TextExample] | None = None,
    ) -> Report:
        from fastbert.tasks.reports.texts import classification_report

        predicted = [str(prediction["label"]) for prediction in predictions]
        labels = self.labels or ordered([*(str(example.label) for example in dataset), *predicted])
        return classification_report(dataset, predictions, labels)


class Regression(TextTask):
    """A linear unit on the pooled first token, trained by squared error."""

    name = "regression"
    metrics = ("spearman", "pearson", "pearson_spearman")
    prediction_format = PredictionFormat(
        "score", (".tsv", ".txt"), lambda value, where, example: number(value, where, "the predicted score")
    )
    regression = True
    # Dropout changes the spread of a sum's terms between training and scoring, which a class survives and a number does
    # not. Numbers take more and smaller steps than classes (benchmarks/results/finetuning-defaults).
    default_dropout, default_batch_size, default_steps = 0.0, 16, 2_000

    @classmethod
    def labels_of(cls, config: BertConfig, folder: Path) -> tuple[str, ...] | None:
        if config.num_labels != 1:
            raise UserError(f"--task regression: {folder} has {config.num_labels} outputs; a number is a single output")
        return None

    def fit_to(self, config: BertConfig) -> None:
        """Read pairs in both orders with models that read left to right (Radford et al. 2018, section 3.3)."""
        if config.is_decoder and self.settings.paired and self.settings.pair_order is None:
            self.settings = replace(self.settings, pair_order="both")

    def head_config(self, config: BertConfig) -> BertConfig:
        return replace(config, num_labels=1, label_names=None, problem_type="regression")

    def targets(self, dataset: Dataset[TextExample]) -> np.ndarray:
        return np.array([[example.label] for example in dataset], dtype=np.float32)

    def start_head(self, model: PreTrainedModel, rows: Rows) -> None:
        """Set the bias of a new head to the mean of the labels, so that the encoder need not learn it."""
        for name in model.new_weights:
            if (bias := model.get_parameter(name)).shape == (1,):
                bias.data.fill_(float(rows.unit_targets["labels"].mean()))

    def decode(self, dataset: Dataset[TextExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        numbers = outputs[:: self._orders]
        return [{"id": example.id, "score": float(row[0])} for example, row in zip(dataset, numbers, strict=True)]

    def gold_prediction(self, example: TextExample) -> Prediction:
        return {"id": example.id, "score": example.label}

    def baselines(
        self, dataset: Dataset[TextExample], train: Dataset[TextExample] | None = None
    ) -> tuple[Baseline, ...]:
        from fastbert.tasks.reports.baselines import scored
        from fastbert.tasks.reports.report import Baseline

        mean = float(np.mean([float(example.label) for example in dataset]))  # type: ignore[arg-type]
        correlations = ("pearson_spearman", "pearson", "spearman")
        return (
            scored(self.score, dataset, "majority", "mean", "score", [mean] * len(dataset)),
            Baseline("chance", "chance", dict.fromkeys(correlations, 0.0)),
        )

    def constant_loss(self, rows: Rows) -> float:
        """Return the variance of the training labels: the squared error of their mean."""
        return float(rows.unit_targets["labels"].var(dtype=np.float64))

    def report(
        self,
        dataset: Dataset[TextExample],
        predictions: Sequence[Prediction],
        train: Dataset[TextExample] | None = None,
    ) -> Report:
        from fastbert.tasks.reports.texts import regression_report

        return regression_report(dataset, predictions)

    def score(self, dataset: Dataset[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        gold = [float(example.label) for example in dataset]  # type: ignore[arg-type]
        return regression_scores(gold, [float(prediction["score"]) for prediction in predictions], where=dataset.path)
