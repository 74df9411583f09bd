"""The special tokens that a tokenizer puts around texts: `[CLS] A [SEP]`, `<s> A </s></s> B </s>`, or none. Imports no
torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastbert.errors import UserError
from fastbert.tokenizers.tokenizer import Tokenizer

_FIRST, _SECOND = -1, -2  # stand for the texts of a pair: no token has these ids


@dataclass(frozen=True, eq=False)
class RowTemplate:
    """The special tokens of rows with a single text: int64 arrays of ids before and behind it."""

    before: np.ndarray
    behind: np.ndarray

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> RowTemplate:
        """Return the template of a tokenizer's single texts."""
        return cls(np.array(tokenizer.prefix_ids, dtype=np.int64), np.array(tokenizer.suffix_ids, dtype=np.int64))

    @property
    def added(self) -> int:
        """The number of special tokens per row."""
        return len(self.before) + len(self.behind)

    def write(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        """Write the special tokens of rows to `ids`; row i has `ids[offsets[i] : offsets[i + 1]]`."""
        put(ids, offsets[:-1], self.before)
        put(ids, offsets[1:] - len(self.behind), self.behind)


@dataclass(frozen=True, eq=False)
class PairTemplate:
    """The special tokens of rows with a pair of texts, int64 arrays of ids before, between and behind them, and
    `types`, the token types of these five parts: before, first text, between, second text, behind."""

    before: np.ndarray
    between: np.ndarray
    behind: np.ndarray
    types: tuple[np.ndarray, int, np.ndarray, int, np.ndarray]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PairTemplate:
        """Return the template of a tokenizer's pairs."""
        ids = np.array(tokenizer.build_inputs_with_special_tokens([_FIRST], [_SECOND]), dtype=np.int64)
        types = np.array(tokenizer.create_token_type_ids_from_sequences([_FIRST], [_SECOND]), dtype=np.int64)
        first, second = (int(np.flatnonzero(ids == text)[0]) for text in (_FIRST, _SECOND))
        between = slice(first + 1, second)
        return cls(
            before=ids[:first],
            between=ids[between],
            behind=ids[second + 1 :],
            types=(types[:first], int(types[first]), types[between], int(types[second]), types[second + 1 :]),
        )

    @property
    def added(self) -> int:
        """The number of special tokens per row."""
        return len(self.before) + len(self.between) + len(self.behind)


def put(array: np.ndarray, begins: np.ndarray, values: np.ndarray) -> None:
    """Write the same values to `array` from each of `begins` on."""
    array[(begins[:, None] + np.arange(len(values))).ravel()] = np.tile(values, len(begins))


def first_token(tokenizer: Tokenizer) -> int:
    """Return the id with which texts begin: the first special token of a row, or, of a tokenizer without any, that of
    the beginning of texts. Raises `UserError` for a tokenizer with neither."""
    if len(tokenizer.prefix_ids):
        return int(tokenizer.prefix_ids[0])
    if tokenizer.bos_token_id is None:
        raise UserError("the tokenizer has no token for the beginning of texts: name one as bos_token in its files")
    return int(tokenizer.bos_token_id)


def both_ends(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the ids of the tokens before and behind a text. Raises `UserError` unless there is one of each."""
    template = RowTemplate.of(tokenizer)
    if (len(template.before), len(template.behind)) != (1, 1):
        raise UserError(
            f"the tokenizer has {len(template.before)} tokens before and {len(template.behind)} behind a text, where"
            " one of each is needed, such as [CLS] and [SEP], to begin and end generated texts; use a different one"
        )
    return int(template.before[0]), int(template.behind[0])


def encode_words(
    tokenizer: Tokenizer, words: Sequence[str], threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of words as they are within a text, behind a space: ids, int32 (tokens,), and offsets, int64
    (words + 1,).

    Byte-level BPE has different tokens for a word with a space in front (as has transformers, which requires
    `add_prefix_space=True` for words).
    """
    ids, offsets = tokenizer.encode_ragged(["a", "a a"], threads=1)
    alone, twice = ids[: offsets[1]], ids[offsets[1] :]
    if not np.array_equal(twice, np.concatenate((alone, alone))):
        words = [f" {word}" for word in words]
    return tokenizer.encode_ragged(words, threads=threads)
