"""Texts as packed rows of tokens, with a prefix, truncation, and the masks that expand a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import torch

from fastbert.distributed.shares import Share
from fastbert.embeddings.rows import check_texts
from fastbert.errors import UserError
from fastbert.models.keyed import KeyedBatch
from fastbert.packing import PackedBatch
from fastbert.tasks.rows import Rows, bounds
from fastbert.tokenizers.tokenizer import Tokenizer

CHUNK_TEXTS = 1024
"""Texts that are tokenized, sorted and computed at a time."""


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """The tokens and text before a text: the id of a marker behind [CLS], None for none, and then text."""

    text: str = ""
    marker: int | None = None

    @classmethod
    def marked(cls, text: str, beginning: str, tokenizer: Tokenizer) -> Prefix:
        """Return a prefix that begins with a marker, if the vocabulary has `beginning` or its first word as a whole, as
        ColBERT's [unused0] and PyLate's "[Q] ", which a tokenizer would split."""
        vocabulary = tokenizer.get_vocab()
        for marker in (beginning, *beginning.split(None, 1)[:1]):
            if marker in vocabulary and text.startswith(marker):
                return cls(text=text[len(marker) :], marker=vocabulary[marker])
        return cls(text=text)


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """Masks behind a short query, each of which gets a vector (Khattab and Zaharia 2020, section 3.2)."""

    length: int
    """Tokens of an expanded query, special ones included."""
    token_id: int
    attend: bool = False
    """True if tokens attend to the masks; else these attend to the query's tokens and to nothing else."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenRows:
    """The rows of some texts, and `sizes`, int64 (rows,): the number of each row's tokens that are not masks."""

    rows: Rows
    sizes: np.ndarray
    attend: bool
    truncated: int
    """The number of truncated texts."""

    def part(self, first: int, end: int) -> TokenRows:
        """Return the rows from `first` up to `end`."""
        every = self.rows
        tokens = slice(int(every.offsets[first]), int(every.offsets[end]))
        return TokenRows(
            rows=Rows(
                input_ids=every.input_ids[tokens],
                token_type_ids=every.token_type_ids[tokens],
                offsets=every.offsets[first : end + 1] - every.offsets[first],
                examples=np.arange(end - first),
            ),
            sizes=self.sizes[first:end],
            attend=self.attend,
            truncated=0,
        )

    def packed(self, indices: np.ndarray) -> PackedBatch:
        """Return the rows of `indices`, int64 (rows,), as a batch; masks are keys only if tokens attend to them.

        Raises UserError where `KeyedBatch` does.
        """
        batch, sizes = self.rows.packed(indices), self.sizes[indices]
        if self.attend or (sizes == self.rows.lengths[indices]).all():
            return batch
        is_key = batch.position_ids.numpy() < np.repeat(sizes, self.rows.lengths[indices])
        return KeyedBatch(
            **vars(batch),
            key_indices=torch.from_numpy(np.flatnonzero(is_key)),
            cu_seqlens_k=torch.from_numpy(bounds(sizes).astype(np.int32)),
        )


def read_rows(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_length: int,
    prefix: Prefix | None = None,
    expansion: Expansion | None = None,
    first: int = 0,
) -> TokenRows:
    """Tokenize texts, the first of which is number `first` in errors: [CLS], the prefix, the text, [SEP], masks."""
    check_texts(texts, first)
    prefix = prefix or Prefix()
    if prefix.text:
        texts = [prefix.text + text for text in texts]
    before = np.array([*tokenizer.prefix_ids, *([] if prefix.marker is None else [prefix.marker])], dtype=np.int32)
    after = np.array(tokenizer.suffix_ids, dtype=np.int32)
    room = max_length - len(before) - len(after)
    if room < 1:
        raise UserError(f"max_length={max_length} has no room for a text beside {max_length - room} special tokens")
    # One token more than is kept identifies longer texts. The model uses the other cores.
    ids, offsets = tokenizer.encode_ragged(texts, max_length=room + 1, threads=1)
    kept = np.minimum(np.diff(offsets), room)
    sizes = kept + len(before) + len(after)
    lengths = sizes if expansion is None else np.maximum(sizes, expansion.length)
    begins = bounds(lengths)
    flat = np.full(begins[-1], 0 if expansion is None else expansion.token_id, dtype=np.int32)
    for row, (begin, size) in enumerate(zip(begins[:-1].tolist(), kept.tolist(), strict=True)):
        inner = begin + len(before)
        flat[begin:inner] = before
        flat[inner : inner + size] = ids[offsets[row] : offsets[row] + size]
        flat[inner + size : inner + size + len(after)] = after
    return TokenRows(
        rows=Rows(input_ids=flat, token_type_ids=np.zeros_like(flat), offsets=begins, examples=np.arange(len(texts))),
        sizes=sizes,
        attend=expansion is None or expansion.attend,
        truncated=int((np.diff(offsets) > room).sum()),
    )


def chunks(texts: Iterable[str], share: Share | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield some texts at a time, with the number of those before; those of a `share` alone. Raises UserError for
    anything but an iterable of texts."""
    share = share or Share()
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"texts must be a list of strings or another iterable, not {type(texts).__name__}")
    remaining, first = iter(texts), 0
    size = share.chunk_texts(CHUNK_TEXTS)
    for number in count():
        if not (chunk := list(islice(remaining, size))):
            return
        if share.has(number):
            yield first, chunk
        first += len(chunk)
