"""Embeddings: one vector a text, from texts in any number, in any order, in bounded memory.

Texts are read a chunk at a time, tokenized on another thread while the model runs on the chunk before, sorted by length
and packed, so that nothing is computed for padding. On CPUs all products are ours, and a text has the same bits
whatever the others are and however they are batched; `fastbert.ops.native.matmul_table` names the exceptions.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.embeddings.batches import counted_tokens, packed
from fastbert.embeddings.pooling import check_pooling, normalized, pool
from fastbert.embeddings.rows import LONG, SPECIAL, Cutting, Rows, check_texts, read_rows
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.models.bert.model import BertModel, first_indices
from fastbert.models.finite import check_finite
from fastbert.ops.native import matmul_table
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.fit import check_tokenizer

logger = logging.getLogger("fastbert")

# Tokens that the model computes at a time: few enough for their activations to stay in a CPU's caches, or enough to
# fill a GPU.
BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}
# What is read before it is sorted, computed and handed over; a longer text is a chunk of its own.
CHUNK_TEXTS = {"cpu": 1024, "cuda": 32768}
CHUNK_CHARACTERS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How texts become vectors; None means "as the model's folder says" (`fastbert.embeddings.folder`), and where
    the model came from none: the mean, as it is, of as many tokens as tokenizer and model take."""

    pooling: str | None = None
    """"mean" of a text's tokens, their "max" in each dimension, or the vector of its first token, "cls"; [CLS] and
    [SEP] are among the tokens."""
    normalize: bool | None = None
    """Return whether to divide vectors by their length."""
    max_length: int | None = None
    """Tokens that the model sees at once, [CLS] and [SEP] included."""
    long: str = "truncate"
    """What happens to longer texts: they are cut ("truncate"), pooled over overlapping windows ("windows"), or are an
    "error"."""
    batch_tokens: int | None = None
    """Tokens that are computed at a time; None: 4,096, on a GPU 65,536."""
    prompt: str | None = None
    """Name of the folder's prompt that is put before each text; None: its default one, if it has one."""

    def __post_init__(self) -> None:
        if self.pooling is not None:
            check_pooling(self.pooling)
        if self.long not in LONG:
            raise UserError(f"long={self.long!r} must be {', '.join(map(repr, LONG[:-1]))} or {LONG[-1]!r}")
        least = SPECIAL + 1
        for name, value, lowest in (("max_length", self.max_length, least), ("batch_tokens", self.batch_tokens, 1)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < lowest):
                raise UserError(f"{name}={value!r} must be a whole number, at least {lowest}")


@dataclass
class Counts:
    """What an embedder has seen so far."""

    texts: int = 0
    tokens: int = 0
    """Tokens that were computed, special ones and the overlaps of windows included."""
    truncated: int = 0
    """Texts of which tokens were left out."""
    max_length: int = 0
    """The tokens that were left of these."""

    def describe_truncated(self) -> str:
        """Return a sentence with the number of truncated texts."""
        return (
            f"{self.truncated:,} of {self.texts:,} texts were longer than {self.max_length:,} tokens and truncated"
            if self.truncated
            else f"none of {self.texts:,} texts was truncated"
        )


def embed(
    model: BertModel,
    texts: Iterable[str],
    tokenizer: WordPieceTokenizer,
    *,
    progress: bool | Callable[[int], None] = False,
    counts: Counts | None = None,
    **options: Any,
) -> Tensor:
    """The embeddings of texts, fp32 (texts, hidden_size) on the CPU, in the order of the texts.

    `options` are those of `EmbedOptions`. The model computes where it is and in its dtype, quantised if it is,
    without dropout and gradients; sums of pooling are fp32. `progress` shows a bar, or is called with the number of
    texts done. `counts`, if given, is filled; without it a warning says how many texts were truncated.

    With `long="windows"` a longer text is seen in windows of `max_length` tokens, spread evenly over it, of which
    neighbours share at least a quarter. What two windows share counts from each up to its middle, so "mean" and "max"
    see each token once, where most of its surroundings are in sight; "cls" is the mean of the windows' first tokens.

    Raises UserError for wrong options, for what is no text, by its index, and for a tokenizer whose size is not the
    model's (`fastbert.tokenizers.fit`).
    """
    counted = Counts() if counts is None else counts
    chunks = embed_chunks(model, texts, tokenizer, EmbedOptions(**options), counted)
    total = len(texts) if isinstance(texts, Sized) else None
    with _reporting(progress, total) as report:
        found = _collected(chunks, total, report)
    if counts is None and counted.truncated:
        logger.warning("%s", counted.describe_truncated())
    return torch.empty(0, _width(model)) if found is None else found


