"""The base of sequence-to-sequence models: teacher forcing with known targets, and generation.

Targets are rows `[CLS] text [SEP]`: all tokens but the last are inputs, all but the first are predicted.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.heads.prediction import VocabularyHead
from fastbert.models.labels import mean_loss
from fastbert.models.layers import ROWS_MULTIPLE, layer_batch, multiplies_in_bf16
from fastbert.models.outputs import LogitsOutput
from fastbert.models.packed import Packed
from fastbert.models.padded import refuse_graphs
from fastbert.models.seq2seq.decoder import DecoderParts, TeacherForcing
from fastbert.models.seq2seq.decoding import CrossDecoding
from fastbert.models.seq2seq.generation import Decoding, Generated, GenerationSettings, beam_search, greedy
from fastbert.ops.cross_entropy.op import CrossEntropy
from fastbert.ops.native.matmul_table import same_in_every_batch
from fastbert.packing import PackedBatch


@dataclass(frozen=True)
class ShiftedTargets:
    """The inputs and labels of a decoder under teacher forcing."""

    read: PackedBatch
    """All tokens of each target but its last."""
    labels: Tensor
    """The token after each of them, int64 (tokens,)."""


def shift_targets(target: PackedBatch) -> ShiftedTargets:
    """Split targets into inputs and labels. Raises UserError for targets of less than two tokens."""
    count, tokens = len(target), target.num_tokens
    lengths = target.cu_seqlens.diff().long()
    if target.device.type == "cpu" and not torch.compiler.is_compiling() and count and int(lengths.min()) < 2:
        row = int(lengths.argmin())
        raise UserError(
            f"target {row} of the batch has {int(lengths[row])} tokens: it must hold at least the two with which"
            " targets begin and end"
        )
    numbers = torch.arange(count + 1, device=target.device)
    sequences = numbers[:-1].repeat_interleave(lengths - 1, output_size=tokens - count)
    # Each earlier target is one token shorter.
    positions = torch.arange(tokens - count, device=target.device) + sequences
    read = PackedBatch(
        input_ids=target.input_ids[positions],
        token_type_ids=target.token_type_ids[positions],
        position_ids=target.position_ids[positions],
        sequence_ids=sequences,
        cu_seqlens=target.cu_seqlens - numbers.int(),
        max_seqlen=max(target.max_seqlen - 1, 0),
        dropout_key=target.dropout_key,
    )
    return ShiftedTargets(read, target.input_ids[positions + 1])


class SequenceToSequenceModel(PreTrainedModel):
    """A model that generates targets of sources."""

    config: Any
    accepts_loss_kwargs = True
    traceable: ClassVar[str] = "its encoder, a BertModel, can be"
    """What torch can trace or export instead."""

    @property
    @abstractmethod
    def head(self) -> VocabularyHead:
        """The head that predicts tokens from hidden states."""

    @abstractmethod
    def check_ranges(self, batch: PackedBatch) -> None:
        """Check that all ids of a batch are in range; a host-device sync on a GPU. Raises `UserError`."""

    @abstractmethod
    def _states(self, source: PackedBatch, read: PackedBatch) -> Tensor:
        """Return the hidden states (tokens, hidden_size) that predict the token after each input token."""

    @abstractmethod
    def _decoding(self, source: PackedBatch, settings: GenerationSettings, begin: int) -> Decoding:
        """Return the state of generation before the first token."""

    def forward(
        self,
        batch: PackedBatch | Tensor | None = None,
        target: PackedBatch | Tensor | None = None,
        attention_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        return_logits: bool = False,
        label_smoothing: float = 0.0,
        num_items_in_batch: Tensor | int | None = None,
    ) -> LogitsOutput:
        """Compute the loss of known targets, `[CLS] text [SEP]` each: the mean over all their tokens but the first.

        Source and target are each a `PackedBatch`, or padded ids (B, S) and (B, T) int64 with their masks. With
        `return_logits`, `logits` are (target tokens - targets, vocab_size), or (B, T - 1, vocab_size) if the target is
        padded; those at a token predict the next one. The loss is fp32; with `num_items_in_batch` it is the sum over
        the labels divided by it. Raises `UserError` for missing targets, and for sources and targets that do not match.
        """
        refuse_graphs(type(self).__name__, self.traceable)
        source = Packed(batch, input_ids, attention_mask, token_type_ids, None, always_packed=True).batch
        if target is None:
            raise UserError("target is missing: give the targets that the model should learn, or call generate")
        targets = Packed(target, None, target_mask, None, None, always_packed=True)
        known = shift_targets(targets.batch)
        states = self.target_states(source, known.read)
        loss = mean_loss(self.head.loss(states, known.labels, label_smoothing), num_items_in_batch)
        if not return_logits:
            return LogitsOutput(loss=loss, logits=None)
        logits: Tensor = self.head(states)
        if targets.slots is None or targets.shape is None:
            return LogitsOutput(loss=loss, logits=logits)
        # The last column holds no input token.
        rows, columns = targets.shape
        slots = known.read.sequence_ids * max(columns - 1, 0) + known.read.position_ids
        flat = logits.new_zeros(rows * max(columns - 1, 0), logits.shape[-1]).index_copy(0, slots, logits)
        return LogitsOutput(loss=loss, logits=flat.view(rows, max(columns - 1, 0), -1))

    def losses(self, source: PackedBatch, target: PackedBatch, label_smoothing: float = 0.0) -> CrossEntropy:
        """Return the loss summed over the labels of packed targets, their number, and how many are predicted right."""
        known = shift_targets(target)
        return self.head.loss(self.target_states(source, known.read), known.labels, label_smoothing)

    def target_states(self, source: PackedBatch, read: PackedBatch) -> Tensor:
        """Return the hidden states (tokens, hidden_size) that predict the token after each one of `read`.

        Raises `UserError` for a different number of sources and targets, and for empty sources.
        """
        if len(source) != len(read):
            raise UserError(f"there are {len(source)} sources, but {len(read)} targets: give each its own")
        if source.device.type == "cpu" and not torch.compiler.is_compiling():
            check_sources(source)
        return self._states(source, read)

    def _rounds(self) -> bool:
        """Return whether row counts are rounded for torch's bf16 library; see `ROWS_MULTIPLE`."""
        return not torch.compiler.is_compiling() and multiplies_in_bf16(self.get_input_embeddings().weight)

    @torch.no_grad()
    def generate(
        self,
        batch: PackedBatch | Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        settings: GenerationSettings | None = None,
        begin: int | None = None,
        end: int | None = None,
    ) -> Generated:
        """Generate a target for each source, a `PackedBatch` or padded int64 ids (B, S), without dropout.

        `begin` and `end` are the ids of [CLS] and [SEP]; None: the config's. Raises `UserError` if they are unknown,
        and for targets longer than the position table.
        """
        refuse_graphs(type(self).__name__, self.traceable)
        source = Packed(batch, input_ids, attention_mask, token_type_ids, None, always_packed=True).batch
        settings = settings or GenerationSettings()
        begin = self.config.begin_token_id if begin is None else begin
        end = self.config.end_token_id if end is None else end
        for name, token in (("begin", begin), ("end", end)):
            if token is None:
                raise UserError(f"{name}_token_id is unknown to the model's config; give generate({name}=...)")
            if not 0 <= token < self.config.vocab_size:
                raise UserError(f"{name}={token} lies outside the vocabulary of {self.config.vocab_size}")
        assert begin is not None
        assert end is not None
        if not len(source):
            return Generated([], [], [])
        check_sources(source)
        training = self.training
        if training:
            self.train(False)
        try:
            # The result for a source must not depend on others that leave the batch.
            with same_in_every_batch():
                decoding = self._decoding(source, settings, begin)
                write = greedy if settings.beams == 1 else beam_search
                return write(decoding, len(source), end, settings)
        finally:
            if training:
                self.train()

    def can_generate(self) -> bool:
        """Return False: `generate` is not that of transformers."""
        return False


