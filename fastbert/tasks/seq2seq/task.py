"""Sequence to sequence: a text per text, such as a summary or a translation, by a decoder or a prefix mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.tasks.base import Task
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, SequenceExample, confidences
from fastbert.tasks.row_template import both_ends
from fastbert.tasks.rows import Rows, TaskBatch, bounds
from fastbert.tasks.seq2seq.flags import SequenceFlags
from fastbert.tasks.settings import TaskSettings
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from fastbert.models.base import PreTrainedModel
    from fastbert.models.seq2seq.config import SequenceConfig
    from fastbert.models.seq2seq.generation import GenerationSettings
    from fastbert.models.seq2seq.transformer.config import TransformerConfig
    from fastbert.tasks.reports.report import Baseline, Report

SPECIAL = 2  # tokens around a text: [CLS] and [SEP]


@dataclass(frozen=True, kw_only=True)
class SequenceSettings(TaskSettings, SequenceFlags):
    """Settings of sequence to sequence."""


class SequenceToSequence(Task[SequenceExample]):
    """Write `[CLS] target [SEP]` for `[CLS] source [SEP]`, each cut to its length; targets that are cut are reported.

    `encode` sets the tokenizer, which `head_config` and `decode` need.
    """

    name = "seq2seq"
    metrics: ClassVar[tuple[str, ...]] = ("rougeL", "rouge1", "rouge2", "bleu", "chrf", "exact_match")
    prediction_format: ClassVar[PredictionFormat] = PredictionFormat("text", (".txt",), details=confidences("score"))
    settings_type: ClassVar[type[SequenceSettings]] = SequenceSettings
    can_distill = False
    head_has_labels = False
    least: ClassVar[Mapping[str, int]] = {"max_length": SPECIAL, "max_target_length": SPECIAL, "num_beams": 1}
    settings: SequenceSettings
    tokenizer: Tokenizer | None = None
    generation: GenerationSettings | None = None
    """Settings of generation that replace those of `settings`."""
    default_smoothing: float = 0.0
    """Label smoothing of the model that `head_config` described."""

    def head(self, config: BertConfig) -> type[PreTrainedModel]:
        from fastbert.models.registry import SEQUENCE_MODELS
        from fastbert.models.seq2seq.model import BertForSequenceToSequence

        return SEQUENCE_MODELS.get(config.model_type, BertForSequenceToSequence)

    def load_head(self, folder: Path, **options: Any) -> PreTrainedModel:
        from fastbert.checkpoints.source import config_folder

        return self.head(self.base_config(config_folder(folder))).from_pretrained(folder, **options)

    def read(self, path: str, *, labelled: bool = True) -> Dataset[SequenceExample]:
        from fastbert.tasks.readers.sequences import read_sequences

        return read_sequences(path, self.settings.columns, labelled=labelled, skip_bad=self.settings.skip_bad)

    def base_config(self, folder: Path) -> BertConfig:
        """Read the config of an encoder, or of a model that already has a decoder."""
        from fastbert.checkpoints.source import config_folder
        from fastbert.models.seq2seq.config import SequenceConfig

        return SequenceConfig.of_writer(config_folder(folder)) or super().base_config(folder)

    def head_config(self, config: BertConfig) -> SequenceConfig | TransformerConfig:
        from fastbert.models.seq2seq.config import SequenceConfig
        from fastbert.models.seq2seq.transformer.config import TransformerConfig

        settings, tokenizer = self.settings, self.tokenizer
        begin, end = (None, None) if tokenizer is None else both_ends(tokenizer)
        if isinstance(config, TransformerConfig):
            self._check_no_decoder(config)
            config = replace(config, begin_token_id=begin, end_token_id=end) if tokenizer else config
        elif isinstance(config, SequenceConfig):
            self._check_same(config)
            config = replace(config, begin_token_id=begin, end_token_id=end) if tokenizer else config
        elif config.is_decoder:
            raise UserError(
                f"--task seq2seq: the model reads left to right ({config.model_type}, is_decoder=True); name a BERT"
                " that reads in both directions with --model"
            )
        elif config.model_type != BertConfig.model_type:
            raise UserError(
                f"--task seq2seq: a decoder is added to BERT alone, not to a model of {config.model_type}; name a BERT"
                " with --model, or train a Transformer with --architecture transformer"
            )
        else:
            config = SequenceConfig(
                **{field.name: getattr(config, field.name) for field in fields(BertConfig)},
                kind=settings.decoder or "bert2bert",
                decoder_layers=settings.decoder_layers,
                begin_token_id=begin,
                end_token_id=end,
            )
        self.default_smoothing = config.default_label_smoothing
        positions = settings.max_target_length - 1
        flags = f"max_target_length={settings.max_target_length}"
        if isinstance(config, SequenceConfig) and config.kind == "prefix":
            positions += settings.max_length - 1
            flags += f" after sources of max_length={settings.max_length}"
        if positions > config.max_position_embeddings:
            raise UserError(
                f"{flags} needs {positions} positions, and the model has {config.max_position_embeddings}: use shorter"
                " lengths"
            )
        return config

    def _check_same(self, config: SequenceConfig) -> None:
        """Raise UserError for flags that contradict the decoder that the model already has."""
        kind, layers = self.settings.decoder, self.settings.decoder_layers
        if kind not in (None, config.kind):
            raise UserError(f"--decoder {kind}: the model already has a decoder, {config.kind}; omit --decoder")
        if layers not in (None, config.decoder.num_hidden_layers):
            count = config.decoder.num_hidden_layers
            raise UserError(f"--decoder-layers {layers}: the model's decoder has {count}; leave --decoder-layers out")

    def _check_no_decoder(self, config: TransformerConfig) -> None:
        """Raise UserError for flags of a decoder that is added to BERT."""
        kind, layers = self.settings.decoder, self.settings.decoder_layers
        if kind is not None:
            raise UserError(f"--decoder {kind}: the Transformer has its own decoder; omit --decoder")
        if layers not in (None, config.layers_of_decoder):
            raise UserError(
                f"--decoder-layers {layers}: the Transformer's decoder has {config.layers_of_decoder}; set"
                " decoder_layers in its config.json"
            )

    def encode(self, dataset: Dataset[SequenceExample], tokenizer: Tokenizer, *, labelled: bool) -> Rows:
        both_ends(tokenizer)  # every target must begin and end
        self.tokenizer = tokenizer
        sources = [example.source for example in dataset]
        numbers = np.arange(len(dataset), dtype=np.int64)
        rows = _rows(*tokenizer.encode_ragged(sources, True, max_length=self.settings.max_length), numbers)
        if not labelled:
            return rows
        targets = [example.target or "" for example in dataset]
        ids, offsets = self._cut(dataset, *tokenizer.encode_ragged(targets, True))
        return _rows(rows.input_ids, rows.offsets, numbers, decoder=_rows(ids, offsets, numbers))

    def _cut(
        self, dataset: Dataset[SequenceExample], ids: np.ndarray, offsets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cut targets to `max_target_length` tokens, the last of which is still [SEP]."""
        most, lengths = self.settings.max_target_length, np.diff(offsets)
        longer = np.flatnonzero(lengths > most)
        if not len(longer):
            return ids, offsets
        first = int(longer[0])
        others = f", and so are {len(longer) - 1:,} more" if len(longer) > 1 else ""
        self.report_unusable(
            f"{dataset.where(first)}: the target has {lengths[first]:,} tokens, more than max_target_length={most}, and"
            f" is truncated{others}"
        )
        # The last remaining token makes room for [SEP].
        position = np.arange(len(ids)) - np.repeat(offsets[:-1], lengths)
        is_last = position == np.repeat(lengths, lengths) - 1
        selected = (position < most - 1) | is_last
        return ids[selected], bounds(np.minimum(lengths, most))

    def items(self, batch: TaskBatch) -> int:
        assert batch.decoder is not None
        return batch.decoder.num_tokens - len(batch.decoder)

    def loss(self, model: Any, batch: TaskBatch, items: float) -> Tensor:
        smoothing = self.settings.label_smoothing
        smoothing = model.config.default_label_smoothing if smoothing is None else smoothing
        mean: Tensor = model.losses(batch.inputs, batch.decoder, smoothing).loss_sum / items
        return mean

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return for each row its score followed by the generated ids, which fp32 represents exactly."""
        from fastbert.models.seq2seq.generation import GenerationSettings

        tokenizer = self.tokenizer
        assert tokenizer is not None  # `encode` sets it
        begin, end = both_ends(tokenizer)
        how = self.generation or GenerationSettings(
            beams=self.settings.num_beams, max_target_length=self.settings.max_target_length
        )
        generated = model.generate(batch.inputs, settings=how, begin=begin, end=end)
        return [
            np.array([score, *tokens], dtype=np.float32)
            for score, tokens in zip(generated.scores, generated.tokens, strict=True)
        ]

    def decode(self, dataset: Dataset[SequenceExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        tokenizer = self.tokenizer
        assert tokenizer is not None
        ids = [output[1:].astype(np.int64).tolist() for output in outputs]
        texts = [tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=True) for row in ids]
        return [
            {"id": example.id, "text": text, "score": float(output[0])}
            for example, text, output in zip(dataset, texts, outputs, strict=True)
        ]

    def gold_prediction(self, example: SequenceExample) -> Prediction:
        return {"id": example.id, "text": example.target or ""}

    def baselines(
        self, dataset: Dataset[SequenceExample], train: Dataset[SequenceExample] | None = None
    ) -> tuple[Baseline, ...]:
        """Return the scores of the source itself, and of its first words, as many as a target has on average."""
        from fastbert.tasks.reports.baselines import scored

        targets = [example.target or "" for example in train or dataset]
        count = max(1, round(float(np.mean([len(target.split()) for target in targets]))))
        sources = [example.source for example in dataset]
        leads = [" ".join(source.split()[:count]) for source in sources]
        return (
            scored(self.score, dataset, "copy", "the source", "text", sources),
            scored(self.score, dataset, "lead", f"the source's first {count} words", "text", leads),
        )

    def constant_loss(self, rows: Rows) -> float:
        """Return the entropy of the tokens that are written in training, in nats."""
        from fastbert.tasks.reports.baselines import frequency_loss

        assert rows.decoder is not None
        smoothing = self.default_smoothing if self.settings.label_smoothing is None else self.settings.label_smoothing
        labels = np.delete(rows.decoder.input_ids, rows.decoder.offsets[:-1])
        classes = 0 if self.tokenizer is None else len(self.tokenizer)
        return frequency_loss(labels, smoothing=smoothing, classes=classes)

    def report(
        self,
        dataset: Dataset[SequenceExample],
        predictions: Sequence[Prediction],
        train: Dataset[SequenceExample] | None = None,
    ) -> Report:
        from fastbert.tasks.reports.texts import sequence_report

        return sequence_report(dataset, predictions)

    def score(self, dataset: Dataset[SequenceExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        from fastbert.tasks.metrics.generation import generation_scores

        gold = [example.target or "" for example in dataset]
        return generation_scores(gold, [str(prediction["text"]) for prediction in predictions])


def _rows(ids: np.ndarray, offsets: np.ndarray, examples: np.ndarray, decoder: Rows | None = None) -> Rows:
    return Rows(input_ids=ids, token_type_ids=np.zeros_like(ids), offsets=offsets, examples=examples, decoder=decoder)