def embed_chunks(
    model: BertModel,
    texts: Iterable[str],
    tokenizer: WordPieceTokenizer,
    options: EmbedOptions | None = None,
    counts: Counts | None = None,
) -> Iterator[Tensor]:
    """Like `embed`, the embeddings of some thousand texts after the other: for more than fits into memory.

    The model may be used in between; options are checked at once.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"texts must be a list of strings or another iterable, not {type(texts).__name__}")
    embedder = _Embedder(model, tokenizer, options or EmbedOptions(), counts or Counts())
    return embedder.run(texts)


class _Embedder:
    """A model with all that is decided once."""

    def __init__(self, model: BertModel, tokenizer: WordPieceTokenizer, options: EmbedOptions, counts: Counts) -> None:
        settings = settings_of(model)
        check_tokenizer(tokenizer, model.config.vocab_size)
        self.model, self.tokenizer, self.settings, self.counts = model, tokenizer, settings, counts
        self.pooling = settings.pooling if options.pooling is None else options.pooling
        self.normalize = settings.normalize if options.normalize is None else options.normalize
        self.prompt = settings.prompt(options.prompt)
        place = model.device.type
        self.batch_tokens = options.batch_tokens or BATCH_TOKENS.get(place, BATCH_TOKENS["cpu"])
        self.chunk_texts = CHUNK_TEXTS.get(place, CHUNK_TEXTS["cpu"])
        self.cutting = Cutting(
            max_length=_limit(model, tokenizer, options.max_length, settings.max_length),
            long=options.long,
            left=tokenizer.truncation_side == "left",
        )
        counts.max_length = self.cutting.max_length

    def run(self, texts: Iterable[str]) -> Iterator[Tensor]:
        chunks, first = self._chunks(texts), 0
        with ThreadPoolExecutor(1, thread_name_prefix="fastbert-embed") as aside:
            chunk = next(chunks, None)
            rows = None if chunk is None else self._read(chunk, first)
            while chunk is not None and rows is not None:
                first += len(chunk)
                following = next(chunks, None)
                ahead = None if following is None else aside.submit(self._read, following, first)
                found = self._vectors(rows, len(chunk))
                begin = first - len(chunk)
                check_finite(self.model, found, lambda row: f"texts[{begin + row}]")  # noqa: B023 - called at once
                self.counts.texts += len(chunk)
                self.counts.tokens += int(rows.lengths.sum())
                self.counts.truncated += rows.truncated
                chunk, rows = following, None
                yield found
                rows = None if ahead is None else ahead.result()

    def _chunks(self, texts: Iterable[str]) -> Iterator[list[str]]:
        chunk: list[str] = []
        characters = 0
        for text in texts:
            size = len(self.prompt) + len(text) if isinstance(text, str) else 0
            if chunk and (len(chunk) == self.chunk_texts or characters + size > CHUNK_CHARACTERS):
                yield chunk
                chunk, characters = [], 0
            chunk.append(text)
            characters += size
        if chunk:
            yield chunk

    def _read(self, chunk: list[str], first: int) -> Rows:
        if self.prompt:
            check_texts(chunk, first)
            chunk = [self.prompt + text for text in chunk]
        return read_rows(self.tokenizer, chunk, self.cutting, first)

    def _vectors(self, rows: Rows, texts: int) -> Tensor:
        """The embeddings of so many texts from their rows."""
        order, pooled = [], []
        with inferring(self.model), matmul_table.same_in_every_batch():
            for chosen in rows.batches(self.batch_tokens):
                order.append(chosen)
                pooled.append(self._of_batch(rows, chosen))
        place = torch.from_numpy(np.concatenate(order))
        with torch.no_grad():
            together = torch.cat(pooled).cpu()
            by_row = torch.empty_like(together).index_copy_(0, place, together)
            return self._finished(by_row, rows, texts)

    def _of_batch(self, rows: Rows, chosen: np.ndarray) -> Tensor:
        """Return the contribution of each selected row to its text's embedding, fp32 (rows, hidden_size)."""
        batch = packed(rows, chosen, self.tokenizer.cls_token_id, self.tokenizer.sep_token_id).to(self.model.device)
        if self.pooling == "cls":
            return self.model.encode(batch, token_indices=first_indices(batch))[0].float()
        counted, offsets = counted_tokens(rows, chosen)
        wanted = None if counted is None else counted.to(batch.device)
        return pool(self.model.encode(batch, token_indices=wanted)[0], offsets.to(batch.device), self.pooling)

    def _finished(self, by_row: Tensor, rows: Rows, texts: int) -> Tensor:
        """From rows to texts, and all that follows pooling."""
        begins = np.searchsorted(rows.texts, np.arange(texts + 1))
        offsets = torch.from_numpy(begins)
        found = by_row if len(by_row) == texts else pool(by_row, offsets, self.pooling)
        if self.pooling != "max":
            each = np.ones(len(rows.texts), dtype=np.int64) if self.pooling == "cls" else rows.ends - rows.firsts
            found = found / torch.from_numpy(np.add.reduceat(each, begins[:-1])).float()[:, None]
        for dense in self.settings.dense:
            found = dense(found)
        return normalized(found) if self.normalize else found


