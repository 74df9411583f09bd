"""ELMo as an encoder of words: vectors from characters, then layers of LSTMs in both directions.

A batch holds the numbers of words in the model's vocabulary, as pre-training does, or words as text, of any vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.bilstm import ScalarMix
from fastbert.models.elmo.char_cnn import CharacterCnn
from fastbert.models.elmo.characters import Characters, read_characters, sentence_marks
from fastbert.models.elmo.config import ElmoConfig
from fastbert.models.elmo.lstm import BiLstmLayer, Steps
from fastbert.models.encoder import EmbeddingSettings, EncoderModel
from fastbert.models.outputs import EncoderOutput
from fastbert.ops.autocast import without_autocast
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.dropout.op import dropout
from fastbert.packing import PackedBatch
from fastbert.tokenizers.word_table import WORD_TABLE

BATCH_WORDS = 4096  # of `states_of`
MOST_CACHED = 1 << 19  # word vectors that are kept at inference
MARKS = ("[CLS]", "[SEP]")  # in a vocabulary


class ElmoEncoder(nn.Module):
    """The layers of LSTMs; each but the first adds its input to its output."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        width, units = config.projection_size, config.intermediate_size
        self.layer: nn.ModuleList = nn.ModuleList(
            BiLstmLayer(width, units, width) for _ in range(config.num_hidden_layers)
        )

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
        self.embeddings: CharacterCnn = CharacterCnn(config)
        self.encoder: ElmoEncoder = ElmoEncoder(config)
        self.embed_settings: EmbeddingSettings | None = None
        """Defaults of `embed`."""
        self.mix: ScalarMix | None = None
        """The weighted sum of the layers that heads of tasks read."""
        self.state_mix: ScalarMix | None = None
        """Another one, beside the states of a task's BiLSTM."""
        self._vocabulary: Characters | None = None
        self._cache = _WordCache()
        self.register_load_state_dict_post_hook(_forget_words)
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

    def set_vocabulary(self, words: Sequence[str], begin: str = MARKS[0], end: str = MARKS[1]) -> None:
        """Set the words that the ids of a batch stand for; `begin` and `end` are the marks of a sentence. Without a
        vocabulary they are numbers in the `WORD_TABLE` of the process.

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
        """Return hidden states of the last layer (words, hidden_size), or the mix of all layers after `add_mix`, and
        with `output_hidden_states` those of all layers.

        `batch` holds ids of the words of `set_vocabulary`, or without one numbers of words in the process's table, as a
        `WordTokenizer` gives them; the vector of a distinct word is computed once per batch. With `token_indices`,
        int64 (rows,), the first result has those of these words. Raises `UserError` for ids that are no word, and for
        `inputs_embeds`.
        """
        del causal
        if inputs_embeds is not None:
            raise UserError("inputs_embeds are not supported: ELMo reads characters")
        self.check_ranges(batch)
        distinct, words = batch.input_ids.unique(return_inverse=True)
        states = self._layers(batch, self._vectors(distinct), words)
        if self.mix is None:
            last = states[-1] if token_indices is None else states[-1].index_select(0, token_indices)
            return last, states if output_hidden_states else []
        read = states if token_indices is None else [state.index_select(0, token_indices) for state in states]
        last = self.mix(torch.stack(read, dim=1))
        return last, states if output_hidden_states else []

    def add_mix(self, *, beside_states: bool = False) -> None:
        """Freeze all weights, and add a weighted sum of the layers, which is trained, and with `beside_states` a second
        one, `state_mix`. Frozen layers drop nothing."""
        self.requires_grad_(False)
        self.mix = ScalarMix(self.config.num_hidden_layers + 1)
        self.state_mix = ScalarMix(self.config.num_hidden_layers + 1) if beside_states else None

    def drop(self, batch: PackedBatch, x: Tensor) -> Tensor:
        """Drop elements in training of x (words, width), what a task's BiLSTM reads of a batch."""
        p = self.config.hidden_dropout_prob if self.training else 0.0
        if not p:
            return x
        keys = draw_keys(len(batch), batch.device) if batch.dropout_key is None else batch.dropout_key
        return dropout(x, TokenDropout(p, keys, batch.sequence_ids, batch.offsets_in_sequence, int(Site.HEAD_INPUT)))

    def _vectors(self, ids: Tensor) -> Tensor:
        """Return the vectors of distinct words, (words, projection_size)."""
        if self._vocabulary is not None:
            if self._vocabulary.ids.device != ids.device:
                self._vocabulary = self._vocabulary.to(ids.device)
            vectors: Tensor = self.embeddings(self._vocabulary, ids)
            return vectors
        words = WORD_TABLE.words(ids.tolist())
        if self.training or torch.is_grad_enabled():
            characters = read_characters(words, begin=MARKS[0], end=MARKS[1]).to(ids.device)
            computed: Tensor = self.embeddings(characters, torch.arange(len(words), device=ids.device))
            return computed
        rows = self._cache.rows(self, words).to(ids.device)
        return self._cache.vectors.index_select(0, rows)

    def _layers(self, batch: PackedBatch, vectors: Tensor, words: Tensor) -> list[Tensor]:
        """Return the hidden states of all layers, (tokens, hidden_size) each, for the rows `words` of `vectors`, int64
        (tokens,)."""
        steps = Steps.of(batch)
        p = self.config.hidden_dropout_prob if self.training and self.mix is None else 0.0
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
            size, where = len(WORD_TABLE), "the table of this process"
            cure = "use the WordTokenizer of its folder, or call set_vocabulary for ids of its vocabulary"
            if self._vocabulary is not None:
                size, where, cure = self.config.vocab_size, "the model's vocabulary", "use the one it was trained with"
            low, high = (int(value) for value in batch.input_ids.aminmax())
            if low < 0 or high >= size:
                raise UserError(f"input_ids holds {low if low < 0 else high}, outside {where} of {size} words: {cure}")

    def forward(self, batch: PackedBatch, *, output_hidden_states: bool | None = None) -> EncoderOutput:
        """Encode a `PackedBatch` of ids, as `encode` does."""
        x, states = self.encode(batch, output_hidden_states=bool(output_hidden_states))
        return EncoderOutput(last_hidden_state=x, hidden_states=tuple(states) if output_hidden_states else None)

    def embed(self, texts: Iterable[str], tokenizer: Any, **options: Any) -> Tensor:
        """Return one vector per text, fp32 (texts, hidden_size) on the CPU; options and errors are those of
        `EncoderModel.embed`."""
        return EncoderModel.embed(self, texts, tokenizer, **options)  # type: ignore[arg-type]

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
        words_of_all = [word for sentence in sentences for word in sentence]
        rows = self._cache.rows(self, words_of_all, marks=False)
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


