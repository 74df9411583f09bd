"""ELMo as an encoder of words: vectors from characters, then layers of LSTMs in both directions.

A batch holds the numbers of words in the model's vocabulary, as pre-training does, or words as text, of any vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.elmo.char_cnn import CharacterCnn
from fastbert.models.elmo.characters import Characters, read_characters, sentence_marks
from fastbert.models.elmo.config import ElmoConfig
from fastbert.models.elmo.lstm import BiLstmLayer, Steps
from fastbert.models.outputs import EncoderOutput
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.dropout.op import dropout
from fastbert.packing import PackedBatch

BATCH_WORDS = 4096  # of `states_of`
MOST_CACHED = 1 << 19  # word vectors that are kept at inference


class ElmoEncoder(nn.Module):
    """The layers of LSTMs; each but the first adds its input to its output."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        width, units = config.projection_size, config.intermediate_size
        self.layer = nn.ModuleList(BiLstmLayer(width, units, width) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, steps: Steps, drop: Callable[[Tensor, int, int], Tensor]) -> list[Tensor]:
        """Return the outputs (2, rows, width) of every layer on x (2, rows, width), rows in the order of `steps`;
        `drop(x, layer, direction)` applies dropout."""
        outputs = []
        for number, layer in enumerate(self.layer):
            y = layer(x, steps)
            x = torch.stack([drop(y[direction], number, direction) for direction in range(2)]) + (x if number else 0)
            outputs.append(x)
        return outputs


