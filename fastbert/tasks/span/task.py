"""Span question answering, as SQuAD 1.1 and 2.0: where in a context the answer to a question stands.

The recipe of BERT's own code and of transformers' example (Devlin et al. 2019, sections 4.2 and 4.3): the question
first, the context second, long contexts in windows, an answer that a window does not hold whole at its [CLS].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.heads.tokens import BertForQuestionAnswering
from fastbert.packing import pad
from fastbert.tasks.base import Answer, Prediction, Task, TaskSettings
from fastbert.tasks.examples import Dataset, QuestionExample
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tasks.span.decode import Search, find_answers
from fastbert.tasks.span.rows import QUESTION_LENGTH, Contexts, SpanRows, Windows, cut_windows, lay_out, read_contexts
from fastbert.tokenizers import WordPieceTokenizer

BEHIND = -1e4  # the logit of a place behind a row's end, where shorter rows stand beside longer ones


class SpanAnswers(Task[QuestionExample]):
    """Answers as spans of their contexts."""

    name = "span"
    head = BertForQuestionAnswering
    metrics = ("f1", "exact_match")

    def __init__(self, settings: TaskSettings, labels: Sequence[str] | None = None) -> None:
        super().__init__(settings, None)
        for name, least in (("stride", 0), ("n_best", 1), ("max_answer_length", 1)):
            if getattr(settings, name) < least:
                raise UserError(f"{name}={getattr(settings, name)} must be at least {least}")

    def read(self, path: str, *, labelled: bool = True) -> Dataset[QuestionExample]:
        from fastbert.tasks.readers.squad import read_squad

        return read_squad(path, labelled=labelled, set_aside=self.set_aside, skip_bad=self.settings.skip_bad)

    def read_gold(self, path: str) -> Dataset[QuestionExample]:
        """Answers as the file has them, wherever they stand."""
        from fastbert.tasks.readers.squad import read_squad

        return read_squad(path, labelled=True, set_aside=self.set_aside, spans=False, skip_bad=self.settings.skip_bad)

    def head_config(self, config: BertConfig) -> BertConfig:
        """A start and an end, which have no names."""
        return replace(config, num_labels=2, label_names=None)

    def encode(self, dataset: Dataset[QuestionExample], tokenizer: WordPieceTokenizer, *, labelled: bool) -> SpanRows:
        if not len(dataset):
            raise UserError(f"{dataset.path} holds no question: name a file that does")
        ids, offsets = tokenizer.encode_ragged([example.question for example in dataset])
        questions = np.minimum(np.diff(offsets), QUESTION_LENGTH)
        contexts = read_contexts(dataset, tokenizer)
        windows = cut_windows(dataset, contexts, questions, self.settings.max_length, self.settings.stride)
        targets = self._targets(dataset, contexts, windows) if labelled else {}
        return lay_out(windows, contexts, ids, offsets[:-1], tokenizer, targets)

    def _targets(
        self, dataset: Dataset[QuestionExample], contexts: Contexts, windows: Windows
    ) -> dict[str, np.ndarray]:
        """Where the first answer of each example stands in each of its windows."""
        starts, stops = np.zeros(len(dataset), dtype=np.int64), np.zeros(len(dataset), dtype=np.int64)
        answered = np.zeros(len(dataset), dtype=bool)
        for index, example in enumerate(dataset):
            if example.answers is None:
                raise UserError(f"{dataset.where(index)}: the answers are unknown: name a file that has them")
            if example.answers:
                answer = example.answers[0]
                answered[index] = True
                starts[index], stops[index] = answer.start, answer.start + len(answer.text)
        first, last = contexts.spans(starts, stops)
        # An answer that begins before its context, or has no characters, stands nowhere.
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
        """Count the examples that are trained on as if they had no answer, and name the first of each kind."""
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
            kinds.append((~answered, "have no answer", "say that contexts may hold none (unanswerable)"))
        for wrong, what, cure in kinds:
            if wrong.any():
                self.set_aside(
                    f"{dataset.where(int(wrong.argmax()))}: the first of {int(wrong.sum())} questions (of"
                    f" {len(dataset)}) that {what}, and point to [CLS]: {cure}"
                )

    def items(self, batch: TaskBatch) -> int:
        return len(batch.inputs)

    def answer(self, model: Any, batch: TaskBatch, items: int, **options: Any) -> Answer:
        """Logits are those of the starts of all rows, then those of the ends, over the places of a row."""
        start, end = batch.targets["start"], batch.targets["end"]
        found = model(batch.inputs, start_positions=start, end_positions=end, **options)
        slots = batch.inputs.sequence_ids * batch.inputs.max_seqlen + batch.inputs.offsets_in_sequence
        shape = (len(batch.inputs), batch.inputs.max_seqlen)
        logits = [pad(one.float(), slots, shape, fill=BEHIND) for one in (found.start_logits, found.end_logits)]
        return Answer(found.loss * (len(batch.inputs) / items), torch.cat(logits), found.hidden_states or ())

    def loss(self, model: Any, batch: TaskBatch, items: int) -> Tensor:
        start, end = batch.targets["start"], batch.targets["end"]
        mean: Tensor = model(batch.inputs, start_positions=start, end_positions=end).loss
        return mean * (len(batch.inputs) / items)

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """The logits of start and end at each token of a row, (2, tokens)."""
        found = model(batch.inputs)
        logits = np.stack([x.float().cpu().numpy() for x in (found.start_logits, found.end_logits)])
        return np.split(logits, batch.inputs.cu_seqlens.cpu().numpy()[1:-1], axis=1)

    def decode(self, dataset: Dataset[QuestionExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """The best answer of each example, as the characters `start` up to `end` of its context, and the next best.

        Probabilities are over the best. With `unanswerable` there is also `null_score_difference`, the score of no
        answer less the best answer's; an answer of no text, whose start and end are None, is that there is none.
        """
        assert isinstance(rows, SpanRows)
        settings = self.settings
        search = Search(
            n_best=settings.n_best,
            max_answer_length=settings.max_answer_length,
            null_threshold=settings.null_threshold if settings.unanswerable else None,
        )
        return find_answers(dataset, rows, outputs, search)

    def right(self, example: QuestionExample) -> Prediction:
        text = example.answers[0].text if example.answers else ""
        return {"id": example.id, "text": text, "best_answer": text, "null_score_difference": 0.0}

    def score(self, dataset: Dataset[QuestionExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        from fastbert.tasks.metrics.questions import squad_scores, thresholded_scores

        if self.settings.unanswerable:
            return thresholded_scores(dataset, predictions)
        return squad_scores(dataset, {prediction["id"]: prediction["text"] for prediction in predictions})
