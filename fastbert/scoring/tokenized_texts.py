"""Texts as token ids, the input of all scorers. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fastbert.errors import UserError
from fastbert.io.text import has_surrogates
from fastbert.tasks.rows import bounds
from fastbert.tokenizers.tokenizer import Tokenizer

SHOWN = 40  # characters of a text in an error
ScoreMode = Literal["original", "within-word"]
Progress = Callable[[float], None]
"""Called with the finished part of a list of texts, 0 to 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenizedTexts:
    """The tokens of texts without special ones: text i has the items `offsets[i]` up to `offsets[i + 1]`.

    `ids` and `words`, the index of each token's word in its text, are int32 (tokens,), `offsets` int64 (texts + 1,).
    `source` describes a text by its index, for errors.
    """

    ids: np.ndarray
    words: np.ndarray
    offsets: np.ndarray
    source: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        """The number of tokens of each text."""
        return np.diff(self.offsets)

    def select(self, begin: int, end: int) -> TokenizedTexts:
        """Return the texts `begin` up to `end`."""
        tokens = slice(self.offsets[begin], self.offsets[end])
        return TokenizedTexts(
            ids=self.ids[tokens],
            words=self.words[tokens],
            offsets=self.offsets[begin : end + 1] - self.offsets[begin],
            source=lambda index: self.source(begin + index),
        )


class Scorer(Protocol):
    """A model that gives each token of a text a log-probability."""

    tokenizer: Tokenizer

    @property
    def max_tokens(self) -> int | None:
        """The most tokens per text, special ones not counted; None: any number."""

    def log_probabilities(self, texts: TokenizedTexts, progress: Progress | None = None) -> np.ndarray:
        """Return the natural logarithm of each token's probability, float64 (tokens,)."""


def tokenize(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_tokens: int | None = None,
    source: Callable[[int], str] = "texts[{}]".format,
) -> TokenizedTexts:
    """Return the tokens of texts.

    Raises `UserError` for an item that is not a text, and for a text of more than `max_tokens` tokens; `source`
    describes it by its index.
    """
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"{source(index)} must be a string, not {type(text).__name__}")
        if has_surrogates(text):
            raise UserError(f"{source(index)}: {text[:SHOWN]!r} is not valid Unicode: give it as UTF-8")
    if len(texts):
        ids, _, _, words, offsets = tokenizer.encode_aligned_ragged(texts)
    else:
        ids, words, offsets = np.zeros(0, np.int32), np.zeros(0, np.int32), bounds(np.zeros(0, np.int64))
    sizes = np.diff(offsets)
    if max_tokens is not None and sizes.max(initial=0) > max_tokens:
        index = int((sizes > max_tokens).argmax())
        shown = texts[index][:SHOWN] + ("..." if len(texts[index]) > SHOWN else "")
        raise UserError(
            f"{source(index)} has {sizes[index]:,} tokens, and the model reads {max_tokens:,} beside the special ones:"
            f" {shown!r}; split it into sentences"
        )
    return TokenizedTexts(ids=ids, words=words, offsets=offsets, source=source)
