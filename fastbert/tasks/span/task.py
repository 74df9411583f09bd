"""Span question answering, as in SQuAD 1.1 and 2.0: the span of a context that answers a question.

The recipe of BERT's own code and of transformers' example (Devlin et al. 2019, sections 4.2 and 4.3): the question
first, the context second, long contexts in windows, and [CLS] as the target of windows without the whole answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.io.text import plain_name
from fastbert.tasks.base import Task, TaskOutput
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, QuestionExample, confidences
from fastbert.tasks.readers.cells import number
from fastbert.tasks.readers.squad import read_squad
from fastbert.tasks.readers.tables import TAGGED_KINDS
from fastbert.tasks.row_template import PairTemplate
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tasks.settings import TaskSettings
from fastbert.tasks.span.decode import find_answers
from fastbert.tasks.span.flags import SpanFlags
from fastbert.tasks.span.rows import QUESTION_LENGTH, Contexts, SpanRows, Windows, cut_windows, lay_out, read_contexts
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from fastbert.tasks.reports.report import Baseline, Report

OTHER_KINDS = (".tsv", ".csv", ".txt", *TAGGED_KINDS)  # of files without questions
PADDING_LOGIT = -1e4  # of positions after a row's end
NO_ANSWER = "null_score_difference"  # by how much the score of no answer exceeds the best answer's
NO_ANSWER_PROBABILITY = "no_answer_probability"
BEST = "best_answer"  # the best text, also if no answer is predicted


@dataclass(frozen=True, kw_only=True)
class SpanSettings(TaskSettings, SpanFlags):
    """Settings of span question answering."""


def _details(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return how sure a prediction is, how sure that there is no answer, and the best answer."""
    details = confidences("probability")(record, where)
    if NO_ANSWER not in record:
        return details
    details |= {NO_ANSWER: number(record[NO_ANSWER], where, NO_ANSWER)}
    if isinstance(record.get(BEST), str):
        details[BEST] = record[BEST]
    return details


