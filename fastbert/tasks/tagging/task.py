"""Tagging: a tag per word of a sentence, for named entities (BIO, IOB1, BIOES) or parts of speech.

The first sub-token of a word carries its tag (Devlin et al. 2019, section 5.3). A word without tokens, such as one of
control characters, does not reach the model, as in transformers; it is tagged `O`, or with the first tag if there is no
`O`. Sentences longer than a row are cut into windows, and each word is tagged in one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.config import BertConfig
from fastbert.embeddings.rows import LEAST_LENGTH, windowed
from fastbert.errors import UserError
from fastbert.io.text import whole_characters
from fastbert.tasks.base import Task, TaskOutput
from fastbert.tasks.class_weights import ClassWeightFlags, class_weights, weighted_class_loss
from fastbert.tasks.examples import Dataset, Example, Prediction, PredictionFormat, TaggedExample, cell, confidences
from fastbert.tasks.label_counts import refuse_texts
from fastbert.tasks.readers.conll import read_conll
from fastbert.tasks.readers.tags import OUTSIDE, scheme_of, spans_of
from fastbert.tasks.row_template import RowTemplate, encode_words
from fastbert.tasks.rows import Rows, TaskBatch, bounds, runs
from fastbert.tasks.settings import Columns, TaskSettings
from fastbert.tasks.tagging.flags import TaggingFlags
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from fastbert.packing import PackedBatch
    from fastbert.tasks.reports.report import Baseline, Report

UNLABELLED = -100  # packing.UNLABELLED, without torch


@dataclass(frozen=True, kw_only=True, eq=False)
class TagRows(Rows):
    """Rows of sentences, and the words that are tagged in them, all int64.

    Row i has the words `word_offsets[i]` up to `word_offsets[i + 1]` of `words`, which are numbers among all words of
    the dataset; `positions` are those of their first tokens in the row, and `labels` are -100 if they are unknown.
    `weights` are those of the labels in the loss, fp32, None if all weigh 1.
    """

    word_offsets: np.ndarray
    words: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None

    def batch(self, units: np.ndarray, keys: np.ndarray | None = None) -> TaskBatch:
        import torch

        batch = super().batch(units, keys)
        if self.weights is None:
            return batch
        words = runs(self.word_offsets[units], np.diff(self.word_offsets)[units])
        return replace(batch, targets={"weights": torch.from_numpy(self.weights[words])})

    def packed(self, rows: np.ndarray, keys: np.ndarray | None = None) -> PackedBatch:
        import torch

        batch = super().packed(rows, keys)
        counts = np.diff(self.word_offsets)[rows]
        words = runs(self.word_offsets[rows], counts)
        begins = bounds(self.lengths[rows])[:-1]
        return replace(
            batch,
            masked_positions=torch.from_numpy(np.repeat(begins, counts) + self.positions[words]),
            labels=torch.from_numpy(self.labels[words]),
        )


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(TaskSettings, TaggingFlags, ClassWeightFlags):
    """Settings of tagging."""


def _checked_tags(value: Any, where: str, example: Example) -> list[str]:
    """Return predicted tags. Raises UserError, naming the place, unless there is one per word."""
    assert isinstance(example, TaggedExample)
    if not isinstance(value, list) or not all(isinstance(tag, str) and tag for tag in value):
        raise UserError(f"{where}: 'tags' must be a list of strings")
    if len(value) != len(example.words):
        raise UserError(f"{where}: has {len(value)} tags for the {len(example.words)} words of {example.location}")
    return [whole_characters(tag) for tag in value]


def _conll(dataset: Dataset[Any], predictions: Sequence[Prediction]) -> str:
    """Return words and predicted tags, one per line, with an empty line after each sentence."""
    return "".join(
        "".join(f"{cell(word)}\t{tag}\n" for word, tag in zip(example.words, prediction["tags"])) + "\n"
        for example, prediction in zip(dataset, predictions)
    )


def _read_conll(path: str, dataset: Dataset[Any]) -> list[Prediction]:
    """Read a CoNLL file with the predicted tag in the last column and the words of the dataset."""
    predicted = read_conll(path, Columns(), labelled=True)
    for i, (gold, example) in enumerate(zip(dataset, predicted)):
        if gold.words != example.words:
            same = [*map(eq, gold.words, example.words), False].index(False)
            raise UserError(
                f"{predicted.where(i)}: word {same + 1} is not that of {dataset.where(i)}; the words must be the same"
            )
    if len(predicted) != len(dataset):
        last = predicted.where(len(predicted) - 1)
        raise UserError(
            f"{last}: ends after {len(predicted)} sentences, {dataset.path} has {len(dataset)}; give one for each"
        )
    return [{"id": gold.id, "tags": list(example.tags or ())} for gold, example in zip(dataset, predicted)]


class Tagging(Task[TaggedExample]):
    """A tag per word."""

    name = "tagging"
    head_name = "ForTokenClassification"
    metrics: ClassVar[tuple[str, ...]] = ("f1", "precision", "recall", "accuracy")
    prediction_format: ClassVar[PredictionFormat] = PredictionFormat(
        "tags", (".conll", ".txt"), _checked_tags, confidences("probability"), write_text=_conll, read_text=_read_conll
    )
    settings_type: ClassVar[type[TaggingSettings]] = TaggingSettings
    least: ClassVar[Mapping[str, int]] = {"max_length": LEAST_LENGTH, "context_tokens": 0}
    settings: TaggingSettings

    @property
    def main_metric(self) -> str:
        """F1 of entities, or accuracy if the tags are not of entities."""
        return self.settings.metric or ("f1" if self.labels and scheme_of(self.labels) else "accuracy")

    def read(self, path: str, *, labelled: bool = True) -> Dataset[TaggedExample]:
        return read_conll(path, self.settings.columns, labelled=labelled, skip_bad=self.settings.skip_bad)

    def learn_labels(self, train: Dataset[TaggedExample]) -> None:
        if self.labels is not None:
            return
        labels = sorted({tag for example in train for tag in example.tags or ()})
        if len(labels) < 2:
            count = f"one tag, {labels[0]!r}" if labels else "no tags"
            raise UserError(f"{train.path} holds {count}, and there is nothing to learn: name the column of the tags")
        refuse_texts(train.path, labels, sum(len(example.words) for example in train), "words")
        self.labels: tuple[str, ...] = tuple(labels)

    @classmethod
    def labels_of(cls, config: BertConfig, folder: Path) -> tuple[str, ...] | None:
        return tuple(config.id2label.values())

    def check_labels(self, dataset: Dataset[TaggedExample]) -> None:
        known = set(self.known_labels)
        for index, example in enumerate(dataset):
            for word, tag in enumerate(example.tags or ()):
                if tag not in known:
                    raise UserError(
                        f"{dataset.where(index)}: the tag {tag!r} of word {word + 1}, {example.words[word]!r}, is none"
                        f" of the {len(known)} of the training set ({', '.join(self.known_labels[:9])}"
                        f"{', ...' if len(known) > 9 else ''}): correct it, or train with examples of it"
                    )

    def encode(self, dataset: Dataset[TaggedExample], tokenizer: Tokenizer, *, labelled: bool) -> TagRows:
        template = RowTemplate.of(tokenizer)
        room, special = self.settings.max_length - template.added, len(template.before)
        ids, of_words = encode_words(tokenizer, [word for example in dataset for word in example.words])
        sentences = bounds(np.fromiter((len(example.words) for example in dataset), np.int64, len(dataset)))
        begins = of_words[sentences]
        windows = windowed(ids, begins[:-1], np.diff(begins), room, template)
        # The tokens of the dataset that count in each window; together these are all tokens, each once.
        first = windows.begins + np.maximum(windows.firsts, special) - special
        end = windows.begins + np.minimum(windows.ends - special, windows.sizes)
        with_tokens = np.flatnonzero(np.diff(of_words))
        first_tokens = of_words[with_tokens]
        first_word, end_word = np.searchsorted(first_tokens, first), np.searchsorted(first_tokens, end)
        # A row in which no word begins, such as the middle of a very long word or an empty sentence, is dropped.
        nonempty = np.flatnonzero(end_word > first_word)
        first_word, counts = first_word[nonempty], (end_word - first_word)[nonempty]
        examples = windows.texts[nonempty]
        row_begins, sizes = windows.begins[nonempty], windows.sizes[nonempty]
        if self.settings.context_tokens:
            before, behind = self._context(dataset, begins, examples, row_begins, sizes, room)
            row_begins, sizes = row_begins - before, sizes + before + behind
        tokenized = runs(first_word, counts)
        words = with_tokens[tokenized]
        offsets = bounds(sizes + template.added)
        input_ids = np.empty(offsets[-1], dtype=np.int32)
        template.write(input_ids, offsets)
        input_ids[runs(offsets[:-1] + special, sizes)] = ids[runs(row_begins, sizes)]
        labels = self._label_numbers(dataset, sentences)[words] if labelled else np.full_like(words, UNLABELLED)
        setting = self.settings.class_weights if labelled else None
        return TagRows(
            input_ids=input_ids,
            token_type_ids=np.zeros_like(input_ids),
            offsets=offsets,
            examples=examples,
            word_offsets=bounds(counts),
            words=words,
            positions=first_tokens[tokenized] - np.repeat(row_begins - special, counts),
            labels=labels,
            weights=None if setting is None else class_weights(setting, self.known_labels, labels)[labels],
        )

    def _context(
        self,
        dataset: Dataset[TaggedExample],
        begins: np.ndarray,
        examples: np.ndarray,
        row_begins: np.ndarray,
        sizes: np.ndarray,
        room: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of tokens of neighbouring sentences before and after each row: equal on both sides, as far
        as the document and the row allow."""
        documents = np.fromiter((example.document for example in dataset), np.int64, len(dataset))
        changes = np.flatnonzero(np.diff(documents)) + 1
        number = np.searchsorted(changes, examples, side="right")
        limits = begins[np.concatenate(([0], changes, [len(dataset)]))]
        free = room - sizes
        before = np.minimum(row_begins - limits[number], self.settings.context_tokens)
        behind = np.minimum(limits[number + 1] - row_begins - sizes, self.settings.context_tokens)
        before = np.minimum(before, np.maximum(free // 2, free - behind))
        return before, np.minimum(behind, free - before)

    def _label_numbers(self, dataset: Dataset[TaggedExample], sentences: np.ndarray) -> np.ndarray:
        """Return the class of every word of a dataset, int64."""
        self.check_labels(dataset)
        numbers = {label: number for number, label in enumerate(self.known_labels)}
        tags = chain.from_iterable(example.tags or () for example in dataset)
        return np.fromiter((numbers[tag] for tag in tags), np.int64, sentences[-1])

    def items(self, batch: TaskBatch) -> float:
        if "weights" in batch.targets:
            return float(batch.targets["weights"].double().sum())
        labels = batch.inputs.labels
        return 0 if labels is None else int((labels != UNLABELLED).sum())

    def forward(self, model: Any, batch: TaskBatch, items: float, **options: Any) -> TaskOutput:
        output = model(batch.inputs, return_logits=True, num_items_in_batch=items, **options)
        loss = output.loss
        if "weights" in batch.targets:
            assert batch.inputs.labels is not None
            loss = weighted_class_loss(output.logits, batch.inputs.labels, batch.targets["weights"], items)
        return TaskOutput(loss, output.logits, output.hidden_states or ())

    def loss(self, model: Any, batch: TaskBatch, items: float) -> Tensor:
        if "weights" in batch.targets:
            return super().loss(model, batch, items)
        loss: Tensor = model(batch.inputs, num_items_in_batch=items).loss
        return loss

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return the logits (words, labels) of each row's words."""
        positions = batch.inputs.masked_positions
        assert positions is not None
        logits = model(batch.inputs, return_logits=True, num_items_in_batch=1).logits.float().cpu().numpy()
        ends = np.searchsorted(positions.cpu().numpy(), batch.inputs.cu_seqlens.cpu().numpy()[1:])
        return np.split(logits, ends[:-1])

    def decode(self, dataset: Dataset[TaggedExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Return tags and their probabilities; `entities` count words from 0, with `end` exclusive.

        A word without tokens has probability 0.
        """
        assert isinstance(rows, TagRows)
        labels = self.known_labels
        sentences = bounds(np.fromiter((len(example.words) for example in dataset), np.int64, len(dataset)))
        classes = np.full(sentences[-1], labels.index(OUTSIDE) if OUTSIDE in labels else 0)
        probability = np.zeros(sentences[-1])
        if len(rows):
            logits = np.concatenate(outputs).astype(np.float64)
            classes[rows.words] = logits.argmax(axis=1)
            # Relative to the largest logit, so that the numerator is exp(0).
            probability[rows.words] = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
        names = np.array(labels, dtype=object)[classes].tolist()
        probabilities, offsets, scheme = probability.tolist(), sentences.tolist(), scheme_of(labels)
        predictions = []
        for example, begin, end in zip(dataset, offsets, offsets[1:]):
            tags = names[begin:end]
            entities = [
                {"type": kind, "start": first, "end": last, "text": " ".join(example.words[first:last])}
                for first, last, kind in (spans_of(tags, scheme) if scheme else ())
            ]
            predictions.append(
                {
                    "id": example.id,
                    "words": list(example.words),
                    "tags": tags,
                    "entities": entities,
                    "probability": probabilities[begin:end],
                }
            )
        return predictions

    def gold_prediction(self, example: TaggedExample) -> Prediction:
        return {"id": example.id, "tags": example.tags or ()}

    def baselines(
        self, dataset: Dataset[TaggedExample], train: Dataset[TaggedExample] | None = None
    ) -> tuple[Baseline, ...]:
        from fastbert.tasks.reports.baselines import scored
        from fastbert.tasks.reports.report import Baseline
        from fastbert.tasks.reports.tags import most_frequent_tags

        tags = Counter(tag for example in dataset for tag in example.tags or ())
        is_scheme = scheme_of(tags) is not None
        common = OUTSIDE if is_scheme else tags.most_common(1)[0][0]
        constant = [[common] * len(example.words) for example in dataset]
        baselines = [scored(self.score, dataset, "majority", f"all {common}", "tags", constant)]
        if not is_scheme:
            baselines.append(Baseline("chance", "chance", {"accuracy": 100 / len(self.labels or tags)}))
        if train is not None:
            frequent = most_frequent_tags(train, dataset)
            baselines.append(scored(self.score, dataset, "lookup", "tag lookup", "tags", frequent))
        return tuple(baselines)

    def constant_loss(self, rows: Rows) -> float:
        """Return the entropy of the tags that are trained on, weighted as the loss is, in nats."""
        from fastbert.tasks.reports.baselines import frequency_loss

        assert isinstance(rows, TagRows)
        return frequency_loss(rows.labels, rows.weights)

    def report(
        self,
        dataset: Dataset[TaggedExample],
        predictions: Sequence[Prediction],
        train: Dataset[TaggedExample] | None = None,
    ) -> Report:
        from fastbert.tasks.reports.tags import tagging_report

        return tagging_report(dataset, predictions, train)

    def score(self, dataset: Dataset[TaggedExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        from fastbert.tasks.metrics.tagging import tagging_scores

        gold = [example.tags or () for example in dataset]
        return tagging_scores(gold, [prediction["tags"] for prediction in predictions], where=dataset.path)
