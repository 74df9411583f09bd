"""Embeddings: one vector per text, for any number of texts in any order, in bounded memory.

Texts are read in chunks, tokenized on a second thread while the model runs on the previous chunk, sorted by length and
packed, so that nothing is computed for padding. On CPUs a text's vector has the same bits in every batch, because all
matmuls are fastbert's own; `fastbert.ops.native.matmul_table` names the exceptions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastbert.distributed.shares import Share
from fastbert.distributed.world import World
from fastbert.embeddings.pooling import check_pooling, counted_tokens, normalized, packed, pool
from fastbert.embeddings.rows import LEAST_LENGTH, LONG, Rows, Truncation, check_texts, read_rows
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError, require_package, require_whole
from fastbert.io.log import logger
from fastbert.models.encoder import EncoderModel, summary_indices
from fastbert.models.finite import check_finite
from fastbert.ops.native import matmul_table
from fastbert.tasks.rows import by_length, tokens_per_batch
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

# Texts per chunk, which is read, sorted and computed at a time; a longer text is a chunk of its own.
CHUNK_TEXTS = {"cpu": 1024, "cuda": 32768}
CHUNK_CHARACTERS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Options of embeddings. None stands for the settings in the model's folder (`fastbert.embeddings.folder`), and
    without settings for the mean, not normalised, of as many tokens as tokenizer and model allow."""

    pooling: str | None = None
    """"mean" of a text's tokens, their "max" in each dimension, or the vector of its first token, "cls"; [CLS] and
    [SEP] are among the tokens."""
    normalize: bool | None = None
    """True divides vectors by their length."""
    max_length: int | None = None
    """Tokens per model input, [CLS] and [SEP] included."""
    long: str = "truncate"
    """Longer texts are truncated ("truncate"), pooled over overlapping windows ("windows"), or refused ("error")."""
    batch_tokens: int | None = None
    """Tokens per batch; None: 4,096, on a GPU 65,536."""
    prompt: str | None = None
    """Name of the folder's prompt that precedes each text; None: its default prompt, if it has one."""
    prompt_text: str | None = None
    """The text that precedes each text, in place of a prompt by name; "" for none."""

    def __post_init__(self) -> None:
        if self.pooling is not None:
            check_pooling(self.pooling)
        if self.long not in LONG:
            raise UserError(f"long={self.long!r} must be {', '.join(map(repr, LONG[:-1]))} or {LONG[-1]!r}")
        require_whole("max_length", self.max_length, LEAST_LENGTH, optional=True)
        require_whole("batch_tokens", self.batch_tokens, 1, optional=True)
        if self.prompt is not None and self.prompt_text is not None:
            raise UserError(f"prompt={self.prompt!r} and prompt_text={self.prompt_text!r} exclude each other")


@dataclass
class Counts:
    """The progress of an embedder."""

    texts: int = 0
    read: int = 0
    """Texts that were read so far, some of them ahead."""
    tokens: int = 0
    """Computed tokens, including special ones and the overlaps of windows."""
    truncated: int = 0
    """Truncated texts."""
    max_length: int = 0
    """The tokens that remain of truncated texts."""

    def of_all(self, world: World) -> Counts:
        """Return the counts of all processes together, which each of them calls at its end."""
        everyone = world.gathered("counts", {name: getattr(self, name) for name in ("texts", "tokens", "truncated")})
        sums = {name: sum(counts[name] for counts in everyone) for name in everyone[0]}
        return replace(self, **sums)

    def describe_truncated(self) -> str:
        """Return the number of truncated texts in a sentence."""
        return (
            f"{self.truncated:,} of {self.texts:,} texts were longer than {self.max_length:,} tokens and truncated"
            if self.truncated
            else f"none of {self.texts:,} texts was truncated"
        )


def embed(
    model: EncoderModel,
    texts: Iterable[str],
    tokenizer: Tokenizer,
    *,
    progress: bool | Callable[[int], None] = False,
    counts: Counts | None = None,
    **options: Any,
) -> Tensor:
    """Return the embeddings of texts, fp32 (texts, hidden_size) on the CPU, in the order of the texts.

    `options` are those of `EmbedOptions`. The model computes on its device and in its dtype, quantised if it is,
    without dropout and gradients; sums of pooling are fp32. `progress` shows a bar, or is called with the number of
    texts done. `counts` is updated; without it the number of truncated texts is logged as a warning.

    With `long="windows"` a longer text is split into windows of `max_length` tokens, spread evenly over it, of which
    neighbours share at least a quarter. Each window counts up to the middle of an overlap, so that "mean" and "max" use
    each token once, where it has most context; "cls" is the mean of the windows' first tokens.

    Raises UserError for wrong options, for an item that is not a text, by its index, and for a tokenizer whose size is
    not the model's (`fastbert.tokenizers.fit`).
    """
    counted = Counts() if counts is None else counts
    total = len(texts) if isinstance(texts, Sized) else None
    with _reporting(progress, total) as report:
        chunks = embed_chunks(model, texts, tokenizer, EmbedOptions(**options), counted, report)
        vectors = _collected(chunks, total)
    if counts is None and counted.truncated:
        logger.warning("%s", counted.describe_truncated())
    return torch.empty(0, width_of(model)) if vectors is None else vectors


