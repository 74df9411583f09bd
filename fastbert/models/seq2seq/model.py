"""Sequence-to-sequence models of BERT: an encoder with a decoder, or one stack under a prefix mask.

An encoder-decoder reads targets, `[CLS] text [SEP]`, as they are; one stack reads `[CLS] source [SEP] text` and
predicts `text [SEP]`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fastbert.checkpoints.weights import Weights
from fastbert.errors import UserError
from fastbert.models.bert.architecture import BERT
from fastbert.models.encoder import EncoderModel
from fastbert.models.heads.prediction import PredictionHead
from fastbert.models.heads.pretraining import MaskedLanguageModel
from fastbert.models.layers import ROWS_MULTIPLE, layer_batch
from fastbert.models.seq2seq.base import CrossAttentionModel, SequenceToSequenceModel, check_positions, filled
from fastbert.models.seq2seq.config import SequenceConfig
from fastbert.models.seq2seq.decoder import Decoder, DecoderParts, run_encoder_layers
from fastbert.models.seq2seq.decoding import PrefixDecoding
from fastbert.models.seq2seq.files import tied_names, weights_for
from fastbert.models.seq2seq.generation import Decoding, GenerationSettings
from fastbert.models.seq2seq.prefix import PrefixTeacherForcing, prefix_rows
from fastbert.ops.dropout.arguments import Site
from fastbert.packing import PackedBatch


class BertForSequenceToSequence(SequenceToSequenceModel):
    """A model that generates targets; `config.kind` selects `EncoderDecoder` or `PrefixModel`.

    `from_pretrained` reads BERT's files, with `kind`, `decoder_layers` and `sharing` as further arguments, and the
    files of `save_pretrained` and of transformers' `EncoderDecoderModel`.
    """

    architecture = BERT
    config: SequenceConfig
    config_type: ClassVar[type[SequenceConfig]] = SequenceConfig

    def __new__(cls, config: SequenceConfig, *_: Any, **__: Any) -> BertForSequenceToSequence:
        if not isinstance(config, SequenceConfig):
            raise UserError(f"{cls.__name__} takes a SequenceConfig, not a {type(config).__name__}")
        kind = PrefixModel if config.kind == "prefix" else EncoderDecoder
        if not issubclass(kind, cls):
            raise UserError(f"kind={config.kind!r} makes a {kind.__name__}, not a {cls.__name__}")
        model: BertForSequenceToSequence = super().__new__(kind)
        return model

    def __getnewargs__(self) -> tuple[SequenceConfig]:
        """Return the arguments of `__new__` for a copy."""
        return (self.config,)

    def named_weights(self, weights: Weights) -> Weights:
        """Return a checkpoint's weights, of BERT or of an encoder-decoder, under the names of this model."""
        return weights_for(self.config, weights, self.state_dict().keys(), self.tied_keys)


def without_first(read: PackedBatch) -> PackedBatch:
    """Return sequences of at least one token each without their first token."""
    rows, numbers = len(read), torch.arange(len(read) + 1, device=read.device)
    lengths = read.cu_seqlens.diff().long() - 1
    sequences = numbers[:-1].repeat_interleave(lengths, output_size=read.num_tokens - rows)
    positions = torch.arange(read.num_tokens - rows, device=read.device) + sequences + 1
    return PackedBatch(
        input_ids=read.input_ids[positions],
        token_type_ids=read.token_type_ids[positions],
        position_ids=read.position_ids[positions],
        sequence_ids=sequences,
        cu_seqlens=read.cu_seqlens - numbers.int(),
        max_seqlen=max(read.max_seqlen - 1, 0),
    )