class ElmoModel(PreTrainedModel):
    """An encoder of words, which has a vector of each word in each layer (Peters et al. 2018, section 3).

    `hidden_states` are those of the character convolution, twice side by side, and of each layer: the direction from
    left to right, then the other one, (words, hidden_size).
    """

    pooler = None
    causal = False

    def __init__(self, config: BertConfig, add_pooling_layer: bool = False) -> None:
        """Make a model with new weights, from torch's global generator; it has no pooler."""
        del add_pooling_layer
        super().__init__(config)
        assert isinstance(config, ElmoConfig)
        self.embeddings = CharacterCnn(config)
        self.encoder = ElmoEncoder(config)
        self._vocabulary: Characters | None = None
        self._cache = _WordCache()
        self.init_weights()

    def init_weights(self, seed: int | None = None) -> None:
        """Draw new weights; with `seed` they are reproducible, else from torch's global generator."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        if self.embeddings.projection.weight.is_meta:
            return
        self.embeddings.init_weights(generator)
        for layer in self.encoder.layer:
            assert isinstance(layer, BiLstmLayer)
            layer.init_weights(generator)

    def set_vocabulary(self, words: Sequence[str], begin: str = "[CLS]", end: str = "[SEP]") -> None:
        """Set the words that the ids of a batch stand for; `begin` and `end` are the marks of a sentence.

        Raises `UserError` unless there are `vocab_size` words.
        """
        if len(words) != self.config.vocab_size:
            raise UserError(
                f"the vocabulary has {len(words)} words, but the model's vocab_size={self.config.vocab_size}"
            )
        self._vocabulary = read_characters(words, begin=begin, end=end)

    def encode(
        self,
        batch: PackedBatch,
        causal: bool = False,
        output_hidden_states: bool = False,
        token_indices: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return hidden states of the last layer (words, hidden_size), and with `output_hidden_states` those of all
        layers.

        `batch` holds ids of the words of `set_vocabulary`; the vector of a distinct word is computed once per batch.
        With `token_indices`, int64 (rows,), the last layer's are those of these words. Raises `UserError` without a
        vocabulary, for ids outside of it, and for `inputs_embeds`.
        """
        del causal
        if inputs_embeds is not None:
            raise UserError("inputs_embeds are not supported: ELMo reads characters")
        self.check_ranges(batch)
        characters = self._characters(batch.device)
        distinct, words = batch.input_ids.unique(return_inverse=True)
        vectors = self.embeddings(characters, distinct)
        states = self._layers(batch, vectors, words)
        last = states[-1] if token_indices is None else states[-1].index_select(0, token_indices)
        return last, states if output_hidden_states else []

    def _characters(self, device: torch.device) -> Characters:
        if self._vocabulary is None:
            raise UserError(
                "the model does not know the words that ids stand for: call set_vocabulary with the words of its"
                " tokenizer, or give words as text to states_of"
            )
        if self._vocabulary.ids.device != device:
            self._vocabulary = self._vocabulary.to(device)
        return self._vocabulary

    def _layers(self, batch: PackedBatch, vectors: Tensor, words: Tensor) -> list[Tensor]:
        """Return the hidden states of all layers, (tokens, hidden_size) each, for the rows `words` of `vectors`, int64
        (tokens,)."""
        steps = Steps.of(batch)
        p = self.config.hidden_dropout_prob if self.training else 0.0
        keys = batch.dropout_key if batch.dropout_key is not None or not p else draw_keys(len(batch), batch.device)

        def drop(x: Tensor, layer: int, direction: int) -> Tensor:
            if keys is None or not p:
                return x
            site = Site.FEED_FORWARD_OUTPUT.of_layer(2 * layer + direction)
            every = TokenDropout(p, keys, batch.sequence_ids, batch.offsets_in_sequence, site)
            return dropout(x, every.select(steps.tokens[direction]))

        x = vectors.index_select(0, words)
        first = torch.cat((x, x), dim=1)
        if keys is not None and p:
            x = dropout(x, TokenDropout(p, keys, batch.sequence_ids, batch.offsets_in_sequence, int(Site.EMBEDDING)))
        outputs = self.encoder(torch.stack([x.index_select(0, rows) for rows in steps.tokens]), steps, drop)
        back = [rows.argsort() for rows in steps.tokens]
        joined = [
            torch.cat([y[direction].index_select(0, back[direction]) for direction in range(2)], dim=1) for y in outputs
        ]
        return [first.to(joined[0].dtype), *joined]

    def check_ranges(self, batch: PackedBatch) -> None:
        """Raise `UserError` for ids outside the vocabulary; on a GPU this is a host-device sync."""
        if batch.num_tokens:
            low, high = (int(value) for value in batch.input_ids.aminmax())
            if low < 0 or high >= self.config.vocab_size:
                raise UserError(
                    f"input_ids holds {low if low < 0 else high}, outside the model's vocabulary of"
                    f" {self.config.vocab_size} words: use the vocabulary the model was trained with"
                )

    def forward(self, batch: PackedBatch, *, output_hidden_states: bool | None = None) -> EncoderOutput:
        """Encode a `PackedBatch` of ids, as `encode` does."""
        x, states = self.encode(batch, output_hidden_states=bool(output_hidden_states))
        return EncoderOutput(last_hidden_state=x, hidden_states=tuple(states) if output_hidden_states else None)

    @torch.no_grad()
    def states_of(
        self, sentences: Sequence[Sequence[str]], *, progress: Callable[[float], None] = lambda done: None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the hidden states of the words of sentences, in batches of sentences of similar lengths, for inference.

        Each item has the numbers of its words among all words of all sentences, int64 (words,), and their states
        (words, num_hidden_layers + 1, hidden_size). A sentence is read between the marks of its begin and end, which
        are left out of the result. Any word is read by its characters; vectors of the character convolution are kept
        for the next call. `progress` is called with the finished fraction. Raises `UserError` for words that are empty
        or not strings.
        """
        if self.training:
            raise UserError("states_of is for inference; call eval() first")
        rows = self._cache.rows(self, [word for sentence in sentences for word in sentence])
        vectors = self._cache.vectors
        lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.int64)
        ends = lengths.cumsum(0)
        done, total = 0, max(int(lengths.sum()), 1)
        order = [index for index in lengths.argsort(descending=True, stable=True).tolist() if lengths[index]]
        while order:
            longest = int(lengths[order[0]]) + 2
            chosen, order = order[: max(BATCH_WORDS // longest, 1)], order[max(BATCH_WORDS // longest, 1) :]
            indices = torch.tensor(chosen)
            sizes = lengths[indices]
            words = torch.cat([torch.arange(int(ends[i] - lengths[i]), int(ends[i])) for i in chosen])
            cu_seqlens = torch.cat((torch.zeros(1, dtype=torch.int64), (sizes + 2).cumsum(0)))
            inside = torch.ones(int(cu_seqlens[-1]), dtype=torch.bool)
            ids = torch.empty(len(inside), dtype=torch.int64)
            for edge, mark in ((cu_seqlens[:-1], 0), (cu_seqlens[1:] - 1, 1)):
                ids[edge], inside[edge] = mark, False
            ids[inside] = rows[words]
            batch = PackedBatch(input_ids=ids, cu_seqlens=cu_seqlens.int(), max_seqlen=longest).to(self.device)
            states = torch.stack(self._layers(batch, vectors, batch.input_ids), dim=1)
            yield words, states[inside.to(self.device)]
            done += len(words)
            progress(done / total)

    def train(self, mode: bool = True) -> ElmoModel:
        """Switch to training or inference, and forget the vectors of words, which training changes."""
        self._cache = _WordCache()
        return super().train(mode)


class _WordCache:
    """Vectors of the character convolution by word, after those of the marks of a sentence."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self.vectors = torch.empty(0)

    def rows(self, model: ElmoModel, words: Sequence[str]) -> Tensor:
        """Return the row of each word in `vectors`, int64 (words,), and compute the vectors that are missing."""
        if len(self._rows) > MOST_CACHED:
            self._rows.clear()
        device, dtype = model.device, model.dtype
        stale = self.vectors.device != device or self.vectors.dtype != dtype
        if not self._rows or stale:
            self._rows.clear()
            self.vectors = model.embeddings(sentence_marks().to(device), torch.arange(2, device=device)).to(dtype)
        missing = list(dict.fromkeys(word for word in words if word not in self._rows))
        if missing:
            characters = read_characters(missing)
            parts = [self.vectors]
            for begin in range(0, len(missing), BATCH_WORDS):
                chosen = torch.arange(begin, min(begin + BATCH_WORDS, len(missing)), device=device)
                parts.append(model.embeddings(characters.to(device), chosen).to(dtype))
            first = len(self.vectors)
            self.vectors = torch.cat(parts)
            self._rows.update((word, index) for index, word in enumerate(missing, first))
        return torch.tensor([self._rows[word] for word in words], dtype=torch.int64)
