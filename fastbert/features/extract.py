"""Hidden states as features (Devlin et al. 2019, section 5.3): a vector of chosen layers per token or word.

The encoder is not trained. Texts are packed, so nothing is computed for padding. A text that exceeds the model's length
is split into consecutive parts, so that each of its tokens has a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from fastbert.embeddings.embed import inferring
from fastbert.embeddings.pooling import packed
from fastbert.embeddings.rows import LEAST_LENGTH, Rows, check_texts
from fastbert.errors import UserError, require_whole
from fastbert.models.encoder import EncoderModel
from fastbert.models.finite import check_finite
from fastbert.tasks.row_template import RowTemplate, encode_words
from fastbert.tasks.rows import bounds, by_length, runs, tokens_per_batch
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

NAMED = ("embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all")
PER = ("token", "word")
CHUNK_TEXTS = 1024
Texts = Iterable[str] | Iterable[Sequence[str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """Vectors of some texts; text i has the rows `offsets[i]` up to `offsets[i + 1]`.

    `values` (items, width), fp32 on the CPU, or (items, layers, width) of `hidden_states`; `offsets` int64 (texts +
    1,); `items` the token or word of each row.
    """

    values: Tensor
    offsets: np.ndarray
    items: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The hidden states that become features: those of `numbers` (0: the embeddings, n: the last of n layers),
    concatenated, or summed if `added`."""

    numbers: tuple[int, ...]
    added: bool = False

    def combine(self, states: Tensor) -> Tensor:
        """Combine the states of these numbers: (items, layers, width) -> fp32 (items, features)."""
        return states.float().sum(dim=1) if self.added else states.float().flatten(1)


def choose_layers(layers: str | Iterable[int], count: int) -> Layers:
    """Return the hidden states of a name or of numbers in a model of `count` layers; negative numbers count from the
    last. Raises `UserError` for others."""
    last_four = tuple(range(max(count - 3, 1), count + 1))
    named = {
        "embeddings": Layers(numbers=(0,)),
        "second-to-last": Layers(numbers=(count - 1,)),
        "last": Layers(numbers=(count,)),
        "sum-last-four": Layers(numbers=last_four, added=True),
        "concat-last-four": Layers(numbers=last_four),
        "sum-all": Layers(numbers=tuple(range(1, count + 1)), added=True),
    }
    if isinstance(layers, str):
        if layers not in named:
            raise UserError(f"layers={layers!r} must be {', '.join(NAMED)}, or numbers from 0 (embeddings) to {count}")
        return named[layers]
    numbers = tuple(layers)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not -count - 1 <= number <= count:
            raise UserError(f"layers: {number!r} is not a layer of the model, which has 0 (embeddings) to {count}")
    if not numbers:
        raise UserError("layers=() names none; give at least one number")
    return Layers(numbers=tuple(number % (count + 1) for number in numbers))


def extract(
    model: EncoderModel,
    tokenizer: Tokenizer,
    texts: Texts,
    layers: str | Iterable[int] = "last",
    *,
    per: str = "token",
    max_length: int | None = None,
    batch_tokens: int | None = None,
) -> Features:
    """Return the features of texts, which are strings or sequences of words.

    `layers` is one of `NAMED` or numbers of hidden states, which are concatenated. With `per="token"` each token except
    [CLS] and [SEP] has a row; with `per="word"` each word has one, that of its first token (a string is split at
    spaces). The model computes on its device and in its dtype, without dropout; sums are fp32. Raises `UserError` for
    wrong options, and for an item that is not a text, by its index.
    """
    chunks = list(
        extract_chunks(model, tokenizer, texts, layers, per=per, max_length=max_length, batch_tokens=batch_tokens)
    )
    if chunks:
        return joined(chunks)
    width = model.config.hidden_size * len(choose_layers(layers, len(model.encoder.layer)).numbers)
    return Features(values=torch.empty(0, width), offsets=np.zeros(1, dtype=np.int64), items=())


