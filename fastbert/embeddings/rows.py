"""Texts as rows of tokens, the first step of an embedder.

A row is a model input: a text, the beginning of a long one, or one of its windows. Each row contributes the vectors of
a range of its tokens, so that each token of a text counts once in overlapping windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastbert.errors import UserError
from fastbert.io.text import has_surrogates
from fastbert.tasks.row_template import RowTemplate
from fastbert.tokenizers.tokenizer import Tokenizer

LONG = ("truncate", "windows", "error")
LEAST_LENGTH = 3  # of rows: [CLS], [SEP] and a token
SHOWN = 40  # characters of a text in an error


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """The treatment of texts of more than `max_length` tokens, special ones included: one of `LONG`."""

    max_length: int
    long: str
    left: bool = False
    """Truncation removes the beginning."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows of some texts, int64 arrays with one item per row: `texts` (sorted), the begin and number of its tokens in
    `ids` without the special ones of the template, and the range of the row's tokens that count (0 is [CLS])."""

    ids: np.ndarray
    texts: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray
    firsts: np.ndarray
    ends: np.ndarray
    template: RowTemplate
    truncated: int
    """The number of truncated texts."""

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each row, special ones included."""
        return self.sizes + self.template.added


def read_rows(tokenizer: Tokenizer, texts: Sequence[str], truncation: Truncation, first: int = 0) -> Rows:
    """Tokenize texts, the first of which is number `first` in errors."""
    template = RowTemplate.of(tokenizer)
    room = truncation.max_length - template.added
    # One token more than is kept identifies longer texts.
    most = None if truncation.long == "windows" or truncation.left else truncation.max_length + 1
    try:
        # The model uses the other cores.
        ids, offsets = tokenizer.encode_ragged(texts, True, max_length=most, threads=1)
    except TypeError:
        check_texts(texts, first)
        raise
    sizes = np.diff(offsets) - template.added
    if not template.added and not sizes.all():
        raise UserError(
            f"texts[{first + int(sizes.argmin())}] has no tokens, so there is no vector for it (this tokenizer adds no"
            " special tokens): leave it out"
        )
    long = sizes > room
    if truncation.long == "error" and long.any():
        index = int(long.argmax())
        tokens = len(tokenizer.encode_ragged([texts[index]], True)[0])
        shown = texts[index][:SHOWN] + ("..." if len(texts[index]) > SHOWN else "")
        raise UserError(
            f"texts[{first + index}] has {tokens} tokens, more than max_length={truncation.max_length}: {shown!r};"
            " cut it, or use long='truncate' or long='windows'"
        )
    begins, numbers = offsets[:-1] + len(template.before), np.arange(len(sizes))
    if truncation.long == "windows" and long.any():
        return windowed(ids, begins, sizes, room, template)
    kept_sizes = np.minimum(sizes, room)
    begins = begins + (sizes - kept_sizes) if truncation.left else begins
    return Rows(
        ids=ids,
        texts=numbers,
        begins=begins,
        sizes=kept_sizes,
        firsts=np.zeros_like(kept_sizes),
        ends=kept_sizes + template.added,
        template=template,
        truncated=int(long.sum()),
    )


def check_texts(texts: Sequence[object], first: int = 0) -> None:
    """Raise UserError, with its index, for an item that is not a text."""
    for index, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise UserError(f"texts[{index}] must be a string, not {type(text).__name__}")
        if has_surrogates(text):
            raise UserError(
                f"texts[{index}] holds a lone surrogate (half of a character): clean it first, with"
                ' text.encode("utf-8", "replace").decode() for example'
            )


def window_starts(size: int, room: int) -> np.ndarray:
    """Return the begins of the windows of a text of `size` tokens, each `room` tokens wide: spread evenly, with
    neighbours sharing at least a quarter."""
    if size <= room:
        return np.zeros(1, dtype=np.int64)
    shared = room // 4
    count = -(-(size - shared) // (room - shared))
    return np.arange(count) * (size - room) // (count - 1)


def windowed(ids: np.ndarray, begins: np.ndarray, sizes: np.ndarray, room: int, template: RowTemplate) -> Rows:
    """Return windows of the long texts, and the others whole.

    The overlap of two windows counts up to its middle in the first and from there in the second, so that tokens have
    context on both sides; [CLS] counts in the first window, [SEP] in the last.
    """
    before = len(template.before)
    starts = [window_starts(size, room) for size in sizes.tolist()]
    counts = np.array([len(offsets) for offsets in starts])
    texts = np.repeat(np.arange(len(sizes)), counts)
    start = np.concatenate(starts)
    is_first, is_last = np.diff(texts, prepend=-1) > 0, np.diff(texts, append=len(sizes)) > 0
    width = np.minimum(sizes, room)[texts]
    # The middle of the overlap of a window and the next of the same text, in tokens of the text.
    middle = (start[1:] + start[:-1] + width[:-1]) // 2
    counted_end = np.where(is_last, width + template.added, before)
    counted_end[:-1] += np.where(is_last[:-1], 0, middle - start[:-1])
    counted_first = np.where(is_first, 0, before)
    counted_first[1:] += np.where(is_first[1:], 0, middle - start[1:])
    return Rows(
        ids=ids,
        texts=texts,
        begins=begins[texts] + start,
        sizes=width,
        firsts=counted_first,
        ends=counted_end,
        template=template,
        truncated=0,
    )