class CrossAttentionModel(SequenceToSequenceModel):
    """An encoder, and a decoder whose cross-attention reads the encoder's hidden states."""

    @property
    @abstractmethod
    def decoder_parts(self) -> DecoderParts:
        """The modules of the decoder."""

    @abstractmethod
    def source_states(self, source: PackedBatch) -> Tensor:
        """Return the encoder's hidden states (source tokens, hidden_size)."""

    def _states(self, source: PackedBatch, read: PackedBatch) -> Tensor:
        if read.device.type == "cpu" and not torch.compiler.is_compiling():
            self.check_ranges(read)
        config, count, decoder = self.config, read.num_tokens, self.decoder_parts
        if self._rounds():
            source, read = (filled(batch, -batch.num_tokens % ROWS_MULTIPLE) for batch in (source, read))
        states = self.source_states(source)
        batch = layer_batch(read, config.hidden_dropout_prob, config.attention_probs_dropout_prob, self.training)
        context = TeacherForcing(read, source, states, batch, config.num_attention_heads, decoder.stack.first)
        decoded = decoder(read, context, batch)
        return decoded if len(decoded) == count else decoded[:count]

    def _decoding(self, source: PackedBatch, settings: GenerationSettings, begin: int) -> Decoding:
        check_positions(settings.room, 0, self.config.max_position_embeddings)
        states = self.source_states(source)
        return CrossDecoding(self.decoder_parts, source, states, settings.room, begin)


def check_sources(source: PackedBatch) -> None:
    """Raise UserError for a source without tokens; a host-device sync on a GPU."""
    lengths = source.cu_seqlens.diff()
    if len(lengths) and int(lengths.min()) < 1:
        raise UserError(f"source {int(lengths.argmin())} of the batch has no tokens: give it at least [CLS] and [SEP]")


def check_positions(written: int, before: int, size: int) -> None:
    """Raise UserError for more tokens than the position table has rows."""
    if before + written > size:
        behind = f" behind the longest source's {before}" if before else ""
        raise UserError(
            f"max_target_length has {written} tokens read{behind}, more than max_position_embeddings={size}: use a"
            " smaller one, or shorter sources"
        )


def filled(batch: PackedBatch, extra: int) -> PackedBatch:
    """Return the batch with one more sequence, a dummy of `extra` tokens, which may be 0."""
    return batch.padded_to(batch.num_tokens + extra, len(batch) + 1, max_seqlen=max(batch.max_seqlen, extra))
