"""Sequence to sequence: a text for each text, as of summaries and translations, by a decoder or a prefix mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.seq2seq.config import Kind, SequenceConfig
from fastbert.models.seq2seq.generation import GenerationSettings
from fastbert.models.seq2seq.model import BertForSequenceToSequence
from fastbert.tasks.base import Prediction, Task, TaskSettings
from fastbert.tasks.examples import Dataset, SequenceExample
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tokenizers import WordPieceTokenizer

SPECIAL = 2  # tokens around a text: [CLS] and [SEP]


class SequenceToSequence(Task[SequenceExample]):
    """Writes `[CLS] target [SEP]` for `[CLS] source [SEP]`.

    Both are cut to their lengths; of targets that had to be cut, the first is named and they are counted. A tokenizer
    is known from `encode` on: with it configs know begin and end, and ids become text.
    """

    name = "seq2seq"
    head = BertForSequenceToSequence
    metrics = ("rougeL", "rouge1", "rouge2", "bleu")

    def __init__(self, settings: TaskSettings, labels: Sequence[str] | None = None) -> None:
        super().__init__(settings, labels)
        if settings.max_length < SPECIAL:
            raise UserError(f"max_length={settings.max_length} has no room for the {SPECIAL} special tokens")
        self.generation = GenerationSettings(beams=settings.beams, max_target_length=settings.max_target_length)
        self.tokenizer: WordPieceTokenizer | None = None

    def read(self, path: str, *, labelled: bool = True) -> Dataset[SequenceExample]:
        from fastbert.tasks.readers.sequences import read_sequences

        return read_sequences(path, self.settings.columns, labelled=labelled, skip_bad=self.settings.skip_bad)

    def head_config(self, config: BertConfig) -> SequenceConfig:
        settings, known = self.settings, self.tokenizer
        begin = None if known is None else known.cls_token_id
        end = None if known is None else known.sep_token_id
        if isinstance(config, SequenceConfig):
            self._check_same(config)
            config = replace(config, begin_token_id=begin, end_token_id=end) if known else config
        else:
            config = SequenceConfig(
                **{one.name: getattr(config, one.name) for one in fields(BertConfig)},
                kind=cast(Kind, settings.decoder or "bert2bert"),
                decoder_layers=settings.decoder_layers,
                begin_token_id=begin,
                end_token_id=end,
            )
        positions = settings.max_target_length - 1
        read = f"max_target_length={settings.max_target_length}"
        if config.kind == "prefix":
            positions += settings.max_length - 1
            read += f" behind sources of max_length={settings.max_length}"
        if positions > config.max_position_embeddings:
            raise UserError(
                f"{read} needs {positions} positions, and the model has {config.max_position_embeddings}: use shorter"
                " ones"
            )
        return config

    def _check_same(self, config: SequenceConfig) -> None:
        """Refuse flags that ask a model that already writes for another decoder than it has."""
        kind, layers = self.settings.decoder, self.settings.decoder_layers
        if kind not in (None, config.kind):
            raise UserError(f"--decoder {kind}: the model already writes, as {config.kind}; leave --decoder out")
        if layers not in (None, config.decoder.num_hidden_layers):
            has = config.decoder.num_hidden_layers
            raise UserError(f"--decoder-layers {layers}: the model's decoder has {has}; leave --decoder-layers out")

    def encode(self, dataset: Dataset[SequenceExample], tokenizer: WordPieceTokenizer, *, labelled: bool) -> Rows:
        self.tokenizer = tokenizer
        sources = [example.source for example in dataset]
        numbers = np.arange(len(dataset), dtype=np.int64)
        rows = _rows(*tokenizer.encode_ragged(sources, True, max_length=self.settings.max_length), numbers)
        if not labelled:
            return rows
        targets = []
        for index, example in enumerate(dataset):
            if example.target is None:
                raise UserError(f"{dataset.where(index)}: has no target to learn; give it one, or leave it out")
            targets.append(example.target)
        ids, offsets = self._cut(dataset, *tokenizer.encode_ragged(targets, True))
        return _rows(rows.input_ids, rows.offsets, numbers, decoder=_rows(ids, offsets, numbers))

    def _cut(
        self, dataset: Dataset[SequenceExample], ids: np.ndarray, offsets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Targets of at most `max_target_length` tokens, the last of which ends them."""
        most, lengths = self.settings.max_target_length, np.diff(offsets)
        longer = np.flatnonzero(lengths > most)
        if not len(longer):
            return ids, offsets
        first = int(longer[0])
        others = f", and so are {len(longer) - 1:,} more" if len(longer) > 1 else ""
        self.set_aside(
            f"{dataset.where(first)}: the target has {lengths[first]:,} tokens, more than max_target_length={most}, and"
            f" is cut{others}"
        )
        # The last of the tokens that stay makes room for the one that ends the target.
        place = np.arange(len(ids)) - np.repeat(offsets[:-1], lengths)
        left = np.repeat(lengths, lengths) - place
        kept = (place < most - 1) | (left == 1)
        return ids[kept], np.concatenate(([0], np.cumsum(np.minimum(lengths, most)))).astype(np.int64)

    def items(self, batch: TaskBatch) -> int:
        assert batch.decoder is not None
        return batch.decoder.num_tokens - len(batch.decoder)

    def loss(self, model: Any, batch: TaskBatch, items: int) -> Tensor:
        losses = model.losses(batch.inputs, batch.decoder)
        mean: Tensor = losses.loss_sum / items
        return mean

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Of each row its score, and behind it the ids that were written, which fp32 holds as they are."""
        begin, end = self._known().cls_token_id, self._known().sep_token_id
        written = model.generate(batch.inputs, settings=self.generation, begin=begin, end=end)
        return [
            np.array([score, *tokens], dtype=np.float32)
            for score, tokens in zip(written.scores, written.tokens, strict=True)
        ]

    def decode(self, dataset: Dataset[SequenceExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        ids = [output[1:].astype(np.int64).tolist() for output in outputs]
        texts = [self._known().decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=True) for row in ids]
        return [
            {"id": example.id, "text": text, "score": float(output[0])}
            for example, text, output in zip(dataset, texts, outputs, strict=True)
        ]

    def right(self, example: SequenceExample) -> Prediction:
        return {"id": example.id, "text": example.target or ""}

    def score(self, dataset: Dataset[SequenceExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        if not len(dataset):
            raise UserError(f"{dataset.path}: holds no example to score")
        gold = []
        for index, example in enumerate(dataset):
            if example.target is None:
                raise UserError(f"{dataset.where(index)}: has no target to score against")
            gold.append(example.target)
        from fastbert.tasks.metrics.generation import generation_scores

        scores: dict[str, float] = generation_scores(gold, [str(one["text"]) for one in predictions])
        return scores

    def _known(self) -> WordPieceTokenizer:
        if self.tokenizer is None:
            raise AssertionError("rows are encoded before anything is written")
        return self.tokenizer


def _rows(ids: np.ndarray, offsets: np.ndarray, examples: np.ndarray, decoder: Rows | None = None) -> Rows:
    return Rows(input_ids=ids, token_type_ids=np.zeros_like(ids), offsets=offsets, examples=examples, decoder=decoder)
