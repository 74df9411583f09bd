"""Texts and pairs of texts as rows of tokens, for classification and regression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fastbert.errors import UserError
from fastbert.tasks.base import Task, TaskOutput
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.readers.tables import name_of
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tasks.settings import TaskSettings
from fastbert.tasks.text_files import STDIN
from fastbert.tokenizers import WordPieceTokenizer


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
class TextSettings(TaskSettings):
    """Settings of a task on texts."""

    paired: bool | None = None
    """True if the training examples were pairs of texts, False if single texts, None if unknown."""


class TextTask(Task[TextExample]):
    """A task with one label per text or pair of texts."""

    head_name = "ForSequenceClassification"
    settings_type = TextSettings
    regression: ClassVar[bool] = False
    settings: TextSettings

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

    def rows(self, dataset: Dataset[TextExample], tokenizer: WordPieceTokenizer) -> Rows:
        """Return a row `[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]` per example, cut to `max_length`, the longer
        text of a pair first."""
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
        batch = tokenizer.pack(texts, pairs if paired else None, max_length=self.settings.max_length)  # type: ignore[arg-type]
        return Rows(
            input_ids=batch.input_ids.numpy().astype(np.int32),
            token_type_ids=batch.token_type_ids.numpy().astype(np.int32),
            offsets=batch.cu_seqlens.numpy().astype(np.int64),
            examples=np.arange(len(dataset)),
        )

    def items(self, batch: TaskBatch) -> int:
        return len(batch.inputs)

    def forward(self, model: Any, batch: TaskBatch, items: int, **options: Any) -> TaskOutput:
        output = model(batch.inputs, labels=batch.targets["labels"], num_items_in_batch=items, **options)
        return TaskOutput(output.loss, output.logits, output.hidden_states or ())

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        return list(model(batch.inputs).logits.float().cpu().numpy())