def extract_chunks(
    model: EncoderModel,
    tokenizer: Tokenizer,
    texts: Texts,
    layers: str | Iterable[int] = "last",
    *,
    per: str = "token",
    max_length: int | None = None,
    batch_tokens: int | None = None,
    progress: Callable[[int, int, float], None] = lambda first, texts, done: None,
) -> Iterator[Features]:
    """Yield the features of some thousand texts at a time, for more than fits into memory; see `extract`. Options are
    checked at once. `progress` is called after each batch with the number of texts before the chunk, those of the
    chunk, and the finished fraction of it."""
    chosen = choose_layers(layers, len(model.encoder.layer))
    limit, tokens = _limits(model, tokenizer, max_length, batch_tokens)
    if per not in PER:
        raise UserError(f"per={per!r} must be {' or '.join(map(repr, PER))}")
    if isinstance(texts, str):
        raise UserError("texts must be a list of texts or of lists of words, not one text")
    return _chunks(model, tokenizer, iter(texts), chosen, per, limit, tokens, progress)


def hidden_states(
    model: EncoderModel,
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    *,
    dtype: torch.dtype = torch.bfloat16,
    max_length: int | None = None,
    batch_tokens: int | None = None,
) -> Features:
    """Return all hidden states of each word's first token, (words, layers + 1, hidden_size) in `dtype`, to combine
    layers later."""
    limit, tokens = _limits(model, tokenizer, max_length, batch_tokens)
    every = Layers(numbers=tuple(range(len(model.encoder.layer) + 1)))
    layout = _layout_of(tokenizer, list(sentences), "word", 0)
    values = _states(model, tokenizer, layout, every, limit, tokens, dtype)
    _check_states(model, layout, values, 0)
    return Features(values=values, offsets=layout.item_offsets, items=layout.items)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Layout:
    """Tokens of some texts, without special ones: `ids`, the offsets of each text, and the indices of the items."""

    ids: np.ndarray
    token_offsets: np.ndarray
    item_tokens: np.ndarray
    """int64 (items,): the index of each item's token."""
    item_offsets: np.ndarray
    items: tuple[str, ...]


def _limits(
    model: EncoderModel, tokenizer: Tokenizer, max_length: int | None, batch_tokens: int | None
) -> tuple[int, int]:
    positions = model.config.max_sequence_length
    require_whole("max_length", max_length, LEAST_LENGTH, optional=True)
    if max_length is not None and max_length > positions:
        raise UserError(f"max_length={max_length} is more than the {positions} positions of the model")
    check_tokenizer(tokenizer, model.config.vocab_size)
    limit = max_length or min(tokenizer.model_max_length, positions)
    return limit, tokens_per_batch(model.device.type, batch_tokens)


def _chunks(
    model: EncoderModel,
    tokenizer: Tokenizer,
    texts: Iterator[str] | Iterator[Sequence[str]],
    chosen: Layers,
    per: str,
    limit: int,
    tokens: int,
    progress: Callable[[int, int, float], None],
) -> Iterator[Features]:
    first = 0
    while chunk := list(islice(texts, CHUNK_TEXTS)):
        layout = _layout_of(tokenizer, chunk, per, first)
        report = partial(progress, first, len(chunk))
        states = _states(model, tokenizer, layout, chosen, limit, tokens, torch.float32, report)
        _check_states(model, layout, states, first)
        yield Features(values=chosen.combine(states), offsets=layout.item_offsets, items=layout.items)
        first += len(chunk)


def _layout_of(tokenizer: Tokenizer, texts: Sequence[str | Sequence[str]], per: str, first: int) -> _Layout:
    """Tokenize texts, the first of which is number `first` in errors."""
    whole = [text for text in texts if isinstance(text, str)]
    if per == "token" and len(whole) == len(texts):
        check_texts(whole, first)
        return _layout_of_tokens(tokenizer, *tokenizer.encode_ragged(whole, False, threads=1))
    split = [_words(text, index) for index, text in enumerate(texts, first)]
    words = [word for sentence in split for word in sentence]
    check_texts(words)
    word_offsets = bounds(np.array([len(sentence) for sentence in split], dtype=np.int64))
    # A word without tokens (control characters alone) becomes [UNK], so that each word has a vector.
    word_ids, begins = encode_words(tokenizer, words, threads=1)
    sizes = np.diff(begins)
    empty = begins[:-1][sizes == 0]
    ids = np.insert(word_ids, empty, tokenizer.unk_token_id) if len(empty) else word_ids
    begins = bounds(np.maximum(sizes, 1))
    token_offsets = begins[word_offsets]
    if per == "token":
        return _layout_of_tokens(tokenizer, ids, token_offsets)
    return _Layout(
        ids=ids, token_offsets=token_offsets, item_tokens=begins[:-1], item_offsets=word_offsets, items=tuple(words)
    )


