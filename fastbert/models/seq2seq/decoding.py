"""The state of generation: cached keys and values of sources and generated tokens, and the step to the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastbert.models.encoder import EncoderModel
from fastbert.models.fusibility import project
from fastbert.models.heads.prediction import PredictionHead
from fastbert.models.layers import layer_batch
from fastbert.models.seq2seq.decoder import DecoderParts, run_layers
from fastbert.models.seq2seq.decoding_cache import SourceKeys, Writing, WrittenKeys, one_token_each
from fastbert.models.seq2seq.fused_decoding import Step, step_layers
from fastbert.models.seq2seq.prefix import PrefixEncoding
from fastbert.packing import PackedBatch

if TYPE_CHECKING:
    from fastbert.ops.encoder_layer.arguments import LayerBatch


class CrossDecoding:
    """Generation by a decoder with cross-attention, whose keys and values are computed once."""

    def __init__(self, decoder: DecoderParts, source: PackedBatch, states: Tensor, room: int, begin: int) -> None:
        """`states` (source tokens, hidden_size) are the encoder's; `room` is the largest number of new tokens."""
        self.decoder = decoder
        self.begin: Tensor = source.input_ids.new_full((len(source),), begin)
        self.batch: LayerBatch = layer_batch(source, 0.0, 0.0, training=False)
        layers: Any = list(decoder.stack.layer)
        self.source: SourceKeys = SourceKeys(len(layers), source)
        like = states
        for layer in layers:
            attention = layer.crossattention.self
            k, v = (
                project(linear, states).unflatten(-1, (layer.spec.self_attention.heads, -1))
                for linear in (attention.key, attention.value)
            )
            self.source.keep(k, v)
            like = k
        self.written: WrittenKeys = WrittenKeys(len(layers), room, None, len(source), like)
        self.layers: list[Step] = step_layers(layers, states)

    def first(self) -> Tensor:
        """Return logits (sources, vocab_size) of the token after the targets' first."""
        return self.step(self.begin)

    def step(self, tokens: Tensor) -> Tensor:
        """Return logits (rows, vocab_size) of the token after `tokens`, int64 (rows,)."""
        batch = one_token_each(tokens, self.written.written, 0)
        self.written.advance()
        x = self.decoder.embeddings(batch, None)
        x = run_layers(self.layers, x, Writing(self.written, self.source), self.batch)
        logits: Tensor = self.decoder.head(x)
        return logits

    def select(self, rows: Tensor, sources: Tensor | None, readers: int) -> None:
        """Keep these rows, int64, `readers` of each of `sources`, or of all (None)."""
        unchanged = len(rows) == len(self.written.starts)
        self.written.select(rows, same_prefixes=unchanged)
        if sources is not None:
            self.source.select(sources)
        if readers != self.source.readers:
            self.source.set_readers(readers)


class PrefixDecoding:
    """Generation by one stack, which caches the keys and values of sources before those of generated tokens."""

    def __init__(self, bert: EncoderModel, head: PredictionHead, source: PackedBatch, room: int) -> None:
        self.bert = bert
        self.head = head
        self.prefix = source
        self.batch: LayerBatch = layer_batch(source, 0.0, 0.0, training=False)
        heads, width = bert.config.num_attention_heads, bert.config.head_dim
        like = bert.embeddings.word_embeddings.weight.new_empty(0, heads, width)
        if torch.is_autocast_enabled(like.device.type):
            like = like.to(torch.get_autocast_dtype(like.device.type))
        # The last generated token is never an input.
        self.written: WrittenKeys = WrittenKeys(len(bert.encoder.layer), max(room - 1, 1), source, len(source), like)
        self.layers: list[Step] = step_layers(bert.encoder.layer, like)
        self.positions: Tensor = source.position_ids[self._last_tokens()] + 1

    def _last_tokens(self) -> Tensor:
        """Return the index of each source's last token, int64 (sources,)."""
        return self.prefix.cu_seqlens[1:].long() - 1

    def first(self) -> Tensor:
        """Return logits (sources, vocab_size) of the token after the sources' last."""
        x = self.bert.embeddings(self.prefix, None)
        x = run_layers(self.layers, x, PrefixEncoding(self.prefix, self.written), self.batch)
        logits: Tensor = self.head(x.index_select(0, self._last_tokens()))
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Return logits (rows, vocab_size) of the token after `tokens`, int64 (rows,)."""
        batch = one_token_each(tokens, self.positions + self.written.written, 1)
        self.written.advance()
        x = self.bert.embeddings(batch, None)
        x = run_layers(self.layers, x, Writing(self.written), self.batch)
        logits: Tensor = self.head(x)
        return logits

    def select(self, rows: Tensor, sources: Tensor | None, readers: int) -> None:
        """Keep these rows, int64, `readers` of each of `sources`, or of all (None)."""
        unchanged = sources is None and len(rows) == len(self.positions)
        self.written.select(rows, same_prefixes=unchanged)
        if not unchanged:
            self.positions = self.positions.index_select(0, rows)