class EncoderDecoder(CrossAttentionModel, BertForSequenceToSequence):
    """A BERT encoder and a decoder, under the names of transformers' `EncoderDecoderModel` of two BERTs."""

    base_model_prefix = "encoder_decoder"

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__(config)
        self.encoder: EncoderModel = BERT.model_class(EncoderModel)(config.encoder, add_pooling_layer=False)
        self.decoder: Decoder = Decoder(config.decoder, config.num_hidden_layers)
        if config.shared != "none":
            self.decoder.bert.embeddings = self.encoder.embeddings
        if config.shared == "all":
            for layer, shared in zip(self.decoder.bert.encoder.layer, self.encoder.encoder.layer, strict=False):
                layer.attention, layer.intermediate, layer.output = shared.attention, shared.intermediate, shared.output
        self.tied_keys: tuple[str, ...] = tied_names(self.state_dict().keys(), config.shared)
        self.init_weights()

    @property
    def head(self) -> PredictionHead:
        """The head that predicts tokens from hidden states."""
        return self.decoder.cls.predictions

    @property
    def _keys_to_ignore_on_save(self) -> list[str] | None:
        # transformers ties the head, but not what encoder and decoder share.
        return [name for name in self.tied_keys if name.startswith("decoder.cls.")]

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the encoder's token embedding, whose weight is (vocab_size, hidden_size)."""
        return self.encoder.embeddings.word_embeddings

    def tie_weights(self) -> None:
        """Share the weight of the decoder's token embedding and the head's bias with the matmul of the head."""
        self.head.tie(self.decoder.bert.embeddings.word_embeddings.weight)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None
    ) -> nn.Embedding:
        """Raise UserError: resize BERT's vocabulary before making an encoder-decoder of it."""
        raise UserError("an encoder-decoder's vocabulary cannot be resized: extend BERT's first, and start from it")

    def check_ranges(self, batch: PackedBatch) -> None:
        """Check that all ids of a batch are in range; a host-device sync on a GPU. Raises `UserError`."""
        self.encoder.check_ranges(batch)

    @property
    def decoder_parts(self) -> DecoderParts:
        """The modules of the decoder."""
        return self.decoder.parts

    def source_states(self, source: PackedBatch) -> Tensor:
        """Return the encoder's hidden states (source tokens, hidden_size)."""
        return self.encoder.encode(source)[0]


class PrefixModel(BertForSequenceToSequence, MaskedLanguageModel):
    """One BERT with its masked-LM head under a prefix mask; its files are those of `BertForMaskedLM`."""

    bert: EncoderModel
    with_pooler = False

    @property
    def head(self) -> PredictionHead:
        """The head that predicts tokens from hidden states."""
        return self.cls.predictions

    def check_ranges(self, batch: PackedBatch) -> None:
        """Check that all ids of a batch are in range; a host-device sync on a GPU. Raises `UserError`."""
        self.bert.check_ranges(batch)

    def _states(self, source: PackedBatch, read: PackedBatch) -> Tensor:
        # The source's last token takes the role of the targets' first.
        config, numbers = self.config, torch.arange(read.num_tokens, device=read.device)
        written = without_first(read)
        if self._rounds():  # both are one batch
            source = filled(source, -(source.num_tokens + written.num_tokens) % ROWS_MULTIPLE)
            written = filled(written, 0)
        rows = prefix_rows(source, written)
        if source.device.type == "cpu" and not torch.compiler.is_compiling():
            self.bert.check_ranges(rows.batch)
        p = (config.hidden_dropout_prob, config.attention_probs_dropout_prob)
        batch = layer_batch(rows.batch, *p, self.training)
        batch = batch if batch.offsets is None else replace(batch, offsets=rows.offsets)
        x = self.bert.embeddings(rows.batch, batch.token_dropout(Site.EMBEDDING))
        mode = self.bert.encoder.checkpointing if self.training else "none"
        x = run_encoder_layers(self.bert.encoder.layer, x, PrefixTeacherForcing(rows, batch), batch, mode)
        last = source.cu_seqlens[1:].long()[read.sequence_ids] - 1
        inputs = source.num_tokens + numbers - read.sequence_ids - 1
        return x.index_select(0, torch.where(read.offsets_in_sequence == 0, last, inputs))

    def _decoding(self, source: PackedBatch, settings: GenerationSettings, begin: int) -> Decoding:
        check_positions(settings.room - 1, int(source.position_ids.max()) + 1, self.config.max_position_embeddings)
        self.bert.check_ranges(source)
        return PrefixDecoding(self.bert, self.head, source, settings.room)