def embed_chunks(
    model: EncoderModel,
    texts: Iterable[str],
    tokenizer: Tokenizer,
    options: EmbedOptions | None = None,
    counts: Counts | None = None,
    progress: Callable[[int], None] = lambda texts: None,
    share: Share | None = None,
) -> Iterator[Tensor]:
    """Yield the embeddings of some thousand texts at a time, for more than fits into memory; see `embed`.

    The model may be used in between. Options are checked at once. `progress` is called after each batch with the number
    of texts done, which within a chunk is estimated from its tokens. With a `share`, only the chunks of one of several
    processes are computed; all texts are read.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"texts must be a list of strings or another iterable, not {type(texts).__name__}")
    embedder = _Embedder(model, tokenizer, options or EmbedOptions(), counts or Counts(), progress, share or Share())
    return embedder.run(texts)


class _Embedder:
    """A model with the options resolved."""

    def __init__(
        self,
        model: EncoderModel,
        tokenizer: Tokenizer,
        options: EmbedOptions,
        counts: Counts,
        progress: Callable[[int], None],
        share: Share,
    ) -> None:
        settings = settings_of(model)
        self.progress, self.share = progress, share
        check_tokenizer(tokenizer, model.config.vocab_size)
        self.model, self.tokenizer, self.settings, self.counts = model, tokenizer, settings, counts
        self.pooling = settings.pooling if options.pooling is None else options.pooling
        self.normalize = settings.normalize if options.normalize is None else options.normalize
        self.prompt = settings.prompt(options.prompt) if options.prompt_text is None else options.prompt_text
        device = model.device.type
        self.batch_tokens = tokens_per_batch(device, options.batch_tokens)
        self.chunk_texts = CHUNK_TEXTS.get(device, CHUNK_TEXTS["cpu"])
        if device == "cpu":  # where a text's vector has the same bits in every batch
            self.chunk_texts = share.chunk_texts(self.chunk_texts)
        self.truncation = Truncation(
            max_length=token_limit(model, tokenizer, options.max_length, settings.max_length),
            long=options.long,
            left=tokenizer.truncation_side == "left",
        )
        counts.max_length = self.truncation.max_length

    def run(self, texts: Iterable[str]) -> Iterator[Tensor]:
        chunks = ((first, chunk) for number, (first, chunk) in enumerate(self._chunks(texts)) if self.share.has(number))
        with ThreadPoolExecutor(1, thread_name_prefix="fastbert-embed") as executor:
            current = next(chunks, None)
            rows = None if current is None else self._read(*current)
            while current is not None and rows is not None:
                following = next(chunks, None)
                ahead = None if following is None else executor.submit(self._read, *following)
                first, chunk = current
                vectors = self._vectors(rows, len(chunk), first)
                check_finite(self.model, vectors, lambda row: f"texts[{first + row}]")  # noqa: B023 - called at once
                self.counts.texts += len(chunk)
                self.counts.tokens += int(rows.lengths.sum())
                self.counts.truncated += rows.truncated
                current, rows = following, None
                yield vectors
                rows = None if ahead is None else ahead.result()

    def _chunks(self, texts: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the texts in chunks, with the number of those before."""
        chunk: list[str] = []
        first = 0
        characters = 0
        for text in texts:
            size = len(self.prompt) + len(text) if isinstance(text, str) else 0
            if chunk and (len(chunk) == self.chunk_texts or characters + size > CHUNK_CHARACTERS):
                yield first, chunk
                first, chunk, characters = first + len(chunk), [], 0
            chunk.append(text)
            self.counts.read += 1
            characters += size
        if chunk:
            yield first, chunk

    def _read(self, first: int, chunk: list[str]) -> Rows:
        if self.prompt:
            check_texts(chunk, first)
            chunk = [self.prompt + text for text in chunk]
        return read_rows(self.tokenizer, chunk, self.truncation, first)

    def _vectors(self, rows: Rows, texts: int, before: int) -> Tensor:
        """Return the embeddings of this number of texts from their rows; `before` is the number of texts done."""
        order, pooled = [], []
        tokens, total = 0, max(int(rows.lengths.sum()), 1)
        with inferring(self.model), matmul_table.same_in_every_batch():
            for indices in by_length(rows.lengths, self.batch_tokens):
                order.append(indices)
                pooled.append(self._pooled_batch(rows, indices))
                tokens += int(rows.lengths[indices].sum())
                self.progress(before + texts * tokens // total)
        row_indices = torch.from_numpy(np.concatenate(order))
        with torch.no_grad():
            sorted_rows = torch.cat(pooled).cpu()
            by_row = torch.empty_like(sorted_rows).index_copy_(0, row_indices, sorted_rows)
            return self._finished(by_row, rows, texts)

    def _pooled_batch(self, rows: Rows, indices: np.ndarray) -> Tensor:
        """Return the contribution of each row to its text's embedding, fp32 (rows, hidden_size)."""
        batch = packed(rows, indices).to(self.model.device)
        if self.pooling == "cls":
            return self.model.encode(batch, token_indices=summary_indices(batch, self.model.causal))[0].float()
        counted, offsets = counted_tokens(rows, indices)
        tokens = None if counted is None else counted.to(batch.device)
        return pool(self.model.encode(batch, token_indices=tokens)[0], offsets.to(batch.device), self.pooling)

    def _finished(self, by_row: Tensor, rows: Rows, texts: int) -> Tensor:
        """Combine the rows of each text, and apply the steps after pooling."""
        begins = np.searchsorted(rows.texts, np.arange(texts + 1))
        offsets = torch.from_numpy(begins)
        vectors = by_row if len(by_row) == texts else pool(by_row, offsets, self.pooling)
        if self.pooling != "max":
            sizes = np.ones(len(rows.texts), dtype=np.int64) if self.pooling == "cls" else rows.ends - rows.firsts
            vectors = vectors / torch.from_numpy(np.add.reduceat(sizes, begins[:-1])).float()[:, None]
        for dense in self.settings.dense:
            vectors = dense(vectors)
        return normalized(vectors) if self.normalize else vectors


def settings_of(model: EncoderModel) -> EmbedSettings:
    """Return the model's settings, which `load_embedder` reads from its folder, or the defaults."""
    settings = model.embed_settings
    if settings is None:
        return EmbedSettings()
    if not isinstance(settings, EmbedSettings):
        raise UserError(f"embed_settings must be EmbedSettings (fastbert.embeddings.settings), not {settings!r}")
    settings.check_width(model.config.hidden_size, "embed_settings")
    return settings


def token_limit(
    model: EncoderModel, tokenizer: Tokenizer, max_length: int | None, default: int | None, name: str = "max_length"
) -> int:
    """Return the tokens per text: `max_length`, else the `default` or the tokenizer's limit, at most the model's
    positions. Raises UserError for a `max_length` of more, under its `name`."""
    positions = model.config.max_sequence_length
    if max_length is not None and max_length > positions:
        raise UserError(
            f"{name}={max_length} is more than the {positions} positions of the model: use long='windows' for long"
            " texts"
        )
    return max_length or min(default or tokenizer.model_max_length, positions)


def width_of(model: EncoderModel) -> int:
    """Return the width of a model's embeddings."""
    dense = settings_of(model).dense
    return len(dense[-1].weight) if dense else model.config.hidden_size


def _in_training(model: nn.Module) -> list[nn.Module]:
    """Return the modules in training mode; `model.modules()` takes as long for them as a short text."""
    modules, found = [model], []
    for module in modules:
        if module.training:
            found.append(module)
        modules.extend(child for child in module._modules.values() if child is not None)
    return found


@contextlib.contextmanager
def inferring(model: nn.Module) -> Iterator[None]:
    """Disable gradients and dropout; modules return to training mode afterwards if they were in it."""
    training = _in_training(model)
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _collected(chunks: Iterator[Tensor], total: int | None) -> Tensor | None:
    """Concatenate the chunks; None if there are none. Without a total they are in memory twice for a moment."""
    vectors: Tensor | None = None
    pieces: list[Tensor] = []
    done = 0
    for chunk in chunks:
        if total is None or len(chunk) == total:
            pieces.append(chunk)
        else:
            vectors = chunk.new_empty(total, chunk.shape[1]) if vectors is None else vectors
            vectors[done : done + len(chunk)] = chunk
        done += len(chunk)
    if vectors is not None:
        return vectors[:done]
    return None if not pieces else pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@contextlib.contextmanager
def _reporting(progress: bool | Callable[[int], None], total: int | None) -> Iterator[Callable[[int], None]]:
    if not isinstance(progress, bool):
        yield progress
    elif progress:
        require_package("rich.console", "progress=True needs the package rich: `pip install rich`, or give a function")
        from fastbert.io.progress import Bars

        with Bars(quiet=False) as bars:
            yield bars.stage("embedding", total, "texts")
    else:
        yield lambda done: None