def _forget_words(model: nn.Module, _: object) -> None:
    """Forget the vectors of words, which new weights change."""
    assert isinstance(model, ElmoModel)
    model._cache = _WordCache()


class _WordCache:
    """Vectors of the character convolution by word, after those of the marks of a sentence."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self.vectors = torch.empty(0)

    def rows(self, model: ElmoModel, words: Sequence[str], *, marks: bool = True) -> Tensor:
        """Return the row of each word in `vectors`, int64 (words,), and compute the vectors that are missing.

        With `marks`, the special tokens that begin and end a sentence are its marks, else words as others.
        """
        with without_autocast(model.device):
            return self._rows_of(model, words, marks)

    def _rows_of(self, model: ElmoModel, words: Sequence[str], marks: bool) -> Tensor:
        if len(self._rows) > MOST_CACHED:
            self._rows.clear()
        device, dtype = model.device, model.dtype
        stale = self.vectors.device != device or self.vectors.dtype != dtype
        if not self._rows or stale:
            self._rows.clear()
            self.vectors = model.embeddings(sentence_marks().to(device), torch.arange(2, device=device)).to(dtype)
        known = {word: row for row, word in enumerate(MARKS)} if marks else {}
        missing = list(dict.fromkeys(word for word in words if word not in self._rows and word not in known))
        if missing:
            characters = read_characters(missing)
            parts = [self.vectors]
            for begin in range(0, len(missing), BATCH_WORDS):
                chosen = torch.arange(begin, min(begin + BATCH_WORDS, len(missing)), device=device)
                parts.append(model.embeddings(characters.to(device), chosen).to(dtype))
            first = len(self.vectors)
            self.vectors = torch.cat(parts)
            self._rows.update((word, index) for index, word in enumerate(missing, first))
        return torch.tensor([known[word] if word in known else self._rows[word] for word in words], dtype=torch.int64)