def _layout_of_tokens(tokenizer: Tokenizer, ids: np.ndarray, offsets: np.ndarray) -> _Layout:
    offsets = offsets.astype(np.int64)
    items = tuple(tokenizer.convert_ids_to_tokens(ids.tolist()))
    return _Layout(ids=ids, token_offsets=offsets, item_tokens=np.arange(len(ids)), item_offsets=offsets, items=items)


def _words(text: object, index: int) -> list[str]:
    if isinstance(text, str):
        return text.split()
    if not isinstance(text, Sequence) or isinstance(text, bytes) or not all(isinstance(word, str) for word in text):
        raise UserError(f"texts[{index}] must be a string or a list of words, not {type(text).__name__}")
    return list(text)


def _states(
    model: EncoderModel,
    tokenizer: Tokenizer,
    layout: _Layout,
    chosen: Layers,
    limit: int,
    batch_tokens: int,
    dtype: torch.dtype,
    progress: Callable[[float], None] = lambda done: None,
) -> Tensor:
    """Return the states (items, layers, width) of the items, in their order."""
    rows = _parts(layout, limit, RowTemplate.of(tokenizer))
    before = len(rows.template.before)  # also the fillers in front of all tokens
    done, total = 0, int(rows.lengths.sum())
    items_states = torch.empty(len(layout.item_tokens), len(chosen.numbers), model.config.hidden_size, dtype=dtype)
    with inferring(model):
        for indices in by_length(rows.lengths, batch_tokens):
            batch = packed(rows, indices).to(model.device)
            # The indices of the rows' items: among all items, and among the batch's tokens.
            firsts = np.searchsorted(layout.item_tokens, rows.begins[indices] - before)
            counts = np.searchsorted(layout.item_tokens, rows.begins[indices] - before + rows.sizes[indices]) - firsts
            items = runs(firsts, counts)
            shift = bounds(rows.lengths[indices])[:-1] + 2 * before - rows.begins[indices]
            tokens = torch.from_numpy(layout.item_tokens[items] + np.repeat(shift, counts)).to(model.device)
            _, states = model.encode(batch, output_hidden_states=True)
            picked = torch.stack([states[number].index_select(0, tokens) for number in chosen.numbers], dim=1)
            items_states[torch.from_numpy(items)] = picked.to("cpu", dtype)
            done += int(rows.lengths[indices].sum())
            progress(done / total)
    return items_states


def _check_states(model: EncoderModel, layout: _Layout, states: Tensor, first: int) -> None:
    """Raise UserError for NaNs and infinities; `first` is the index of the first text."""
    ends = layout.item_offsets[1:]
    check_finite(model, states, lambda item: f"texts[{first + int(np.searchsorted(ends, item, side='right'))}]")


def _parts(layout: _Layout, limit: int, template: RowTemplate) -> Rows:
    """Return rows of at most `limit` tokens that cover each text, cut at the begin of an item if possible."""
    room, filler = limit - template.added, len(template.before)
    texts, begins, sizes = [], [], []
    starts = layout.item_tokens
    for text, (first, end) in enumerate(
        zip(layout.token_offsets.tolist(), layout.token_offsets[1:].tolist(), strict=False)
    ):
        while first < end:
            stop = min(first + room, end)
            if stop < end:
                before = starts[np.searchsorted(starts, stop, side="right") - 1]
                stop = int(before) if before > first else stop
            texts.append(text)
            begins.append(first + filler)  # behind the fillers in place of the first special tokens
            sizes.append(stop - first)
            first = stop
    width = np.array(sizes, dtype=np.int64)
    return Rows(
        ids=np.concatenate((template.before, layout.ids, template.behind)),
        texts=np.array(texts, dtype=np.int64),
        begins=np.array(begins, dtype=np.int64),
        sizes=width,
        firsts=np.zeros_like(width),
        ends=width + template.added,
        template=template,
        truncated=0,
    )


def joined(chunks: Sequence[Features]) -> Features:
    """Return the features of the texts of all chunks."""
    return Features(
        values=torch.cat([chunk.values for chunk in chunks]),
        offsets=bounds(np.concatenate([np.diff(chunk.offsets) for chunk in chunks])),
        items=tuple(item for chunk in chunks for item in chunk.items),
    )