class SpanAnswers(Task[QuestionExample]):
    """Answers as spans of their contexts."""

    name = "span"
    head_name = "ForQuestionAnswering"
    metrics: ClassVar[tuple[str, ...]] = ("f1", "exact_match")
    prediction_format: ClassVar[PredictionFormat] = PredictionFormat("text", (".json",), details=_details)
    settings_type: ClassVar[type[SpanSettings]] = SpanSettings
    default_length = 384
    can_have_no_answer = True
    least: ClassVar[Mapping[str, int]] = {"stride": 0, "n_best": 1, "max_answer_length": 1}
    settings: SpanSettings

    @classmethod
    def check_suffix(cls, path: str) -> None:
        """Raise `UserError` for a file whose name says that it holds no questions."""
        if plain_name(path).endswith(OTHER_KINDS):
            raise UserError(
                f"{path}: span reads SQuAD's .json, and .jsonl and .parquet files of questions; name one, or another"
                " --task"
            )

    def read(self, path: str, *, labelled: bool = True) -> Dataset[QuestionExample]:
        return read_squad(path, labelled=labelled, report=self.report_unusable, skip_bad=self.settings.skip_bad)

    def read_gold(self, path: str) -> Dataset[QuestionExample]:
        """Read answers as they are in the file, without looking for them in their contexts."""
        return read_squad(
            path, labelled=True, report=self.report_unusable, spans=False, skip_bad=self.settings.skip_bad
        )

    def head_config(self, config: BertConfig) -> BertConfig:
        """Return the config with two outputs, start and end, which have no names."""
        return replace(config, num_labels=2, label_names=None)

    def encode(self, dataset: Dataset[QuestionExample], tokenizer: Tokenizer, *, labelled: bool) -> SpanRows:
        ids, offsets = tokenizer.encode_ragged([example.question for example in dataset])
        questions = np.minimum(np.diff(offsets), QUESTION_LENGTH)
        contexts = read_contexts(dataset, tokenizer)
        length, stride = self.settings.max_length, self.settings.stride
        windows = cut_windows(dataset, contexts, questions, length, stride, PairTemplate.of(tokenizer))
        targets = self._targets(dataset, contexts, windows) if labelled else {}
        return lay_out(windows, contexts, ids, offsets[:-1], targets)

    def _targets(
        self, dataset: Dataset[QuestionExample], contexts: Contexts, windows: Windows
    ) -> dict[str, np.ndarray]:
        """Return start and end of each example's first answer in each of its windows."""
        starts, stops = np.zeros(len(dataset), dtype=np.int64), np.zeros(len(dataset), dtype=np.int64)
        answered = np.zeros(len(dataset), dtype=bool)
        for index, example in enumerate(dataset):
            if example.answers:
                answer = example.answers[0]
                answered[index] = True
                starts[index], stops[index] = answer.start, answer.start + len(answer.text)
        first, last = contexts.spans(starts, stops)
        # An answer that begins before its context, or has no characters, is nowhere.
        first = np.where(answered & (starts >= 0) & (starts < stops), first, last + 1)
        start, end = windows.targets(first, last)
        self._report(dataset, windows, answered, first <= last, start > 0)
        return {"start": start, "end": end}

    def _report(
        self,
        dataset: Dataset[QuestionExample],
        windows: Windows,
        answered: np.ndarray,
        inside: np.ndarray,
        held: np.ndarray,
    ) -> None:
        """Report the examples that are trained on as if they had no answer: their number and the first of each kind."""
        windowed = np.zeros(len(dataset), dtype=bool)
        windowed[windows.examples[held]] = True
        kinds = [
            (answered & ~inside, "have an answer outside their context", "correct its answer_start"),
            (
                answered & inside & ~windowed,
                f"have an answer that no window of max_length={self.settings.max_length} holds whole",
                f"use a larger max_length or stride={self.settings.stride}",
            ),
        ]
        if not self.settings.unanswerable:
            kinds.append((~answered, "have no answer", "allow that with unanswerable"))
        for mask, problem, cure in kinds:
            if mask.any():
                self.report_unusable(
                    f"{dataset.where(int(mask.argmax()))}: the first of {int(mask.sum())} questions (of"
                    f" {len(dataset)}) that {problem}, and point to [CLS]: {cure}"
                )

    def items(self, batch: TaskBatch) -> int:
        return len(batch.inputs)

    def forward(self, model: Any, batch: TaskBatch, items: float, **options: Any) -> TaskOutput:
        """Return the loss, and the logits of all rows' starts followed by those of their ends, (2 rows, positions)."""
        import torch

        from fastbert.packing import pad

        start, end = batch.targets["start"], batch.targets["end"]
        output = model(batch.inputs, start_positions=start, end_positions=end, **options)
        slots = batch.inputs.sequence_ids * batch.inputs.max_seqlen + batch.inputs.offsets_in_sequence
        shape = (len(batch.inputs), batch.inputs.max_seqlen)
        logits = [pad(x.float(), slots, shape, fill=PADDING_LOGIT) for x in (output.start_logits, output.end_logits)]
        return TaskOutput(output.loss * (len(batch.inputs) / items), torch.cat(logits), output.hidden_states or ())

    def loss(self, model: Any, batch: TaskBatch, items: float) -> Tensor:
        start, end = batch.targets["start"], batch.targets["end"]
        mean: Tensor = model(batch.inputs, start_positions=start, end_positions=end).loss
        return mean * (len(batch.inputs) / items)

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return the logits of start and end at each token of a row, (2, tokens)."""
        output = model(batch.inputs)
        logits = np.stack([x.float().cpu().numpy() for x in (output.start_logits, output.end_logits)])
        return np.split(logits, batch.inputs.cu_seqlens.cpu().numpy()[1:-1], axis=1)

    def decode(self, dataset: Dataset[QuestionExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Return the best answer of each example, the characters `start` up to `end` of its context, and the next best.

        Probabilities are over the best. With `unanswerable` there is also `null_score_difference`, the score of no
        answer minus the best answer's; an empty text, whose start and end are None, predicts that there is no answer.
        """
        assert isinstance(rows, SpanRows)
        return find_answers(dataset, rows, outputs, self.settings)

    def gold_prediction(self, example: QuestionExample) -> Prediction:
        text = example.answers[0].text if example.answers else ""
        return {"id": example.id, "text": text} | ({BEST: text, NO_ANSWER: 0.0} if self.settings.unanswerable else {})

    def baselines(
        self, dataset: Dataset[QuestionExample], train: Dataset[QuestionExample] | None = None
    ) -> tuple[Baseline, ...]:
        from fastbert.tasks.reports.answers import first_words
        from fastbert.tasks.reports.baselines import scored

        if all(example.answers for example in dataset):
            name, texts = "first words", first_words(dataset)
        else:
            name, texts = "no answer", [""] * len(dataset)
        return (scored(self.score, dataset, "majority", name, "text", texts),)

    def constant_loss(self, rows: Rows) -> float:
        """Return the loss of equal probabilities: the mean logarithm of the number of tokens of a row."""
        return float(np.log(rows.lengths).mean())

    def report(
        self,
        dataset: Dataset[QuestionExample],
        predictions: Sequence[Prediction],
        train: Dataset[QuestionExample] | None = None,
    ) -> Report:
        from fastbert.tasks.reports.answers import span_report

        return span_report(dataset, predictions)

    def add_no_answer(
        self, path: Path, dataset: Dataset[QuestionExample], predictions: list[Prediction]
    ) -> list[Prediction]:
        from fastbert.tasks.prediction_files import read_no_answer_probabilities

        probabilities = read_no_answer_probabilities(path, dataset)
        return [{**prediction, NO_ANSWER_PROBABILITY: probabilities[prediction["id"]]} for prediction in predictions]

    def score(self, dataset: Dataset[QuestionExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        from fastbert.tasks.metrics.questions import squad_scores, thresholded_scores

        texts = {prediction["id"]: prediction["text"] for prediction in predictions}
        if all(NO_ANSWER_PROBABILITY in prediction for prediction in predictions):
            probabilities = {prediction["id"]: prediction[NO_ANSWER_PROBABILITY] for prediction in predictions}
            return squad_scores(dataset, texts, probabilities)
        if all(NO_ANSWER in prediction for prediction in predictions):
            return thresholded_scores(dataset, predictions)
        return squad_scores(dataset, texts)