def settings_of(model: BertModel) -> EmbedSettings:
    """Return the settings of the model's folder, if `load_embedder` read it."""
    settings = model.embed_settings
    if settings is None:
        return EmbedSettings()
    if not isinstance(settings, EmbedSettings):
        raise UserError(f"embed_settings must be EmbedSettings (fastbert.embeddings.settings), not {settings!r}")
    settings.check_width(model.config.hidden_size, "embed_settings")
    return settings


def _limit(model: BertModel, tokenizer: WordPieceTokenizer, asked: int | None, of_folder: int | None) -> int:
    positions = model.config.max_position_embeddings
    if asked is not None and asked > positions:
        raise UserError(
            f"max_length={asked} is more than the {positions} positions of the model: use long='windows' for long texts"
        )
    return asked or min(of_folder or tokenizer.model_max_length, positions)


def _width(model: BertModel) -> int:
    dense = settings_of(model).dense
    return len(dense[-1].weight) if dense else model.config.hidden_size


@contextlib.contextmanager
def inferring(model: BertModel) -> Iterator[None]:
    """Without gradients and dropout; modules that were in training mode are so again afterwards."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _collected(chunks: Iterator[Tensor], total: int | None, report: Callable[[int], None]) -> Tensor | None:
    """The chunks in one tensor; without a total they are held twice for a moment. None where there are none."""
    found: Tensor | None = None
    pieces: list[Tensor] = []
    done = 0
    for chunk in chunks:
        if total is None or len(chunk) == total:
            pieces.append(chunk)
        else:
            found = chunk.new_empty(total, chunk.shape[1]) if found is None else found
            found[done : done + len(chunk)] = chunk
        done += len(chunk)
        report(done)
    if found is not None:
        return found[:done]
    return None if not pieces else pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@contextlib.contextmanager
def _reporting(progress: bool | Callable[[int], None], total: int | None) -> Iterator[Callable[[int], None]]:
    if not isinstance(progress, bool):
        yield progress
    elif progress:
        from fastbert.io.progress import Bars

        try:
            bars = Bars(quiet=False)
        except ImportError:
            raise UserError("progress=True needs the package rich: `pip install rich`, or give a function") from None
        with bars:
            yield bars.stage("embedding", total)
    else:
        yield lambda done: None


BertModel.embed_texts = staticmethod(embed)
