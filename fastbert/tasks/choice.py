"""Multiple choice: which ending follows a prompt, as in SWAG and CODAH (Devlin et al. 2019, section 4.4).

Each ending is a row of its own, `[CLS] prompt [SEP] start ending [SEP]`, cut as transformers cuts pairs; the rows of an
example are a unit, over which the softmax goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.errors import UserError
from fastbert.tasks.base import Task, TaskOutput
from fastbert.tasks.examples import ChoiceExample, Dataset, Example, Prediction, PredictionFormat, confidences
from fastbert.tasks.readers.cells import choice_of
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fastbert.tasks.reports.report import Baseline, Report


def _checked_choice(value: Any, where: str, example: Example) -> int:
    """Return a predicted choice. Raises UserError, naming the place, if the example has no such ending."""
    assert isinstance(example, ChoiceExample)
    return choice_of(value, where, "the predicted choice", len(example.endings))


class Choice(Task[ChoiceExample]):
    """One of the endings of a prompt."""

    name = "choice"
    head_name = "ForMultipleChoice"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    prediction_format: ClassVar[PredictionFormat] = PredictionFormat(
        "label", (".tsv", ".txt"), _checked_choice, details=confidences("probabilities")
    )

    @classmethod
    def check_suffix(cls, path: str) -> None:
        """Raise `UserError` for a file that holds no table, by its name."""
        from fastbert.tasks.readers.tables import kind_of

        kind_of(path)

    def read(self, path: str, *, labelled: bool = True) -> Dataset[ChoiceExample]:
        from fastbert.tasks.readers.choices import read_choices

        return read_choices(path, self.settings.columns, labelled=labelled, skip_bad=self.settings.skip_bad)

    def encode(self, dataset: Dataset[ChoiceExample], tokenizer: Tokenizer, *, labelled: bool) -> Rows:
        least = tokenizer.num_special_tokens_to_add(pair=True) + 2  # a token of each text
        if self.settings.max_length < least:
            raise UserError(
                f"max_length={self.settings.max_length} leaves no room for a prompt and an ending: use {least} or more,"
                " for example 128"
            )
        choices = len(dataset[0].endings)  # of every example: `read_choices` checks that
        labels = [example.label for example in dataset]
        prompts = [example.prompt for example in dataset for _ in range(choices)]
        endings = [
            f"{example.start} {ending}" if example.start else ending
            for example in dataset
            for ending in example.endings
        ]
        packed = tokenizer.pack(prompts, endings, self.settings.max_length)
        return Rows(
            input_ids=packed.input_ids.numpy().astype(np.int32),
            token_type_ids=packed.token_type_ids.numpy().astype(np.int32),
            offsets=packed.cu_seqlens.numpy().astype(np.int64),
            examples=np.repeat(np.arange(len(dataset)), choices),
            per_unit=choices,
            unit_targets={"labels": np.array(labels, dtype=np.int64)} if labelled else {},
        )

    def items(self, batch: TaskBatch) -> int:
        return len(batch.targets["labels"])

    def forward(self, model: Any, batch: TaskBatch, items: float, **options: Any) -> TaskOutput:
        labels = batch.targets["labels"]
        choices = len(batch.inputs) // len(labels)
        output = model(batch.inputs, labels=labels, num_choices=choices, num_items_in_batch=items, **options)
        return TaskOutput(output.loss, output.logits, output.hidden_states or ())

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return the score of each row, that is of each ending, (1,)."""
        return list(model(batch.inputs, num_choices=1).logits.float().cpu().numpy())

    def decode(self, dataset: Dataset[ChoiceExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Return the likeliest ending, and the probability of each."""
        logits = np.concatenate(outputs).astype(np.float64).reshape(-1, rows.per_unit)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = (weights / weights.sum(axis=1, keepdims=True)).tolist()
        return [
            {"id": example.id, "label": label, "probabilities": row}
            for example, label, row in zip(dataset, logits.argmax(axis=1).tolist(), probabilities, strict=True)
        ]

    def gold_prediction(self, example: ChoiceExample) -> Prediction:
        return {"id": example.id, "label": example.label}

    def baselines(
        self, dataset: Dataset[ChoiceExample], train: Dataset[ChoiceExample] | None = None
    ) -> tuple[Baseline, ...]:
        from fastbert.tasks.reports.baselines import scored
        from fastbert.tasks.reports.report import Baseline

        ((common, _),) = Counter(example.label for example in dataset).most_common(1)
        chance = float(np.mean([100 / len(example.endings) for example in dataset]))
        return (
            scored(self.score, dataset, "majority", f"always ending {common}", "label", [common] * len(dataset)),
            Baseline("chance", "chance", {"accuracy": chance}),
        )

    def constant_loss(self, rows: Rows) -> float:
        """Return the loss of equal probabilities: the logarithm of the number of endings."""
        return float(np.log(rows.per_unit))

    def report(
        self,
        dataset: Dataset[ChoiceExample],
        predictions: Sequence[Prediction],
        train: Dataset[ChoiceExample] | None = None,
    ) -> Report:
        from fastbert.tasks.reports.texts import choice_report

        return choice_report(dataset, predictions)

    def score(self, dataset: Dataset[ChoiceExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        from fastbert.tasks.metrics.classification import choice_scores

        return choice_scores(
            [example.label for example in dataset], [prediction["label"] for prediction in predictions]
        )
